"""The stages of the sequential planner within the joint search: their order is searched as if nothing else were open.

Who settles on stages first and then looks for the best order must not end with a shorter iteration than the joint
search. So the order search of those stages begins with everything that it would begin with if they were given, its
seeds and its work are the same, and it keeps pace with the joint search round by round, until a lower bound shows that
no order of these stages is better than the incumbent, or its best order is far behind.
"""

from collections.abc import Iterator
from dataclasses import replace

from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.registry import make_baselines, play_baseline
from planner.baselines.sequential import assign_sequential
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.planning.improvers.improver import Improver, Leader
from planner.planning.improvers.order_sessions import begin_order_search
from planner.planning.search_state import SEED_SHARE, SearchState
from planner.planning.starts.conversions import rate
from solver_models.local_search.multistart import JointSearch
from solver_models.local_search.order_search import MOST_ACTIONS, OrderSearch
from solver_models.local_search.search import Candidate
from solver_models.precompile import FIRST

_MAX_CELLS = 500_000
"""Most devices x layers x layers for which the sequential planner is asked."""
_LOOKS = 200
"""How often the sequential planner may look at all of these."""
_EQUAL_ROUNDS = 8
"""Rounds of order search that follow one joint round each."""
_LATER_EVERY_ROUNDS = 4
"""Later, one joint round in so many is followed by one of order search."""
_HOPELESS = 1.05
"""Ratio to the incumbent that ends it."""


class SequentialImprover(Improver):
    """The order search of the sequential planner's stages."""

    name = "order of sequential stages"

    def __init__(self, run: SearchState, search: JointSearch, *, leader: Leader) -> None:
        self.run, self.search, self.leader = run, search, leader
        self.order: OrderSearch | None = None
        """None where the sequential planner has no stages, and once there is nothing to hope for."""

    def begin(self) -> None:
        """Offer the stages to the joint search, and begin with their order."""
        stages, searcher = self._find_stages(), self.search.searcher
        if stages is None:
            return
        candidate = rate(self.run.problem, searcher, stages=stages)
        if not searcher.is_allowed(candidate):
            return
        self.search.add([candidate])
        self.leader.propose("sequential planner")
        if not self._is_refuted(candidate):
            played = [] if self.run.is_large else list(play_baselines_on(self.run, stages))
            self.order = begin_order_search(
                self.run, searcher, candidate=candidate, plans=played, most_actions=MOST_ACTIONS
            )
            self.order.add([searcher.device_orders(candidate)[0]])
            self.leader.take_best(self.order, source="sequential planner")

    def _find_stages(self) -> tuple[Stage, ...] | None:
        problem = self.run.problem
        num_cells = len(problem.cluster.devices) * len(problem.profile.layers) ** 2
        if num_cells > _MAX_CELLS or problem.options.partition is not None or problem.only_wider:
            return None
        max_cells = _LOOKS * _MAX_CELLS
        has_time = self.run.time_until(SEED_SHARE)
        try:
            return assign_sequential(self.run.costs, max_cells=max_cells, has_time=has_time).stages
        except DoesNotApplyError:
            return None

    def _is_refuted(self, candidate: Candidate) -> bool:
        """Whether no order of these stages is better than the incumbent."""
        if self.search.searcher.by_span or self.run.incumbent_ns is None:
            return False
        searcher, incumbent = self.search.searcher, self.run.incumbent_ns
        # the quick lower bound first: on a new machine the kernels of the exact one come later
        quick = searcher.lower_bound(candidate.stage_of, candidate.groups, modes=candidate.modes)
        if quick is None or quick >= incumbent:
            return quick is not None
        self.run.make_ready(*FIRST)
        lower_bound = searcher.exact_lower_bound(candidate)
        return lower_bound is not None and lower_bound >= incumbent

    def is_due(self, rounds: int) -> bool:
        """After every joint round at first, now and then later, as long as there is something to hope for and time."""
        if self.order is None or not self.run.has_time_for_round(self.order.round_s):
            return False
        is_late = self.order.round >= _EQUAL_ROUNDS
        return rounds % _LATER_EVERY_ROUNDS == 0 if is_late else self.order.round < rounds

    def take_step(self) -> Iterator[None]:
        """The next round of the order, unless there is nothing to hope for any more."""
        order = self.order
        if order is None or self._is_over(order):
            self.order = None
            return
        order.run_round(lambda: self.leader.take_best(order, source=self.name))
        yield

    def _is_over(self, order: OrderSearch) -> bool:
        """Whether the order is at its lower bound, or the incumbent is out of its reach."""
        incumbent = self.run.incumbent_ns
        if order.pool and order.pool[0].objective <= order.lower_bound:
            return True
        if incumbent is None:
            return False
        most = _HOPELESS * incumbent
        is_behind = order.num_ended > 0 and (not order.pool or order.pool[0].objective > most)
        return is_behind or self._is_refuted(order.candidate)


def play_baselines_on(run: SearchState, stages: tuple[Stage, ...]) -> Iterator[Plan]:
    """What every baseline makes of these stages as if they were given: those plans that fit into memory."""
    options = replace(
        run.problem.options,
        partition=tuple(stage.layers for stage in stages),
        placement=tuple(stage.replicas for stage in stages),
    )
    problem = replace(run.problem, options=options)
    costs = CostModel(problem)
    for baseline in make_baselines(problem, costs, has_time=lambda: run.has_time_for_round(0.0)):
        row, _ = play_baseline(problem, baseline, costs=costs)
        if baseline.plan is not None and row.fits_memory:
            yield baseline.plan

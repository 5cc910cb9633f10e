"""Which stages shard their weights, and how many of a device are gathered at a time, as a decision of the search.

The joint search knows whole weights only. A step looks at the incumbent and at what the joint search holds to be good.
All ranks of a plan that could gather do so, with every number of active stages, and then every rank but one. Devices of
a rank get one order, that of their first. The first step also orders stages anew for the memory that gathering leaves
(`rank_layouts`). What is better than the incumbent is proposed.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from planner.decisions.max_active_stages.option import DECISION
from planner.decisions.max_active_stages.plans import gathering_plans
from planner.decisions.max_active_stages.rank_layouts import even_layouts, ordered_plans
from planner.errors import PlanError
from planner.plan import Plan, Stage
from planner.planning.improvers.improver import DecisionImprover
from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import plan_of
from planner.simulation.simulate import simulate
from solver_models.local_search.multistart import JointSearch

_STARTS = 6
"""Candidates of the joint search that are looked at in a step."""


def make_improver(run: SearchState, search: JointSearch) -> "GatherImprover":
    """The part of the search."""
    return GatherImprover(run, search)


class GatherImprover(DecisionImprover):
    """Plans whose stages gather their weights, made from plans whose weights are whole."""

    name, finds_alone = DECISION.part, True

    def __init__(self, run: SearchState, search: JointSearch) -> None:
        self.run, self.search, self.problem = run, search, run.problem
        self.seen: set[tuple[Stage, ...]] = set()
        """Stages that were looked at, as the joint search has them."""
        self.most = self.problem.options.max_active_stages or 0

    @property
    def is_open(self) -> bool:
        """Whether the options leave it open, and plans are small enough to be played one by one."""
        return self.problem.options.max_active_stages is not None and self.problem.may_shard and not self.run.is_large

    def take_step(self) -> Iterator[None]:
        """The best way to gather of plans that were not looked at yet."""
        for stages in () if self.seen else dict.fromkeys(self._layouts()):
            self._propose(ordered_plans(self.problem, stages, most=self.most))
            yield
        for plan in self._starts():
            if plan.stages not in self.seen:
                self.seen.add(plan.stages)
                self._propose(gathering_plans(plan, most=self.most))
                yield

    def _layouts(self) -> Iterator[tuple[Stage, ...]]:
        """Stages to be ordered anew: those given, even ones, and those that the search begins with."""
        options = self.problem.options
        if options.partition is not None and options.placement is not None:
            pairs = zip(options.partition, options.placement, strict=True)
            yield tuple(Stage(layers=layers, replicas=groups) for layers, groups in pairs)
            return
        yield from filter(self.problem.is_as_given, even_layouts(self.problem))
        yield from self.run.layouts[:_STARTS]

    def _starts(self) -> Iterator[Plan]:
        if self.run.plan is not None and self.run.plan.max_active_stages is None:
            yield self.run.plan
        yield from self.run.played
        candidates = (each for each in (*self.search.pool, *self.search.elite) if each.is_feasible)
        for candidate in islice(candidates, _STARTS):
            yield plan_of(self.problem, self.search.searcher, candidate=candidate)

    def _propose(self, plans: Iterable[Plan]) -> None:
        """The best of some plans, if it is better than the incumbent."""
        found = [(objective, plan) for plan in plans if (objective := self._objective_ns(plan)) is not None]
        best = min(found, key=lambda each: each[0], default=None)
        if best is not None and (self.run.incumbent_ns is None or best[0] < self.run.incumbent_ns):
            self.run.propose(best[1], source=self.name)

    def _objective_ns(self, plan: Plan) -> int | None:
        """None if the plan cannot be played, or does not fit into memory."""
        try:
            timeline = simulate(self.problem, plan, costs=self.run.costs)
        except (PlanError, ValueError):  # a deadlock, or a share that was not measured
            return None
        devices = self.problem.cluster.by_name
        if any(peak > devices[name].usable_bytes for name, peak in timeline.peak_bytes.items()):
            return None
        return timeline.objective_ns(self.problem.options.objective)

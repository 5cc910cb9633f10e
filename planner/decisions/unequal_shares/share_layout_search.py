"""A best-first search over stages whose replicas take unequal shares, each with plain orders, then those of CP-SAT.

Shares begin with those of the least longest time and change one stage after the other. Whether a stage runs B, or I
and W, is decided by stage here, and by microbatch by CP-SAT.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import islice, product
from math import comb
from random import Random

from planner.decisions.unequal_shares.share_layouts import (
    BACKWARDS,
    WARMUPS,
    Backward,
    Stages,
    Warmup,
    compositions,
    moved_samples,
    neighbours,
    plain_plan,
    plain_stages,
    with_samples,
)
from planner.errors import PlanError
from planner.plan import Plan, Stage
from planner.planning.improvers.cp_sat_orders import order_by_cp_sat
from planner.planning.improvers.improver import fitting_objective_ns
from planner.planning.search_state import SearchState
from planner.verify import verify
from solver_models.sample_shares import shortest_shares
from solver_models.simulation.evaluator import FAR

Choice = tuple[Stages, tuple[Backward, ...], Warmup]
"""Stages with shares, how each runs backward, and how many forwards come first."""

_RatedChoice = tuple[int, Stages, tuple[Backward, ...], Warmup]
"""The same behind its objective."""

Rated = tuple[int, Plan]
"""Objective and plan."""


MOVES = 24
"""Plans that are played with a sample moved, per turn."""
_MOST_ACTIONS = 60_000
"""Actions that are played in a step for stages that equal shares do not allow."""
_PLAY_ACTIONS = 200
"""What a play takes beside its actions, in actions."""
_MOST_NEIGHBOURS = 48
"""Neighbours of stages that are looked at."""
_ORDER_WORK = 1.0
"""CP-SAT's deterministic limit, and seconds, for the order of a plan per turn."""


class ShareLayouts:
    """Stages in the order of the best plan that is known for them; each is opened once, for its neighbours."""

    name = "unequal shares"

    def __init__(self, run: SearchState) -> None:
        self.run, self.problem, self.costs = run, run.problem, run.costs
        self.size = run.problem.profile.microbatch_size or 0
        self.random = Random(run.limits.seed)
        self.left = 0
        """Actions that this step may still play."""
        self.known: set[Stages] = set()
        self.pending: deque[Stages] = deque()
        """Stages that are rated next."""
        self.waiting: list[tuple[int, int, Stages]] = []
        self.rated: list[tuple[int, int, Plan]] = []
        """Plans of which CP-SAT has not ordered the actions yet, the best first."""

    def take_step(self, starts: Iterable[Stages]) -> Iterator[None]:
        """Rate a few stages, the first time beside plain ones, and have CP-SAT order the best plan that is open."""
        self.left = _MOST_ACTIONS
        self.pending.extendleft([*starts, *(plain_stages(self.problem) if not self.known else ())])
        while self.left > 0 and (self.pending or self.waiting):
            if not self.pending:
                *_, stages = heappop(self.waiting)
                near = list(dict.fromkeys(neighbours(self.problem, stages)))
                self.random.shuffle(near)
                self.pending.extend(near[:_MOST_NEIGHBOURS])
                continue
            self._add(self._bare(self.pending.popleft()))
            yield
        self._order()
        yield

    def _bare(self, stages: Stages) -> Stages:
        """The stages without shares, sharded where they have to be."""
        always = self.problem.options.shard_optimizer == "always"
        return tuple(
            replace(stage, samples=(), shard="optimizer" if always and len(stage.replicas) > 1 else stage.shard)
            for stage in stages
        )

    def _add(self, stages: Stages) -> None:
        """Rate stages that are new, and propose their best plan."""
        most = max(len(stage.replicas) for stage in stages)
        if stages in self.known or most > min(self.size, self.problem.most_replicas):
            return
        self.known.add(stages)
        try:
            found = self._best(stages)
        except (PlanError, ValueError):  # a cost that was not measured, or a route that is not there
            return
        heappush(self.waiting, (FAR if found is None else found[0], len(self.known), stages))
        if found is None:
            return
        heappush(self.rated, (found[0], len(self.known), found[1]))
        if self._is_better(found[0]) and verify(self.problem, found[1]).passed:
            self.run.propose(found[1], source=self.name)

    def _is_better(self, objective: int) -> bool:
        return self.run.incumbent_ns is None or objective < self.run.incumbent_ns

    def _best(self, stages: Stages) -> Rated | None:
        """The best plan of stages: a common order first, then shares, then how each stage runs backward."""
        shared = self._with_shortest(stages)
        if shared is None:
            return None
        backwards = BACKWARDS if self.problem.options.split_backward else BACKWARDS[:1]
        directions = [((each,) * len(stages), warmup) for each, warmup in product(backwards, WARMUPS)]
        best = self._least([(shared, *direction) for direction in directions])
        chosen, before = (shared, *directions[0]) if best is None else best[1:], FAR + 1
        while before > (FAR if best is None else best[0]):  # a change helps others
            before = FAR if best is None else best[0]
            for number in range(len(stages)):
                best = self._least([*self._beside(chosen, number, backwards=backwards)], best)
                chosen = chosen if best is None else best[1:]
        return None if best is None else (best[0], self._plan(chosen))

    def _beside(self, chosen: Choice, number: int, *, backwards: Sequence[Backward]) -> Iterator[Choice]:
        """A choice with other shares of a stage, all or those beside its own, or run backward in another way."""
        stages, kinds, warmup = chosen
        replicas = len(stages[number].replicas)
        if replicas > 1:
            own = stages[number].samples or (self.size // replicas,) * replicas
            shares = compositions(self.size, replicas) if comb(self.size - 1, replicas - 1) <= MOVES else ()
            for samples in shares or islice(moved_samples(own), MOVES):
                yield with_samples(stages, {number: samples}), kinds, warmup
        for each in backwards:
            yield stages, (*kinds[:number], each, *kinds[number + 1 :]), warmup

    def _least(self, choices: Sequence[Choice], known: _RatedChoice | None = None) -> _RatedChoice | None:
        """The choice of the least objective among those that fit into memory, and one that is known."""
        found = known
        for choice in choices:
            if self.left <= 0 or self.run.seconds_left <= 0:
                break
            objective = self._objective_ns(self._plan(choice))
            if objective is not None and (found is None or objective < found[0]):
                found = (objective, *choice)
        return found

    def _plan(self, choice: Choice) -> Plan:
        stages, backwards, warmup = choice
        has_weights = [self.problem.profile.trains(stage.layers) for stage in stages]
        return plain_plan(self.problem, stages, has_weights=has_weights, backwards=backwards, warmup=warmup)

    def _objective_ns(self, plan: Plan) -> int | None:
        """None if the plan cannot be played, or does not fit into memory."""
        self.left -= _PLAY_ACTIONS + sum(len(device_order) for device_order in plan.schedule.values())
        return fitting_objective_ns(self.run, plan)

    def _with_shortest(self, stages: Stages) -> Stages | None:
        """Shares by which the longest action of a replica is least, stage by stage; None if some are not measured."""
        chosen = dict[int, tuple[int, ...]]()
        for number, stage in enumerate(stages):
            if len(stage.replicas) > 1:
                times = [self._times(stage, group) for group in stage.replicas]
                samples = shortest_shares(times, total=self.size)
                if samples is None:
                    return None
                chosen[number] = samples
        return with_samples(stages, chosen)

    def _times(self, stage: Stage, group: tuple[str, ...]) -> list[int | None]:
        """What a group takes for a microbatch with so many samples, from none on; None where it is not measured."""
        found: list[int | None] = [None]
        for samples in range(1, self.size + 1):
            try:
                cost = self.costs.cost_of_samples(stage, group, samples=samples)
            except ValueError:
                found.append(None)
                continue
            found.append(cost.forward_ns + cost.least_backward_ns)
        return found

    def _order(self) -> None:
        """Have CP-SAT order the best plan that it has not ordered yet, if that could beat the incumbent."""
        while self.rated:
            _, _, plan = heappop(self.rated)
            if not verify(self.problem, plan).passed:
                continue
            if order_by_cp_sat(self.run, plan, source=self.name, work=_ORDER_WORK):
                return

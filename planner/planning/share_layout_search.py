"""A best-first search over stages whose replicas take unequal shares, each with plain orders, then those of CP-SAT.

Shares begin with those of the least longest time and change one stage after the other. Whether a stage runs B, or I
and W, is decided by stage here, and by microbatch by CP-SAT.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from itertools import islice, product
from random import Random

from planner.errors import PlanError
from planner.plan import Plan, Stage
from planner.planning.cp_sat_orders import order_by_cp_sat
from planner.planning.search_state import SearchState
from planner.planning.share_layouts import (
    BACKWARDS,
    WARMUPS,
    Backward,
    Stages,
    Warmup,
    compositions,
    neighbours,
    plain_plan,
    plain_stages,
    with_samples,
)
from planner.simulate import simulate
from planner.verify import verify
from solver_models.evaluator import FAR
from solver_models.sample_shares import shortest_shares

Rated = tuple[int, Plan]
"""Objective and plan."""


class ShareLayouts:
    """Stages in the order of the best plan that is known for them; each is opened once, for its neighbours."""

    name = "unequal shares"

    def __init__(self, run: SearchState) -> None:
        self.run, self.problem, self.costs, self.params = run, run.problem, run.costs, run.params.shares
        self.size = run.problem.profile.microbatch_size or 0
        self.random = Random(run.limits.seed)
        self.known: set[Stages] = set()
        self.waiting: list[tuple[int, int, Stages]] = []
        self.rated: list[tuple[int, int, Plan]] = []
        """Plans of which CP-SAT has not ordered the actions yet, the best first."""

    def take_turn(self, starts: Iterable[Stages]) -> Iterator[None]:
        """Open a few stages, the first time beside plain ones, and have CP-SAT order the best plan that is open."""
        for stages in [*starts, *(plain_stages(self.problem) if not self.known else ())]:
            self._add(self._bare(stages))
            yield
        for _ in range(self.params.layouts):
            if self.waiting:
                *_, stages = heappop(self.waiting)
                near = list(dict.fromkeys(self._bare(each) for each in neighbours(self.problem, stages)))
                self.random.shuffle(near)
                for each in near[: self.params.neighbours]:
                    self._add(each)
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
        count = range(len(stages))
        shared = self._with_shortest(stages)
        if shared is None:
            return None
        backwards = BACKWARDS if self.problem.options.split_backward else BACKWARDS[:1]
        ways = list(product([(each,) * len(stages) for each in backwards], WARMUPS))
        best = self._least((shared, *way) for way in ways)
        for number in count:
            best = self._least(
                [(shared, *ways[0]) if best is None else best[1:], *self._shares_beside(best, shared, number)]
            ) or best
        for number in count if best is not None and len(backwards) > 1 else ():
            _, chosen, kinds, warmup = best
            others = [(*kinds[:number], each, *kinds[number + 1 :]) for each in backwards]
            best = self._least((chosen, each, warmup) for each in others) or best
        return None if best is None else (best[0], self._plan(*best[1:]))

    def _shares_beside(
        self, best: "_Choice | None", shared: Stages, number: int
    ) -> Iterator[tuple[Stages, tuple[Backward, ...], Warmup]]:
        """Other shares of a stage, a few of all there are."""
        replicas = len(shared[number].replicas)
        if replicas == 1:
            return
        stages, kinds, warmup = (shared, (BACKWARDS[0],) * len(shared), WARMUPS[0]) if best is None else best[1:]
        for samples in islice(compositions(self.size, replicas), self.params.moves):
            yield with_samples(stages, {number: samples}), kinds, warmup

    def _least(self, choices: Iterable[tuple[Stages, tuple[Backward, ...], Warmup]]) -> "_Choice | None":
        """The choice of the least objective among those that fit into memory."""
        rated = [(self._objective_ns(self._plan(*choice)), *choice) for choice in choices]
        fitting = [each for each in rated if each[0] is not None]
        return min(fitting, key=lambda each: each[0] or 0, default=None)  # type: ignore[return-value]

    def _plan(self, stages: Stages, backwards: tuple[Backward, ...], warmup: Warmup) -> Plan:
        has_weights = [self.costs.stage_cost(stage, 0).has_weight_grad for stage in stages]
        return plain_plan(self.problem, stages, has_weights=has_weights, backwards=backwards, warmup=warmup)

    def _objective_ns(self, plan: Plan) -> int | None:
        """None if the plan cannot be played, or does not fit into memory."""
        try:
            timeline = simulate(self.problem, plan, costs=self.costs)
        except (PlanError, ValueError):
            return None
        devices = self.problem.cluster.by_name
        if any(peak > devices[name].usable_bytes for name, peak in timeline.peak_bytes.items()):
            return None
        return timeline.objective_ns(self.problem.options.objective)

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
            found.append(cost.forward_ns + min(cost.backward_ns, cost.input_grad_ns + cost.weight_grad_ns))
        return found

    def _order(self) -> None:
        """Have CP-SAT order the best plan that it has not ordered yet, if that could beat the incumbent."""
        while self.rated:
            _, _, plan = heappop(self.rated)
            if verify(self.problem, plan).passed and order_by_cp_sat(self.run, plan, source=self.name):
                return


_Choice = tuple[int, Stages, tuple[Backward, ...], Warmup]
"""Objective, stages with shares, how each runs backward, and how many forwards come first."""

"""Which stages shard their weights, and how many of a device are gathered at a time, as a decision of the search.

The joint search knows whole weights only. A step looks at the incumbent and at what the joint search holds to be good,
whether it fits or not. All ranks of a plan that could gather do so, with every number of active stages, and then every
rank but one. Devices of a rank get one order, that of their first. What is better than the incumbent is proposed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice

from planner.errors import PlanError
from planner.layout.gathers import Rank
from planner.plan import Plan, Stage
from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import plan_of
from planner.simulation.simulate import simulate
from solver_models.local_search.multistart import JointSearch

_STARTS = 6
"""Candidates of the joint search that are looked at in a step."""


def make_improver(run: SearchState, search: JointSearch) -> "GatherImprover":
    """The part of the search."""
    return GatherImprover(run, search)


class GatherImprover:
    """Plans whose stages gather their weights, made from plans whose weights are whole."""

    name = "max active stages"

    def __init__(self, run: SearchState, search: JointSearch) -> None:
        self.run, self.search, self.problem = run, search, run.problem
        self.seen: set[tuple[Stage, ...]] = set()
        """Stages that were looked at, as the joint search has them."""

    @property
    def is_open(self) -> bool:
        """Whether the options leave it open, and plans are small enough to be played one by one."""
        return self.problem.options.max_active_stages is not None and self.problem.may_shard and not self.run.is_large

    def is_due(self, rounds: int) -> bool:
        """In every round, where it is open."""
        del rounds
        return self.is_open

    def close(self) -> None:
        """There is nothing to note."""

    def take_step(self) -> Iterator[None]:
        """The best way to gather of plans that were not looked at yet."""
        for plan in self._starts():
            if plan.stages not in self.seen:
                self.seen.add(plan.stages)
                self._propose(gathering_plans(plan, most=self.problem.options.max_active_stages or 0))
                yield

    def _starts(self) -> Iterator[Plan]:
        if self.run.plan is not None and self.run.plan.max_active_stages is None:
            yield self.run.plan
        yield from self.run.played
        for candidate in islice(chain(self.search.pool, self.search.elite, self.search.starts), _STARTS):
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


def gathering_plans(plan: Plan, *, most: int) -> Iterator[Plan]:
    """The plan with gathered stages on all ranks that could have them, and on all but one, with 1 ... `most` active."""
    ranks = possible_ranks(plan)
    chosen = [ranks, *(ranks[:n] + ranks[n + 1 :] for n in range(len(ranks) if len(ranks) > 1 else 0))]
    for some in filter(None, chosen):
        for active in range(1, min(most, max(len(rank.stages) for rank in some)) + 1):
            yield with_gathered(plan, some, max_active_stages=active)


def possible_ranks(plan: Plan) -> list[Rank]:
    """Devices that hold the same replicated stages, each alone: in the order of their first stages."""
    held: dict[str, list[int]] = {}
    for number, stage in enumerate(plan.stages):
        for device in (device for group in stage.groups for device in group):
            held.setdefault(device, []).append(number)
    found: dict[tuple[str, ...], Rank] = {}
    for stage in plan.stages if not plan.dealing else ():
        devices = tuple(sorted(device for group in stage.replicas for device in group))
        is_narrow = all(len(group) == 1 for group in stage.replicas) and not (stage.is_split or stage.samples)
        if is_narrow and len(devices) > 1 and len({tuple(held[device]) for device in devices}) == 1:
            found[devices] = Rank(devices, tuple(held[devices[0]]))
    return list(found.values())


def with_gathered(plan: Plan, ranks: Iterable[Rank], *, max_active_stages: int) -> Plan:
    """The plan with the stages of some ranks gathered, the other replicated ones sharding the optimizer's state."""
    chosen = list(ranks)
    gathered = {number for rank in chosen for number in rank.stages}
    orders = {device: plan.schedule[rank.devices[0]] for rank in chosen for device in rank.devices}
    stages = [
        replace(stage, shard="weights" if number in gathered else "optimizer") if len(stage.replicas) > 1 else stage
        for number, stage in enumerate(plan.stages)
    ]
    return replace(
        plan,
        stages=tuple(stages),
        schedule={device: orders.get(device, order) for device, order in plan.schedule.items()},
        max_active_stages=max_active_stages,
        evidence=None,
    )

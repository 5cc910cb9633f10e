"""Unequal shares of the samples as a decision of the search, where the options allow them.

The joint search takes equal shares. A step looks at the incumbent, at what the joint search holds to be good and, the
first time, at the baselines. Replicas get samples so that the longest time of a device per microbatch is least
(`solver_models.sample_shares`, exact): stage by stage, and for all stages with equally many replicas at once. Then
single samples are moved. Orders stay as they are, and only what is better than the incumbent is proposed, so that a
plan is never worse than the one with equal shares that it began from.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random

from planner.actions import Action, Kind
from planner.decisions.unequal_shares.option import DECISION
from planner.decisions.unequal_shares.share_layout_search import MOVES, ShareLayouts
from planner.decisions.unequal_shares.share_layouts import with_samples
from planner.plan import Plan, Stage
from planner.planning.improvers.improver import DecisionImprover, overfull, played
from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import plan_of
from solver_models.local_search.multistart import JointSearch
from solver_models.sample_shares import shortest_shares

_STARTS = 4
"""Good candidates of the joint search whose shares are looked for in a step."""
_TOGETHER_SHARE = 0.5
"""How often all stages with the same samples are changed alike."""

Samples = tuple[int, ...]


class ShareImprover(DecisionImprover):
    """Plans with unequal shares, made from plans with equal ones."""

    name, finds_alone = DECISION.part, True

    def __init__(self, run: SearchState, search: JointSearch) -> None:
        self.run, self.search = run, search
        self.problem, self.costs = run.problem, run.costs
        self.size = run.problem.profile.microbatch_size or 0
        self.layouts = ShareLayouts(run)
        self.step = 0
        self.seen: set[tuple[Stage, ...]] = set()
        """Stages of which the best shares were looked for."""

    @property
    def is_open(self) -> bool:
        """Whether the options leave it open, and plans are small enough to be played one by one."""
        return self.problem.options.unequal_shares and self.size > 1 and not self.run.is_large

    def take_step(self) -> Iterator[None]:
        """The best shares of plans that were not looked at yet, then moves of single samples."""
        self.step += 1
        for plan in self._starts():
            if plan.stages not in self.seen:
                self.seen.add(plan.stages)
                self.propose_best(self._shared(plan))
                yield
        if self.run.plan is not None and any(stage.samples for stage in self.run.plan.stages):
            self.propose_best(self._moved(self.run.plan))
            yield
        plans = [plan for plan in self._starts() if not any(stage.is_split for stage in plan.stages)]
        yield from self.layouts.take_step(plan.stages for plan in plans)

    def _starts(self) -> Iterator[Plan]:
        if self.run.plan is not None:
            yield self.run.plan
        if self.step == 1:
            spread = self._spread()
            yield from [*self.run.played, *([] if spread is None else [spread])]
        for candidate in [each for each in self.search.pool if each.is_feasible][:_STARTS]:
            yield plan_of(self.problem, self.search.searcher, candidate=candidate)

    def _shared(self, plan: Plan) -> Iterator[Plan]:
        """The plan with the best shares of its stages together, as many as have equally many replicas, and apart."""
        numbers: dict[int, list[int]] = {}
        for number, stage in enumerate(plan.stages):
            if 1 < len(stage.replicas) <= self.size:
                numbers.setdefault(len(stage.replicas), []).append(number)
        for together in (True, False):
            chosen: Plan | None = plan
            for same in numbers.values():
                for group in [same] if together else [[number] for number in same]:
                    chosen = None if chosen is None else self._with_best(chosen, group)
            if chosen is not None and numbers:
                yield chosen

    def _with_best(self, plan: Plan, numbers: list[int]) -> Plan | None:
        """The plan with one choice of samples for some stages, by which the longest load of a device is least.

        What memory does not allow is forbidden, and chosen again; a replica holds the more the more samples it has.
        """
        times = self._times(plan.stages, numbers)
        while (samples := shortest_shares(times, total=self.size)) is not None:
            chosen = _with_samples(plan, dict.fromkeys(numbers, samples))
            timeline = played(self.run, chosen)
            over = set[str]() if timeline is None else overfull(self.run, timeline)
            full = [k for k in range(len(samples)) if any(over & {*plan.stages[n].replicas[k]} for n in numbers)]
            if not full:
                return chosen
            for replica in full:
                times[replica][samples[replica] :] = [None] * (self.size + 1 - samples[replica])
        return None

    def _times(self, stages: tuple[Stage, ...], numbers: list[int]) -> list[list[int | None]]:
        """[replica][samples] the longest load of its devices per microbatch, other stages of theirs included."""
        fixed = Counter[str]()
        for number, stage in enumerate(stages):
            for replica, group in enumerate(() if number in numbers else stage.replicas):
                time = self._time(stage, replica, samples=None)
                fixed.update(dict.fromkeys(group, time or 0))
        rows = []
        for replica in range(len(stages[numbers[0]].replicas)):
            row: list[int | None] = [None]
            for samples in range(1, self.size + 1):
                loads = Counter[str]()
                for number in numbers:
                    time = self._time(stages[number], replica, samples=samples)
                    if time is None:
                        break
                    loads.update(dict.fromkeys(stages[number].replicas[replica], time))
                else:
                    row.append(max(load + fixed[device] for device, load in loads.items()))
                    continue
                row.append(None)
            rows.append(row)
        return rows

    def _time(self, stage: Stage, replica: int, *, samples: int | None) -> int | None:
        """What a replica takes for a microbatch with so many samples, or with its own; None if not measured."""
        try:
            if samples is None:
                cost = self.costs.stage_cost(stage, replica)
            else:
                cost = self.costs.cost_of_samples(stage, stage.replicas[replica], samples=samples)
        except ValueError:
            return None
        return cost.forward_ns + cost.least_backward_ns

    def _spread(self) -> Plan | None:
        """All layers on all devices that help, each with as many samples as it can take; None where that may not be."""
        options, profile = self.problem.options, self.problem.profile
        names = [device.name for device in self.problem.cluster.devices]
        whole = Stage(layers=profile.topological_order, replicas=tuple((name,) for name in names))
        if options.pinned or options.partition is not None or options.recompute or options.shard_optimizer == "always":
            return None
        times = self._times((whole,), [0])
        for row in times:
            row[0] = 0 if options.idle_devices else None
        samples = shortest_shares(times, total=self.size)
        taken = [(name, count) for name, count in zip(names, samples or (), strict=False) if count]
        if not 1 < len(taken) <= self.problem.most_replicas:
            return None
        stage = replace(whole, replicas=tuple((name,) for name, _ in taken))
        has_weights = self.costs.cost_of_samples(whole, (names[0],), samples=self.size).has_weight_grad
        kinds: tuple[Kind, ...] = ("F", "B") if has_weights else ("F", "I")
        order = tuple(Action(kind, 0, m) for m in range(self.problem.num_microbatches) for kind in kinds)
        plan = Plan(problem=self.problem.reference(), stages=(stage,), schedule={name: order for name, _ in taken})
        return _with_samples(plan, {0: tuple(count for _, count in taken)})

    def _moved(self, plan: Plan) -> Iterator[Plan]:
        """The plan with a sample of a stage, or of all stages with the same samples, moved to another replica."""
        rng = Random(self.run.limits.seed * 1_000_003 + self.step)
        chosen = [number for number, stage in enumerate(plan.stages) if stage.samples]
        for _ in range(MOVES):
            number = rng.choice(chosen)
            own = list(plan.stages[number].samples)
            giver, taker = rng.sample(range(len(own)), 2)
            own[giver] -= 1
            own[taker] += 1
            if own[giver]:
                same = [n for n in chosen if plan.stages[n].samples == plan.stages[number].samples]
                moved = same if rng.random() < _TOGETHER_SHARE else [number]
                yield _with_samples(plan, dict.fromkeys(moved, tuple(own)))


make_improver = ShareImprover


def _with_samples(plan: Plan, samples: dict[int, Samples]) -> Plan:
    """The plan with these samples for some stages; equal ones are not stated."""
    return replace(plan, stages=with_samples(plan.stages, samples), evidence=None)

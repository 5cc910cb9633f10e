"""Stages beside given ones, with any numbers of replicas, and plain orders for them.

Replicas whose number does not divide the microbatch are only there with unequal shares, so that no other part of the
search knows them. Each neighbour differs by one move; what the options forbid is left to the verifier.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations
from typing import Literal

from planner.actions import Action
from planner.plan import Plan, Stage
from planner.problem import Problem

Stages = tuple[Stage, ...]

Backward = Literal["B", "IW", "I..W"]
"""How a stage runs backward: in one, W after its I, or every W after the last I of its device."""

BACKWARDS: tuple[Backward, ...] = ("B", "IW", "I..W")

Warmup = Literal["least", "twice", "all"]
"""Forwards before the first backward: as many as stages follow, twice as many, or all."""

WARMUPS: tuple[Warmup, ...] = ("least", "twice", "all")


def plain_stages(problem: Problem) -> Iterator[Stages]:
    """All layers on the first device, and even cuts for every number of devices."""
    names, devices = problem.profile.topological_order, [device.name for device in problem.cluster.devices]
    for count in range(1, min(len(names), len(devices)) + 1):
        borders = [len(names) * number // count for number in range(count + 1)]
        yield tuple(
            Stage(layers=names[a:b], replicas=((devices[number],),)) for number, (a, b) in enumerate(pairwise(borders))
        )


def neighbours(problem: Problem, stages: Stages) -> Iterator[Stages]:
    """Stages that differ by a replica, a swap of devices, a border, a cut, or whether a stage recomputes."""
    used = {name for stage in stages for group in stage.replicas for name in group}
    idle: list[tuple[str, ...]] = [(device.name,) for device in problem.cluster.devices if device.name not in used]
    yield from _with_swaps(stages, idle)
    if problem.options.max_stages_per_device > 1:
        idle += dict.fromkeys(group for stage in stages for group in stage.replicas)
    yield from _with_other_replicas(stages, idle)
    if sum((stage.layers for stage in stages), ()) == problem.profile.topological_order:
        yield from _with_other_borders(stages)
        yield from _with_cuts(stages, idle)
    if problem.options.recompute and not problem.options.recompute_layers:
        for number, stage in enumerate(stages):
            yield _changed(stages, {number: replace(stage, recompute=not stage.recompute)})


def _changed(stages: Sequence[Stage], new: Mapping[int, Stage]) -> Stages:
    """The stages with some others in their places; shares are to be chosen anew."""
    found = [new.get(number, stage) for number, stage in enumerate(stages)]
    return tuple(
        replace(stage, samples=(), shard="none") if len(stage.replicas) == 1 else replace(stage, samples=())
        for stage in found
    )


def _with_replicas(stage: Stage, replicas: Sequence[tuple[str, ...]]) -> Stage:
    return replace(stage, replicas=tuple(replicas), samples=())


def _with_other_replicas(stages: Stages, idle: Sequence[tuple[str, ...]]) -> Iterator[Stages]:
    """A replica joins, leaves or goes to another stage; `idle` are those that may hold one stage more."""
    for number, stage in enumerate(stages):
        for group in [each for each in idle if each not in stage.replicas]:
            yield _changed(stages, {number: _with_replicas(stage, [*stage.replicas, group])})
        for group in stage.replicas if len(stage.replicas) > 1 else ():
            fewer = _with_replicas(stage, [each for each in stage.replicas if each != group])
            yield _changed(stages, {number: fewer})
            for other, taker in enumerate(stages):
                if other != number and group not in taker.replicas:
                    yield _changed(stages, {number: fewer, other: _with_replicas(taker, [*taker.replicas, group])})


def _with_swaps(stages: Stages, idle: Sequence[tuple[str, ...]]) -> Iterator[Stages]:
    """Two groups change places, or an idle device takes one."""
    groups = list(dict.fromkeys(group for stage in stages for group in stage.replicas))
    for one, two in [*combinations(groups, 2), *((group, other) for group in groups for other in idle)]:
        swap = {one: two, two: one}
        swapped = [_with_replicas(stage, [swap.get(each, each) for each in stage.replicas]) for stage in stages]
        yield _changed(swapped, {})


def _with_other_borders(stages: Stages) -> Iterator[Stages]:
    """A layer goes over the border of two stages, or all do."""
    for number, (first, second) in enumerate(pairwise(stages)):
        layers = first.layers + second.layers
        for border in {len(first.layers) - 1, len(first.layers) + 1} - {0, len(layers)}:
            new = {number: replace(first, layers=layers[:border]), number + 1: replace(second, layers=layers[border:])}
            yield _changed(stages, new)
        groups = tuple(dict.fromkeys([*first.replicas, *second.replicas]))
        for replicas in (groups, first.replicas, second.replicas):
            joined = replace(first, layers=layers, replicas=replicas, recompute=first.recompute)
            yield _changed((*stages[:number], joined, *stages[number + 2 :]), {})


def _with_cuts(stages: Stages, idle: Sequence[tuple[str, ...]]) -> Iterator[Stages]:
    """A stage becomes two, on its own replicas or with another device for one of them."""
    for number, stage in enumerate(stages):
        for border in range(1, len(stage.layers)):
            shares = [(stage.replicas[:place], stage.replicas[place:]) for place in range(1, len(stage.replicas))]
            shares += [(stage.replicas, (group,)) for group in idle] + [((group,), stage.replicas) for group in idle]
            for first, second in shares:
                parts = (
                    replace(stage, layers=stage.layers[:border], replicas=first),
                    replace(stage, layers=stage.layers[border:], replicas=second),
                )
                yield _changed((*stages[:number], *parts, *stages[number + 1 :]), {})


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as so many whole numbers from 1."""
    for borders in combinations(range(1, total), parts - 1):
        yield tuple(b - a for a, b in pairwise((0, *borders, total)))


def moved_samples(samples: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The samples with one moved from a replica, which keeps one at least, to another."""
    for giver, taker in permutations(range(len(samples)), 2):
        if samples[giver] > 1:
            yield tuple(n - (k == giver) + (k == taker) for k, n in enumerate(samples))


def with_samples(stages: Stages, samples: Mapping[int, tuple[int, ...]]) -> Stages:
    """The stages with these samples for some of them; equal ones are not stated."""
    return tuple(
        replace(stage, samples=samples[number] if len(set(samples[number])) > 1 else ()) if number in samples else stage
        for number, stage in enumerate(stages)
    )


def plain_plan(
    problem: Problem,
    stages: Stages,
    *,
    has_weights: Sequence[bool],
    backwards: Sequence[Backward],
    warmup: Warmup,
) -> Plan:
    """The stages in turns of forwards and backwards, on devices of several stages stage by stage.

    `has_weights`, `backwards`: by stage.
    """
    held: dict[str, list[int]] = {}
    for number, stage in enumerate(stages):
        for name in dict.fromkeys(name for group in stage.replicas for name in group):
            held.setdefault(name, []).append(number)
    schedule = {
        name: _order(problem, numbers, count=len(stages), has_weights=has_weights, backwards=backwards, warmup=warmup)
        for name, numbers in held.items()
    }
    return Plan(problem=problem.reference(), stages=stages, schedule=schedule)


def _order(
    problem: Problem,
    numbers: Sequence[int],
    *,
    count: int,
    has_weights: Sequence[bool],
    backwards: Sequence[Backward],
    warmup: Warmup,
) -> tuple[Action, ...]:
    """The order of a device that holds some of `count` stages."""
    microbatches = range(problem.num_microbatches)
    late = [Action("W", s, m) for s in numbers for m in microbatches if has_weights[s] and backwards[s] == "I..W"]

    def back(stage: int, microbatch: int) -> list[Action]:
        if not has_weights[stage]:
            return [Action("I", stage, microbatch)]
        kinds = {"B": "B", "IW": "IW", "I..W": "I"}[backwards[stage]]
        return [Action(kind, stage, microbatch) for kind in kinds]  # type: ignore[arg-type]

    if len(numbers) > 1:
        forwards = [Action("F", s, m) for s in numbers for m in microbatches]
        return (*forwards, *(each for s in reversed(numbers) for m in microbatches for each in back(s, m)), *late)
    stage, last = numbers[0], problem.num_microbatches
    ahead = min(last, {"least": count - stage, "twice": 2 * (count - stage) - 1, "all": last}[warmup])
    found = [Action("F", stage, m) for m in range(ahead)]
    for m in microbatches:
        found += back(stage, m)
        found += [Action("F", stage, ahead + m)] if ahead + m < last else []
    return (*found, *late)

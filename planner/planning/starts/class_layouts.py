"""Stages that the classes bound leaves possible close to its value, for the search to begin with."""

import math
from random import Random

from planner.bounds.classes.classes_bound import Sequence, applies_to, is_exact
from planner.bounds.classes.device_classes import Classes, propose
from planner.bounds.heaviest_path import Trunk
from planner.bounds.minimum_costs import Least
from planner.bounds.order.schedule_bound import HeadsAndTails, bound_of_times
from planner.layout.costs import CostModel
from planner.plan import Stage
from planner.problem import Problem

_SLACKS = (0.003, 0.01, 0.02)
"""How far above the bound stages are looked for, as parts of it."""
_LAYOUTS = 40
"""How many of all ways through the stages are kept, those with the least schedule bounds."""
_MIN_PATHS = 20
"""Ways through the stages that are rated for every slack, at least."""
_MAX_PATHS = 50
"""Ways that are rated for every slack, at most."""
_PATH_ACTIONS = 100_000
"""Within these limits, as many ways as have so many actions in all."""

NEAR_BOUND = "stages near the bound"
"""What they are called among improvers: looking for them, and a first try of their orders."""

_Path = tuple[tuple[int, int, int], ...]
"""Start, end and class of every stage."""


def class_layouts(
    problem: Problem,
    costs: CostModel,
    *,
    value_ns: int,
    seed: int,
    figures: float = math.inf,
) -> list[tuple[Stage, ...]]:
    """Stages on devices whose schedule bounds are least among those tried, the best first.

    `value_ns`: a lower bound on all plans. `figures`: of the classes bound, to look at in all, roughly. There are none
    where the classes bound does not hold, for graphs with layers beside the trunk, and where stages or devices of
    layers are decided.
    """
    least, options = Least(problem, costs), problem.options
    is_decided = options.pinned or options.partition is not None
    if is_decided or options.has_few_bounds or not applies_to(least):
        return []
    trunk, rng = Trunk(least), Random(seed)
    if not trunk.is_everything:
        return []
    classes = Classes(trunk, propose(trunk)[0])
    rated: dict[tuple[Stage, ...], int] = {}
    for slack in _SLACKS:
        deadline = int(value_ns * (1 + slack)) - least.optimizer_ns
        if deadline <= 0 or not is_exact(classes, deadline):
            continue
        sequence = Sequence(classes, deadline, most_figures=figures)
        is_out = sequence.is_out_of_reach()
        figures -= sequence.cost
        for path in () if is_out else sorted(_paths(sequence, rng=rng)):
            stages = _stages(classes, path)
            if stages not in rated:
                rated[stages] = bound_of_times(HeadsAndTails.of(problem, stages, costs=costs))
    return sorted(rated, key=lambda stages: rated[stages])[:_LAYOUTS]


def _paths(sequence: Sequence, *, rng: Random) -> set[_Path]:
    """Random ways through what is possible by a deadline."""
    classes = sequence.classes
    into: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for steps in sequence.steps:
        for end, after in zip(steps.stages.ends.tolist(), steps.after.tolist(), strict=True):
            into.setdefault((end, after), []).append((steps.start, steps.number))
    last = [place for place in into if place[0] == sequence.size]
    num_actions = 3 * classes.count * sum(len(devices) for devices in classes.members)
    num_paths = max(_MIN_PATHS, min(_MAX_PATHS, _PATH_ACTIONS // num_actions))
    paths = (_path(classes, into, place=rng.choice(last), rng=rng) for _ in range(num_paths if last else 0))
    return {path for path in paths if path}


def _path(
    classes: Classes, into: dict[tuple[int, int], list[tuple[int, int]]], *, place: tuple[int, int], rng: Random
) -> _Path:
    """A random way back from a boundary and state to the beginning; empty where it ends before."""
    path: list[tuple[int, int, int]] = []
    while place[0]:
        if place not in into:
            return ()
        start, number = rng.choice(into[place])
        path.append((start, place[0], number))
        place = start, place[1] - classes.unit[number]
    return tuple(path[::-1]) if place[1] == 0 else ()


def _stages(classes: Classes, path: _Path) -> tuple[Stage, ...]:
    """The stages of a way, on the devices of every class in their order."""
    free = [[device.name for device in devices] for devices in classes.members]
    names = [classes.least.layers[layer].name for layer in classes.trunk.path]
    return tuple(
        Stage(layers=tuple(names[start:end]), replicas=((free[number].pop(0),),)) for start, end, number in path
    )

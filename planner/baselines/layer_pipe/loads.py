"""Loads of processors: layers whole and in a row, as PipeDream cuts them, or every task of a layer on its own.

A layer has three tasks, F, I and W, and I may be cut into two exact halves. `Work` gives their cost per layer, in any
unit (multiply-accumulates, nanoseconds).
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from planner.baselines.applicability import require_time
from planner.clock import HasTime, always

Part = Literal["F", "I", "I'", "W"]
"""I is the first half of the input gradient, I' the second; without halves I is all of it."""


class Task(NamedTuple):
    """A part of a layer that one processor does."""

    part: Part
    layer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Times of every layer, per microbatch."""

    forward: tuple[int, ...]
    input_grad: tuple[int, ...]
    """0 where nothing before the layer is trained, as for the first one."""
    weight_grad: tuple[int, ...]

    @property
    def layers(self) -> list[int]:
        """F + I + W of each layer."""
        return [sum(each) for each in zip(self.forward, self.input_grad, self.weight_grad, strict=True)]

    def tasks(self, *, halves: bool) -> dict[Task, int]:
        """The cost of every task, doubled, so that halves are whole numbers."""
        found: dict[Task, int] = {}
        for layer, (f, i, w) in enumerate(zip(self.forward, self.input_grad, self.weight_grad, strict=True)):
            found[Task("F", layer)] = 2 * f
            found[Task("I", layer)] = i if halves else 2 * i
            if halves:
                found[Task("I'", layer)] = i
            found[Task("W", layer)] = 2 * w
        return found


def place_freely(
    work: Work, num_processors: int, *, halves: bool = True, has_time: HasTime = always
) -> dict[Task, int]:
    """A processor for every task, the largest load small: longest tasks first, then moves and exchanges.

    At most 4/3 of the least possible (Graham), and in practice within a percent of the even share.
    """
    costs = work.tasks(halves=halves)
    loads = [0] * num_processors
    processor_of: dict[Task, int] = {}
    for task in sorted(costs, key=lambda each: (-costs[each], each)):
        processor_of[task] = min(range(num_processors), key=lambda processor: (loads[processor], processor))
        loads[processor_of[task]] += costs[task]
    while _improve(costs, processor_of, loads=loads):
        require_time(has_time)
    return processor_of


def _improve(costs: dict[Task, int], processor_of: dict[Task, int], *, loads: list[int]) -> bool:
    """Take a task off the fullest processor, in exchange for a lesser one or none, if both stay below its load."""
    full = loads.index(max(loads))
    own = [task for task in costs if processor_of[task] == full]
    best: tuple[int, Task, Task | None, int] | None = None
    for task in own:
        for other in [None, *(each for each in costs if processor_of[each] != full)]:
            targets = [processor_of[other]] if other else [p for p in range(len(loads)) if p != full]
            for target in targets:
                moved = costs[task] - (costs[other] if other else 0)
                left = max(loads[full] - moved, loads[target] + moved)
                if moved > 0 and left < loads[full] and (best is None or left < best[0]):
                    best = left, task, other, target
    if best is None:
        return False
    _, task, other, target = best
    moved = costs[task] - (costs[other] if other else 0)
    processor_of[task] = target
    if other:
        processor_of[other] = full
    loads[full] -= moved
    loads[target] += moved
    return True

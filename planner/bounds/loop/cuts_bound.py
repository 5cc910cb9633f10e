"""The cuts bound: no cut of a chain into the stages of a loop ends in time, by cases of how many layers they hold."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy

from planner.bounds.counting import lost_at_ends
from planner.bounds.loop import loop_bound
from planner.bounds.loop.loop_cases import ActionsLeft, is_refuted
from planner.bounds.loop.loop_cuts import LoopCuts, WindowTables
from planner.bounds.loop.loop_layers import LoopLayers
from planner.bounds.loop.loop_paths import cross_out
from planner.bounds.loop.loop_shapes import LoopShape, hops_ns, open_kinds, shapes_of
from planner.bounds.minimum_costs import Least
from planner.clock import HasTime, always
from planner.errors import refused_certificate

MAX_EFFORT = 10**8
"""Actions that may be played to refute cases, of one width and number of replicas."""

MAX_LAYERS = 256
"""Of longer chains no tables are made."""

_MAX_STAGES = 5_000
"""Stages of all loops that there are, of all widths and replicas."""

_FINEST = 400
"""Values that differ by less than such a part of them are not distinguished."""

_COARSE = 100
"""The same for what paths alone deny."""

_ROUNDS = 4
"""Times the effort for a deadline that all deadlines may take."""


class _KindCuts:
    """The cuts of one width and number of replicas."""

    def __init__(self, layers: LoopLayers) -> None:
        self.layers, self.least = layers, layers.least
        time, edges = layers.time, self.least.problem.profile.edges
        self.tables = WindowTables(numpy.stack([time.forward, time.backward]))
        self.total = numpy.sort(time.total)[::-1]
        self.lost = lost_at_ends(self.least, time)
        self.all_return = all(edge.has_gradient for edge in edges)
        self.overhead = layers.kind.replicas * numpy.array(self.least.overhead)
        self._alone = cache(WindowTables(time.total[None]).alone)
        self._extra = cache(lambda shape: layers.least_extra(shape.flying(layers.least.problem.num_microbatches)))

    def is_out_of_reach(self, deadline: int, *, effort: ActionsLeft) -> bool:
        """Whether no plan of the kind ends within `deadline` (without the optimizer)."""
        shapes = shapes_of(self.least, self.layers.kind)
        questions = (each for shape in shapes for each in self._questions(shape, deadline))
        return all(self._is_out(question, effort=effort) for question in questions)

    def _questions(self, shape: LoopShape, deadline: int) -> Iterator[LoopCuts]:
        """One for every number of stages per rank."""
        least, replicas, count = self.least, shape.kind.replicas, self.least.problem.num_microbatches
        hops = (0, 0) if shape.ranks == 1 else hops_ns(least, replicas)
        travel = replicas * sum(hops) * numpy.arange(shape.ranks)
        time = (replicas * deadline - self.lost[: shape.ranks] - travel) // count
        for chunks in shape.numbers_of_chunks(least):
            yield LoopCuts(
                ranks=shape.ranks,
                chunks=chunks,
                count=count,
                tables=self.tables,
                alone=self._alone(shape.ranks * chunks),
                total=self.total,
                extra=self._extra(shape),
                rooms=time - chunks * int(self.overhead.sum()),
                deadline=replicas * deadline,
                all_return=self.all_return,
                overhead=self.overhead,
                hops=(replicas * hops[0], replicas * hops[1]),
            )

    def _is_out(self, question: LoopCuts, *, effort: ActionsLeft) -> bool:
        fillings = question.fillings()
        if fillings is None or (all(fillings) and not self.all_return):
            return False
        if all(fillings):
            fillings = cross_out(question, fillings, deadline=question.deadline, effort=effort)
        if all(fillings) and question.num_actions <= effort.left:
            return is_refuted(question, question.deadline, effort=effort, fillings=fillings)
        return not all(fillings)


class _AllCuts:
    """The cuts of every width and number of replicas."""

    def __init__(self, kinds: list[LoopLayers], *, effort: int) -> None:
        self.kinds, self.effort = [_KindCuts(layers) for layers in kinds], effort

    def is_out_of_reach(self, deadline: int, *, effort: ActionsLeft | None = None) -> bool:
        """Whether no plan at all ends within `deadline` (without the optimizer).

        `effort`: None: all of it, with paths and then without, as certificates were made once.
        """
        if deadline < 0:
            return True
        efforts = (ActionsLeft(self.effort), ActionsLeft(self.effort, for_paths=0)) if effort is None else (effort,)
        return any(all(kind.is_out_of_reach(deadline, effort=left) for kind in self.kinds) for left in efforts)


def applies_to(least: Least) -> bool:
    """Stages stand in a loop, and there are neither too many layers nor too many loops."""
    if not loop_bound.applies_to(least) or len(least.layers) > MAX_LAYERS:
        return False
    shapes = [shape for layers in open_kinds(least) for shape in shapes_of(least, layers.kind)]
    return 0 < sum(shape.ranks * sum(shape.numbers_of_chunks(least)) for shape in shapes) <= _MAX_STAGES


def raise_bound(
    least: Least, start: int, *, reached: int | None = None, effort: int, has_time: HasTime = always
) -> tuple[int, dict[str, Any]] | None:
    """A value above `start` that is no plan's, by cases that take up to so much effort for each deadline; or None.

    `reached`: what a plan takes; None: twice the start. Optimizer not counted.
    """
    cuts, total = _AllCuts(open_kinds(least), effort=effort), _ROUNDS * effort
    low, high = start, 2 * start if reached is None else reached
    while high - low > max(1, low // _COARSE) and has_time():  # by paths alone
        middle = (low + high) // 2
        is_out = cuts.is_out_of_reach(middle, effort=ActionsLeft(0, for_paths=effort))
        low, high = (middle, high) if is_out else (low, middle)
    high, middle = (2 * start, low + 1) if reached is None else (reached, reached - 1)
    while middle > low and total > 0 and has_time():
        spent = ActionsLeft(effort)
        is_out = cuts.is_out_of_reach(middle, effort=spent)
        total -= 2 * effort - max(spent.left, 0) - spent.for_paths
        low, high = (middle, high) if is_out else (low, middle)
        middle = low + ((high - low) // 3 if high - low > max(1, low // _FINEST) else 0)
    return (low + 1, {"effort": effort}) if low > start else None


def read(least: Least, certificate: Mapping[str, Any]) -> _AllCuts:
    """The cuts with the effort that a certificate names; raises ValueError if it is none."""
    effort = certificate["effort"]
    if type(effort) is not int or not 0 <= effort <= MAX_EFFORT:
        raise refused_certificate(f"effort = {str(effort)[:60]!r} is not an integer from 0 to {MAX_EFFORT}")
    return _AllCuts(open_kinds(least), effort=effort)

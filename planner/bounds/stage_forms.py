"""The forms a stage may have, which differ in its width and in whether it recomputes, and what each costs at least."""

from dataclasses import dataclass

import numpy

from planner.bounds.heaviest_path import Trunk
from planner.bounds.minimum_costs import Integers, Least, prefix_sums, recomputes_by_stage
from planner.layout.costs import LayerWork


@dataclass(frozen=True, slots=True, kw_only=True)
class StageForm:
    """Prefix sums over the trunk's layers, each at the least that it costs in a stage of this form."""

    width: int
    """Devices that share the stage's layers."""
    forward: Integers
    """F, in nanoseconds of all replicas; so are the next two."""
    returning: Integers
    """The shortest action that sends the gradient on, with what it recomputes."""
    backward: Integers
    """All of the backward pass, with what it recomputes."""
    held: Integers
    """Bytes that F leaves on a device for the backward pass."""
    state: Integers
    """Resident bytes on a device."""
    excess: Integers
    """Weighted device time of a microbatch beyond the least in any form."""
    lacking: Integers
    """Layers that have no costs at this width: no stage of the form holds one."""

    @property
    def work(self) -> int:
        """Nanoseconds of a microbatch in the whole trunk."""
        return int(self.forward[-1] + self.backward[-1])


def least_form(trunk: Trunk) -> StageForm:
    """Every sum at the least of any width and kind; a stage takes as many slots as it has replicas."""
    none = numpy.zeros_like(trunk.forward)
    return StageForm(
        width=1, forward=trunk.forward, returning=trunk.returning, backward=trunk.backward,
        held=trunk.held, state=trunk.state, excess=none, lacking=none,
    )  # fmt: skip


def stage_forms(trunk: Trunk, weights: dict[str, int]) -> list[StageForm]:
    """Every form; none where nothing tells stages apart.

    `weights`: of the device types' time. With split placement F, I and W of a layer may differ in width.
    """
    least = trunk.least
    options, may_recompute = least.problem.options, recomputes_by_stage(least.problem.options)
    if options.split_placement or (least.widths == (1,) and not may_recompute):
        return []
    kinds = (False, True) if may_recompute else (None,)
    return [_form(trunk, weights, width=width, recomputes=kind) for width in least.widths for kind in kinds]


def _form(trunk: Trunk, weights: dict[str, int], *, width: int, recomputes: bool | None) -> StageForm:
    """`recomputes`: None where that is decided by layer or microbatch, which costs nothing here."""
    least, cheapest = trunk.least, trunk.least.weighted_work(weights)

    def whole(work: LayerWork) -> int:
        return work.backward_ns + (work.recompute_ns if recomputes else 0)

    def returned(work: LayerWork) -> int:
        return least.returning(work) + (work.recompute_ns if recomputes else 0)

    rows = [[entry for entry in least.choices(layer) if entry[1] == width] for layer in trunk.path]
    spent = [[weights[name] * width * (work.forward_ns + whole(work)) for name, _, work in row] for row in rows]
    return StageForm(
        width=width,
        forward=prefix_sums([min((work.forward_ns for _, _, work in row), default=0) for row in rows]),
        returning=prefix_sums([min((returned(work) for _, _, work in row), default=0) for row in rows]),
        backward=prefix_sums([min((whole(work) for _, _, work in row), default=0) for row in rows]),
        held=prefix_sums([_held(least, layer, width=width, recomputes=recomputes) for layer in trunk.path]),
        state=prefix_sums([least.states(layer).get(width, 0) for layer in trunk.path]),
        excess=prefix_sums(
            [max(0, min(row, default=0) - cheapest[layer]) for layer, row in zip(trunk.path, spent, strict=True)]
        ),
        lacking=prefix_sums([not row for row in rows]),
    )


def _held(least: Least, layer: int, *, width: int, recomputes: bool | None) -> int:
    entry = dict(least.entries(layer)).get(width)
    return 0 if entry is None else min(least.held_sizes(entry, may_recompute=recomputes is not False))

"""Lower bounds on a job's step in whatever order its pipelines run, whatever stages their devices have.

A device's first action is an F of its first stage: the stages before it are elsewhere, and a later one of its own comes
behind the first. So it begins behind some microbatch's forwards of the stages before. Its last action is a W, or a
backward of its first stage, behind which the backwards of the stages before still run; docs/proofs/bounds.md.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from fractions import Fraction

from planner.bounds.listed.dealt_microbatches import StageView, stage_bound
from planner.fidelity.run_pipelines import Row, StepShape
from profiles.importers.straggler import ReplicaKey

Pair = tuple[Fraction, Fraction]
"""What others take at least, and what a place takes for a device of factor 1: no step ends before their sum."""


def bound_any_assignment(rows: Sequence[Row], shape: StepShape, *, pipelines: int, transfer_ns: int) -> int:
    """No dealing of whole microbatches ends before; transfers between devices take as long as that."""
    views = [_view(rows, shape, place=place, transfer_ns=transfer_ns) for place in range(len(shape.stages))]
    around = 2 * shape.crossings(max(stage for stage, _ in shape.cells)) * transfer_ns
    alone = [cell in _path(shape) for cell in range(len(shape.cells))]
    return max(
        *(stage_bound(view, pipelines=pipelines) for view in views),
        *(around + sum(time for time, counts in zip(row, alone, strict=True) if counts) for row in rows),
    )


def _view(rows: Sequence[Row], shape: StepShape, *, place: int, transfer_ns: int) -> StageView:
    own, before, behind = _cells_around(shape, place)
    around = shape.crossings(shape.stages[place][0]) * transfer_ns
    ends = 0 if shape.has_weights(place) else around
    return StageView(
        loads=[sum(row[cell] for cell in own) for row in rows],
        heads=[around + sum(row[cell] for cell in before) for row in rows],
        tails=[ends + sum(row[cell] for cell in behind) for row in rows],
    )


def _cells_around(shape: StepShape, place: int) -> tuple[list[int], list[int], list[int]]:
    """The cells that a device runs, those before its first action and those behind its last."""
    held = shape.stages[place]
    cells = [*enumerate(shape.cells)]
    ends_with_weights = shape.has_weights(place)
    return (
        [number for number, (stage, _) in cells if stage in held],
        [number for number, (stage, kind) in cells if stage < held[0] and kind == "F"],
        [number for number, (stage, kind) in cells if stage < held[0] and kind in "BI" and not ends_with_weights],
    )


def _path(shape: StepShape) -> set[int]:
    """The cells through which a microbatch goes one after the other."""
    first = min(stage for stage, _ in shape.cells)
    return {number for number, (stage, kind) in enumerate(shape.cells) if kind != "W" or stage == first}


def bound_any_placement(
    assignments: Mapping[int, Sequence[Row]],
    shape: StepShape,
    *,
    factors: Mapping[ReplicaKey, Fraction],
    at_most_ns: int,
) -> int:
    """No placement of the devices ends before, in whatever order, if transfers take nothing.

    For a step to end by T, the device at a place must be fast enough for what the place has to do, and for the slowest
    microbatch's way through it; whatever else is in the way has the fastest devices there are, each of them once. So a
    place takes the devices up to some factor, and there is such a placement exactly where the k-th strictest place
    takes the k-th fastest device, for every k. `at_most_ns`: of a placement that is known.
    """
    fast_first = sorted(factors.values())
    strict = [
        _pairs(assignment, shape, place=number, factors=factors, pipeline=pipeline)
        for pipeline, assignment in assignments.items()
        for number in range(len(shape.places))
    ]

    def can_end(time_ns: int) -> bool:
        limits = sorted(
            min(((time_ns - others) / own for others, own in pairs if own), default=fast_first[-1]) for pairs in strict
        )
        return all(factor <= limit for factor, limit in zip(fast_first, limits, strict=True))

    return bisect_left(range(at_most_ns), 1, key=can_end)


def _pairs(
    assignment: Sequence[Row], shape: StepShape, *, place: int, factors: Mapping[ReplicaKey, Fraction], pipeline: int
) -> list[Pair]:
    """Of a place: all that it runs, with what is around it; and the way of the microbatch that takes longest alone."""
    fast_first = sorted(factors.values())
    places = {number: shape.place_of(stage) for number, (stage, _) in enumerate(shape.cells)}
    own_factor = [factors[pipeline, name] for name in shape.places]

    def by_place(row: Row, cells: Sequence[int]) -> list[Fraction]:
        loads = [Fraction(0)] * len(shape.places)
        for cell in cells:
            loads[places[cell]] += row[cell] / own_factor[places[cell]]
        return loads

    def least(loads: Sequence[Fraction]) -> Fraction:
        heavy_first = sorted(loads, reverse=True)
        return sum((a * b for a, b in zip(heavy_first, fast_first, strict=False)), start=Fraction(0))

    own, before, behind = _cells_around(shape, place)
    around = sum(min(least(by_place(row, cells)) for row in assignment) for cells in (before, behind))
    all_own = sum(sum(by_place(row, own)) for row in assignment)
    paths = [by_place(row, sorted(_path(shape))) for row in assignment]
    longest = max(paths, key=sum)
    others = [load for number, load in enumerate(longest) if number != place]
    return [(Fraction(around), Fraction(all_own)), (least(others), longest[place])]

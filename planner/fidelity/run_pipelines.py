"""The pipelines of a step, whatever stages devices have: what a microbatch takes where, and a player of orders."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from planner.fidelity.run_replay import list_steps
from profiles.importers.straggler import ActionKind, Key, RunStep, product_of
from solver_models.simulation.in_order import play_in_order

Cell = tuple[int, ActionKind]
"""A stage and a kind of action."""

Row = tuple[int, ...]
"""Of one microbatch: how long each cell takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What all pipelines of a step have in common."""

    places: tuple[int, ...]
    """Of its devices, as replica keys name them."""
    stages: tuple[tuple[int, ...], ...]
    """By place, ascending."""
    cells: tuple[Cell, ...]
    """That every microbatch runs through, sorted."""

    def place_of(self, stage: int) -> int:
        """Index of the place that holds a stage."""
        return next(number for number, held in enumerate(self.stages) if stage in held)

    def has_weights(self, place: int) -> bool:
        """Whether a device may end with gradients of weights, behind which nobody waits."""
        return any(stage in self.stages[place] for stage, kind in self.cells if kind == "W")

    def crossings(self, stage: int) -> int:
        """So often a microbatch changes devices on its way to a stage."""
        held = [self.place_of(each) for each in sorted(one for row in self.stages for one in row) if each <= stage]
        return sum(a != b for a, b in pairwise(held))


def find_shape(step: RunStep) -> StepShape | None:
    """None where pipelines differ in their devices' stages, or microbatches in the stages that they run through.

    Where a stage ran some backwards whole and others in halves, halves are its cells; a whole one is both.
    """
    devices: dict[int, dict[int, tuple[int, ...]]] = defaultdict(dict)
    ran: dict[int, dict[tuple[int, int], str]] = defaultdict(lambda: defaultdict(str))
    for (pipeline, place), row in sorted(step.actions.items()):
        devices[pipeline][place] = tuple(sorted({action.stage for action in row}))
        for action in row:
            ran[action.stage][pipeline, action.microbatch] += action.kind
    (first, *others), (held, *more) = devices.values(), (frozenset(each) for each in ran.values())
    if any(one != first for one in others) or any(one != held for one in more):
        return None
    cells: list[Cell] = []
    for stage, microbatches in sorted(ran.items()):
        kinds = {"".join(sorted(each)) for each in microbatches.values()}
        if kinds not in ({"BF"}, {"FIW"}, {"BF", "FIW"}):
            return None
        cells += [(stage, "B"), (stage, "F")] if kinds == {"BF"} else [(stage, "F"), (stage, "I"), (stage, "W")]
    return StepShape(places=tuple(first), stages=tuple(first.values()), cells=tuple(cells))


def rows_of(step: RunStep, shape: StepShape) -> dict[int, list[Row]]:
    """By pipeline what its microbatches take, in the order of their numbers; weights have the part that is usual."""
    found: dict[int, dict[int, dict[Cell, int]]] = defaultdict(lambda: defaultdict(dict))
    for (pipeline, stage, kind, microbatch), action in step.keyed():
        found[pipeline][microbatch][stage, kind] = action.duration_ns
    usual = _usual_weights([times for assignment in found.values() for times in assignment.values()])
    for assignment in found.values():
        for times in assignment.values():
            for stage, part in usual.items():
                if (whole := times.pop((stage, "B"), None)) is not None:
                    times[stage, "W"] = round(whole * part)
                    times[stage, "I"] = whole - times[stage, "W"]
    return {
        pipeline: [tuple(times[cell] for cell in shape.cells) for _, times in sorted(assignment.items())]
        for pipeline, assignment in found.items()
    }


def _usual_weights(rows: Sequence[Mapping[Cell, int]]) -> dict[int, float]:
    """By stage that runs halves the part of backwards that gradients of weights take."""
    parts: dict[int, list[float]] = defaultdict(list)
    for times in rows:
        for (stage, kind), weights in times.items():
            if kind == "W":
                whole = weights + times[stage, "I"]
                parts[stage].append(weights / whole if whole else 0.0)
    return {stage: median(each) for stage, each in parts.items()}


def one_pipeline(step: RunStep, pipeline: int) -> RunStep:
    """The steps of one pipeline alone."""
    return replace(
        step,
        actions={replica: row for replica, row in step.actions.items() if replica[0] == pipeline},
        transfers_ns={key: lag for key, lag in step.transfers_ns.items() if key[0] == pipeline},
    )


def with_rows(step: RunStep, shape: StepShape, *, assignments: Mapping[int, Sequence[Row]]) -> RunStep:
    """In the same orders, with other microbatches in place of those as run."""
    cells = {cell: number for number, cell in enumerate(shape.cells)}
    slots = _slots(step)
    return replace(
        step,
        actions={
            (pipeline, place): tuple(
                replace(
                    action,
                    duration_ns=sum(
                        assignments[pipeline][slots[pipeline][action.microbatch]][cells[cell]]
                        for cell in _cells_of((action.stage, action.kind), shape)
                    ),
                )
                for action in row
            )
            for (pipeline, place), row in step.actions.items()
        },
    )


def with_even_transfers(step: RunStep, transfer_ns: int) -> RunStep:
    """With all transfers alike."""
    transfers: dict[Key, int] = {}
    counts: dict[tuple[int, int, str], int] = defaultdict(int)
    for key, _ in step.keyed():
        channel = product_of(key)[:3]
        transfers[*channel, counts[channel]] = transfer_ns
        counts[channel] += 1
    return replace(step, transfers_ns=transfers)


def _cells_of(action: Cell, shape: StepShape) -> tuple[Cell, ...]:
    """An action's: both halves of a whole backward where others ran in halves."""
    stage, kind = action
    return ((stage, "I"), (stage, "W")) if kind == "B" and action not in shape.cells else (action,)


def _slots(step: RunStep) -> dict[int, dict[int, int]]:
    """By pipeline and microbatch the place of its number."""
    found: dict[int, set[int]] = defaultdict(set)
    for key, _ in step.keyed():
        found[key[0]].add(key[3])
    return {pipeline: {one: slot for slot, one in enumerate(sorted(numbers))} for pipeline, numbers in found.items()}


class PipelinePlayer:
    """The order of one pipeline, played again and again with other durations: what `replay_ns` says, sooner."""

    def __init__(self, step: RunStep, shape: StepShape) -> None:
        ((_, slots),) = _slots(step).items()
        cells = {cell: number for number, cell in enumerate(shape.cells)}
        keys, self._steps = list_steps(step)
        self._cells: list[tuple[int, int]] = []
        for _, stage, kind, microbatch in keys:
            begin = slots[microbatch] * len(cells)
            mine = [begin + cells[cell] for cell in _cells_of((stage, kind), shape)]
            self._cells.append((mine[0], mine[1] if mine[1:] else -1))

    def __len__(self) -> int:
        """Actions."""
        return len(self._cells)

    def play(self, durations_ns: Sequence[int]) -> int:
        """When the last action ends; `durations_ns`: of the microbatches' rows, one behind the other."""
        durations = [*durations_ns, 0]  # where there is no second cell
        return max(play_in_order(self._steps, [durations[one] + durations[other] for one, other in self._cells]))

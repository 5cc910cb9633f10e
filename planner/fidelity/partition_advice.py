"""What microbatches take where blocks are cut otherwise: a stage is assumed to be so many equal blocks."""

from collections.abc import Sequence

from planner.dealing import Durations
from planner.fidelity.run_pipelines import Cell, Row, StepShape


def recut(one: Durations, *, kept: int, blocks_per_stage: int) -> Durations:
    """With `kept` blocks left on the last stage, the others spread evenly over the stages before; two stages or more.

    A stage but the last is `blocks_per_stage` equal blocks; the last has as many, of the mean size, and the rest of it.
    """
    count = len(one.forward_ns)
    spread, more = divmod(count * blocks_per_stage - kept, count - 1)
    sizes = [spread + (stage < more) for stage in range(count - 1)] + [kept]

    def times(row: tuple[int, ...]) -> tuple[int, ...]:
        blocks = blocks_per_stage * (count - 1)
        block = min(sum(row[:-1]) / blocks, row[-1] / blocks_per_stage)
        over = [sum(row[:-1]) - block * blocks, row[-1] - block * blocks_per_stage]
        return tuple(
            round(block * size + (over[0] / (count - 1) if stage < count - 1 else over[1]))
            for stage, size in enumerate(sizes)
        )

    return Durations(forward_ns=times(one.forward_ns), backward_ns=times(one.backward_ns))


def recut_rows(rows: Sequence[Row], shape: StepShape, *, kept: int, blocks_per_stage: int) -> list[Row]:
    """The same of microbatches whose backwards may run in halves, which keep the part of a backward that they are."""
    stages = sorted({stage for stage, _ in shape.cells})
    found = []
    for row in rows:
        times = dict(zip(shape.cells, row, strict=True))
        backward = tuple(sum(times.get((stage, kind), 0) for kind in ("B", "I", "W")) for stage in stages)
        before = Durations(forward_ns=tuple(times[stage, "F"] for stage in stages), backward_ns=backward)
        after = recut(before, kept=kept, blocks_per_stage=blocks_per_stage)
        changed: dict[Cell, int] = {}
        for place, stage in enumerate(stages):
            weights = times.get((stage, "W"), 0)
            part = round(after.backward_ns[place] * weights / backward[place]) if backward[place] else 0
            changed[stage, "F"], changed[stage, "W"] = after.forward_ns[place], part
            changed[stage, "B"] = changed[stage, "I"] = after.backward_ns[place] - part
        found.append(tuple(changed[cell] for cell in shape.cells))
    return found

"""A played plan drawn as text: one row per device, one column per tick."""

from collections.abc import Sequence

from planner.simulation.simulate import TimedAction, Timeline

MAX_COLUMNS = 2000
"""Wider drawings are refused."""


def draw_schedule(timeline: Timeline, *, tick_ns: int) -> str:
    """Every device's actions over time, in columns of `tick_ns`; ends with a newline.

    An action stands where it starts as its kind and microbatch, `F0`; dashes fill the rest of its time, dots are idle.
    The second stage of a device is in lower case, `f0`; where a device has more than two stages, all are named, `2F0`.
    An action that starts in the same column as the next one is hidden by it.
    Raises ValueError if the drawing would have more than `MAX_COLUMNS` columns.
    """
    num_columns = max(-(-order[-1].end_ns // tick_ns) for order in timeline.actions.values() if order)
    if num_columns > MAX_COLUMNS:
        raise ValueError(
            f"tick_ns = {tick_ns} makes {num_columns:,} columns; use a tick {num_columns // MAX_COLUMNS + 1} x as long"
        )
    labels = {device: _labels(order) for device, order in timeline.actions.items()}
    column = 1 + max(len(label) for row in labels.values() for label in row)
    margin = max(len(device) for device in labels)
    rows = [_row("", [str(number) for number in range(num_columns)], column=column, margin=margin)]
    for device, order in timeline.actions.items():
        rows.append(_row(device, _cells(order, labels[device], tick_ns=tick_ns), column=column, margin=margin))
    return "".join(f"{row}\n" for row in rows)


def fit_tick_ns(timeline: Timeline, *, width: int) -> int:
    """The least column, in nanoseconds, with which the drawing is at most `width` characters wide; at least 1."""
    labels = (label for order in timeline.actions.values() for label in _labels(order))
    column = 1 + max(len(label) for label in labels)
    margin = max(len(device) for device in timeline.actions) + len(" |")
    num_columns = min(MAX_COLUMNS, max(1, (width - margin) // column))
    last = max(order[-1].end_ns for order in timeline.actions.values() if order)
    return max(1, -(-last // num_columns))


def _labels(order: Sequence[TimedAction]) -> list[str]:
    """What is written for every action of a device."""
    stages = sorted({timed.action.stage for timed in order})
    if len(stages) > 2:
        return [str(timed.action) for timed in order]
    kinds = [timed.action.kind if timed.action.stage == stages[0] else timed.action.kind.lower() for timed in order]
    return [f"{kind}{timed.action.microbatch}" for kind, timed in zip(kinds, order, strict=True)]


def _cells(order: Sequence[TimedAction], labels: Sequence[str], *, tick_ns: int) -> list[str]:
    cells: list[str] = []
    for timed, label in zip(order, labels, strict=True):
        start = timed.start_ns // tick_ns
        cells += ["."] * (start - len(cells))
        length = max(1, -(-timed.end_ns // tick_ns) - start)
        cells[start:] = [label, *["-" * len(label)] * (length - 1)]
    return cells


def _row(name: str, cells: Sequence[str], *, column: int, margin: int) -> str:
    body = "".join(cell.rjust(column, "-" if cell.startswith("-") else " ") for cell in cells)
    return f"{name:>{margin}} |{body}".rstrip()

"""Reads what exporters of schedules write, for tests that export is without loss."""

import json
from collections.abc import Sequence

from planner.actions import Action, parse_action
from planner.export.zero_bubble import TO_THEIRS
from planner.plan import Schedule


def import_torch_table(text: str, devices: Sequence[str]) -> Schedule:
    """The schedule of a compute-only table, on the device of every rank; raises ValueError for what is none.

    Torch itself reads `0F0xyz` as `0F0`; here every cell has to be an action as a whole, or empty.
    """
    rows = text.splitlines()
    if len(rows) != len(devices):
        raise ValueError(f"the table has {len(rows)} rows for {len(devices)} ranks; give a row per rank")
    return {
        device: tuple(parse_action(cell.strip()) for cell in row.split(",") if cell.strip())
        for device, row in zip(devices, rows, strict=True)
    }


def import_zero_bubble(text: str, devices: Sequence[str]) -> Schedule:
    """The schedule, on the device of every rank; raises ValueError for what is none."""
    kinds = {theirs: ours for ours, theirs in TO_THEIRS.items()}
    try:
        rows = json.loads(text)
        schedule = {
            device: tuple(Action(kinds[n["type"]], n["layer_group_idx"], n["microbatch"]) for n in row)
            for device, row in zip(devices, rows, strict=True)
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no schedule for {len(devices)} ranks in the zero-bubble format: {error}") from None
    return schedule

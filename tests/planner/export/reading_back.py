"""Reads what exporters of schedules write, for tests that export is without loss."""

import ast
import json
from collections.abc import Sequence
from itertools import pairwise

from benchmarks.layouts import cut_of
from planner.actions import Action, parse_action
from planner.export.model_parts import letter_of
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


def import_torchtitan_parts(parts: Sequence[Sequence[str]], layers: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The layers of every stage out of `module_fqns_per_model_part`."""
    counts = {letter: sum(letter_of(name) == letter for name in layers) for letter in "EL"}
    sizes = [
        sum(name.startswith("layers.") for name in part)
        + (counts["E"] if "tok_embeddings" in part else 0)
        + (counts["L"] if "lm_head" in part else 0)
        for part in parts
    ]
    return cut_of(sizes, layers)


def import_deepspeed_parts(text: str, layers: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The layers of every stage out of the module's PARTS, without running it."""
    (parts,) = (ast.literal_eval(each.value) for each in ast.parse(text).body
                if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "PARTS")  # fmt: skip
    return cut_of([stop - start for start, stop in pairwise(parts)], layers)

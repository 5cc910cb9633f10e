"""The module that `pipeplan export deepspeed` writes, read as DeepSpeed's JSON would state it, and not run."""

import ast
from typing import Any, NamedTuple


class PlannedModule(NamedTuple):
    """What the module states beside a configuration."""

    parts: list[int]
    """Layers before each stage, and all of them."""
    model: dict[str, Any]
    """How the layers' own code has to run them, by fields of `profiles.assumptions.Assumptions`."""


def read_planned_module(text: str, *, source: str) -> tuple[dict[str, Any], PlannedModule]:
    """The configuration, and the rest.

    Raises ValueError for another module, and for one of DualPipeV, whose order no audit plays.
    """
    try:
        body = ast.parse(text).body
        values = {
            ast.unparse(each.targets[0]): ast.literal_eval(each.value) for each in body if isinstance(each, ast.Assign)
        }
        parts, ranks = values["PARTS"], len(values["RANKS"])
    except (KeyError, SyntaxError, TypeError, ValueError, RecursionError):
        raise ValueError(
            f"{source}: is no module that `pipeplan export deepspeed` wrote; give one, or DeepSpeed's JSON"
        ) from None
    if any(isinstance(each, ast.ClassDef) and "DualPipeV" in each.name for each in body):
        raise ValueError(f"{source}: DualPipeV is not audited; give a plan with --target deepspeed")
    if len(parts) < 2 or any(type(each) is not int for each in parts) or parts != sorted({0, *parts}):
        raise ValueError(f"PARTS = {str(parts)[:60]}: are not layers before each stage, from 0 on; export it again")
    document = {
        "pipeline": {
            "stages": len(parts) - 1,
            "activation_checkpoint_interval": values.get("ACTIVATION_CHECKPOINT_INTERVAL"),
        },
        "gradient_accumulation_steps": values.get("NUM_MICROBATCHES"),
        "data_parallel_size": max(1, ranks // (len(parts) - 1)),
        "sequence_parallel_size": 1,
        "zero_optimization": values.get("ZERO_OPTIMIZATION", {}),
        **values.get("CONFIG", {}),
    }
    return document, PlannedModule(parts=parts, model=values.get("MODEL", {}))

"""A recipe that torchtitan's own trainer starts from: one of its configurations, with an exported plan in it.

    PIPEPLAN_TORCHTITAN=FOLDER PIPEPLAN_TORCHTITAN_CONFIG=torchtitan.models.llama3.config_registry:llama3_8b
    torchrun --nproc-per-node 8 -m torchtitan.train --module planner.export.torchtitan_recipe --config planned

FOLDER is what `pipeplan export torchtitan` wrote. What torchtitan's command line says besides overrules it. Written for
torchtitan 0.3; the names that its main branch had in August 2026 are known as well.
"""

import dataclasses
import importlib
import json
import os
from pathlib import Path
from typing import Any

FOLDER, CONFIG = "PIPEPLAN_TORCHTITAN", "PIPEPLAN_TORCHTITAN_CONFIG"
"""Variables that name the exported folder, and the configuration to start from as MODULE:FUNCTION."""


def planned() -> Any:
    """The configuration of torchtitan's that `CONFIG` names, as the plan of `FOLDER` wants it.

    Raises ValueError if a variable is missing, the model has other blocks than the plan, or torchtitan lacks a field.
    """
    folder, (module, _, function) = Path(_variable(FOLDER)), _variable(CONFIG).partition(":")
    if not function:
        raise ValueError(f"{CONFIG} = {module!r}; name a module and its function, as torchtitan.models.x:y")
    config = getattr(importlib.import_module(module), function)()
    exported = json.loads((folder / "config.json").read_text())
    parallelism = exported["parallelism"]
    is_pipeline = "pipeline_parallel_schedule_csv" in parallelism
    if is_pipeline:
        file = (folder / parallelism["pipeline_parallel_schedule_csv"]).resolve()
        parallelism["pipeline_parallel_schedule_csv"] = str(file)
    _require_blocks(config, parallelism["module_fqns_per_model_part"])
    if is_pipeline and _has(config.parallelism, "num_pp_microbatches"):
        _rename(exported, config)
    for section, fields in exported.items():
        for name, value in fields.items():
            if not _has(getattr(config, section), name):
                raise ValueError(
                    f"this torchtitan's configuration has no {section}.{name}, which the plan needs; use torchtitan 0.3"
                )
            setattr(getattr(config, section), name, value)
    return config


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise ValueError(f"{name} is not set; see the head of planner/export/torchtitan_recipe.py for what it names")
    return value


def _has(section: Any, name: str) -> bool:
    return name in {field.name for field in dataclasses.fields(section)}


def _require_blocks(config: Any, parts: list[list[str]]) -> None:
    """Torchtitan leaves out, without a word, blocks that no part names."""
    named = sum(name.startswith("layers.") for part in parts for name in part)
    there = len(config.model_spec.model.layers)
    if named != there:
        raise ValueError(
            f"the plan is for {named} blocks, but the model of {CONFIG} has {there}; name the configuration of the "
            "planned model"
        )


def _rename(exported: dict[str, Any], config: Any) -> None:
    """To torchtitan's names after 0.3: microbatches are counted, and their size is in tokens."""
    parallelism, training = exported["parallelism"], exported["training"]
    training.pop("global_batch_size", None)
    size = parallelism.pop("pipeline_parallel_microbatch_size")
    parallelism["num_pp_microbatches"] = training.pop("local_batch_size") // size
    if "seq_len" in training:
        training["max_context_length"] = training.pop("seq_len")
    length = training.get("max_context_length", config.training.max_context_length)
    training["num_tokens_per_microbatch_per_dp_rank"] = size * length

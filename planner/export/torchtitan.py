"""A plan for torchtitan: the modules of every model part, the fields of its `ParallelismConfig`, and the schedule.

One stage has no schedule: torchtitan shards it (FSDP2) or copies it (DDP), and accumulates.
Replicas of a pipeline's stages are copies of the whole pipeline, whole or sharded (FSDP2, gathered stage by stage).

Written for torchtitan 0.3: `module_fqns_per_model_part`, and a compute-only table in `pipeline_parallel_schedule_csv`.
"""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from planner.export.model_parts import Cut, cut_by, letters_of, require_blocks
from planner.export.samples import require_samples
from planner.export.stated_assumptions import ExportedRun, States, degrees_of, state
from planner.export.torch_table import torch_ranks
from planner.export.torchtitan_copies import render_pipeline_table, require_whole_state
from planner.plan import Plan
from planner.problem import Problem

_SCHEDULE_FILE = "schedule.csv"
"""The table's name beside the configuration."""
_LOOP, _V = "PipelineScheduleMulti", "ZBVZeroBubble"
"""What `pipeline_parallel_schedule` has to name so that ranks hold stages in a loop, or in a V; the table overrules the
order that goes with it."""


def make_torchtitan_files(problem: Problem, plan: Plan) -> dict[str, str]:
    """`config.json` (fields by section of torchtitan's configuration), and the table of a pipeline.

    Raises ValueError if torchtitan cannot run the plan.
    """
    require_whole_state(plan)
    if is_data_parallel(plan):
        return {"config.json": json.dumps(make_data_parallel(problem, plan), indent=1) + "\n"}
    table = render_pipeline_table(problem, plan)
    samples = _samples(problem, plan) * problem.num_microbatches
    training: dict[str, Any] = {"local_batch_size": samples, "disable_cuda_graphs": True}  # none for pipelines, it says
    if len(plan.stages[0].replicas) > 1:
        training["global_batch_size"] = samples * _copies(problem, plan)
    training |= assumed_settings(problem, plan)
    config = {"training": training, "parallelism": make_parallelism(problem, plan)}
    return {
        "config.json": json.dumps(config, indent=1) + "\n",
        _SCHEDULE_FILE: table,
    }


def _precision(value: str, run: ExportedRun) -> dict[str, str]:
    """Weights, gradients and moments are of `dtype`; torchtitan 0.3 wraps each stage in FSDP, which casts products."""
    gradients = run.assumptions.gradients
    if value == "fp32" and gradients in (None, "fp32"):
        return {"dtype": "float32", "mixed_precision_param": "float32"}
    if value == "bf16":
        return {"dtype": "bfloat16" if gradients == "bf16" else "float32", "mixed_precision_param": "bfloat16"}
    raise ValueError("supports bf16 and fp32 only; profile in one of these")


def _gradients(value: str, run: ExportedRun) -> dict[str, str]:
    """They are of the type of weights, which `precision` sets."""
    if run.assumptions.precision is None:
        raise ValueError("has no setting for them without the type of weights; state precision as well")
    if value == "fp16":
        raise ValueError("has no fp16; profile with gradients in fp32")
    return {}


def _unless(refused: object, reason: str) -> Any:
    """Nothing to state but for one value, which torchtitan does not have."""

    def tell(value: object, _: ExportedRun) -> dict[str, str]:
        if value == refused:
            raise ValueError(reason)
        return {}

    return tell


_STATES: States = {
    "precision": _precision,
    "gradients": _gradients,
    "attention": _unless("unfused", "has no attention that stores its scores; profile with fused attention"),
    "fused_loss": _unless(True, "has no such setting; profile with fused_loss = false"),
    "sequence_parallel": _unless(False, "shares sequences between products; profile with sequence_parallel = true"),
    "hidden_exchanges": _unless(True, "hides none of them by default; profile with hidden_exchanges = false"),
    "sequence_length": lambda value, _: {"seq_len": value},
}
"""Fields of torchtitan's `TrainingConfig`."""


def assumed_settings(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Fields of `TrainingConfig` that state the profile's assumptions; raises ValueError for what they cannot state."""
    told = state(problem, plan, how=_STATES, what="torchtitan")
    return {name: value for _, fields in told for name, value in fields.items()}


def is_data_parallel(plan: Plan) -> bool:
    """Whether devices, or groups of them, hold the whole model each, or a part of it all."""
    return len(plan.stages) == 1


def make_data_parallel(problem: Problem, plan: Plan) -> dict[str, Any]:
    """`training` and `parallelism` of one stage on r devices, fully sharded (FSDP2) or copied (DDP).

    Each takes its share of a microbatch, and accumulates over the others. Raises ValueError for what torchtitan is not
    told: other orders, recomputation, unequal shares.
    """
    (stage,), samples, blocks = plan.stages, require_samples(problem, what="torchtitan"), cut_by(plan)
    kept, count = [stage.samples, stage.recompute, plan.dealing, stage.is_split], _copies(problem, plan)
    taken = [each for each, _ in groupby(action.microbatch for action in plan.schedule[stage.replicas[0][0]])]
    if any(kept) or len(taken) > len(set(taken)) or samples % count:
        raise ValueError(
            "torchtitan takes equal shares of each microbatch, one microbatch after the other, and recomputes as its "
            "own configuration says; plan with --target torchtitan --fully-shard"
        )
    training = {"local_batch_size": samples // count, "global_batch_size": samples * problem.num_microbatches}
    parallelism: dict[str, Any] = {"pipeline_parallel_degree": 1, **_degree_fields(problem, plan)}
    parallelism["module_fqns_per_model_part"] = module_names(problem, blocks)
    return {"training": training | assumed_settings(problem, plan), "parallelism": parallelism}


def make_parallelism(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Fields of torchtitan's `ParallelismConfig` by name."""
    return {
        "pipeline_parallel_degree": len(torch_ranks(plan)),
        **_degree_fields(problem, plan),
        "module_fqns_per_model_part": module_names(problem, cut_by(plan)),
        "pipeline_parallel_schedule": find_map(plan),
        "pipeline_parallel_schedule_csv": _SCHEDULE_FILE,
        "pipeline_parallel_microbatch_size": _samples(problem, plan),
    }


def _degree_fields(problem: Problem, plan: Plan) -> dict[str, int]:
    """Degrees of groups, and of copies; those of data are stated where there are copies, whatever they are."""
    degrees, stage = degrees_of(problem, plan), plan.stages[0]
    copies, is_sharded = len(stage.replicas), stage.is_gathered or stage.is_fully_sharded
    named = {
        "tensor_parallel_degree": degrees.tensor,
        "context_parallel_degree": degrees.context,
        "data_parallel_replicate_degree": 1 if is_sharded else copies,
        "data_parallel_shard_degree": degrees.data * (copies if is_sharded else 1),
        "expert_parallel_degree": degrees.expert,
    }
    return {name: value for name, value in named.items() if value > 1 or (copies > 1 and name.startswith("data"))}


def _copies(problem: Problem, plan: Plan) -> int:
    """Parts that take samples of their own: copies of the pipeline, and parts of their groups."""
    return len(plan.stages[0].replicas) * degrees_of(problem, plan).data


def _samples(problem: Problem, plan: Plan) -> int:
    """Of a microbatch, on one of the parts that take samples of their own."""
    samples, data = require_samples(problem, what="torchtitan"), _copies(problem, plan)
    if samples % data:
        raise ValueError(
            f"microbatches of {samples} samples cannot be cut for data = {data}; plan with another width or "
            "max_replicas, or profile another size"
        )
    return samples // data


def find_map(plan: Plan) -> str:
    """The schedule whose map of stages to ranks is the plan's; raises ValueError if neither is."""
    owners = [torch_ranks(plan).index(stage.replicas[0][0]) for stage in plan.stages]
    count = len(torch_ranks(plan))
    if len(owners) % count == 0:
        if owners == [number % count for number in range(len(owners))]:
            return _LOOP
        if owners == [*range(count), *reversed(range(count))]:
            return _V
    raise ValueError(
        f"the ranks of the stages are {owners}, but torchtitan supports only loops and a V of two stages per rank; "
        "plan with --target torchtitan"
    )


def module_names(problem: Problem, cut: Cut) -> list[list[str]]:
    """The modules of every stage, by the names that torchtitan's models have at their top.

    Raises ValueError for layers in stages that torchtitan does not have, whatever ranks they are on.
    """
    parts = part_names(letters_of(problem, cut))
    require_blocks([name for stage in cut for name in stage], what="torchtitan")
    listed = [name for part in parts for name in part]
    if len(set(listed)) < len(listed):
        raise ValueError("the layers of the embedding or of the head are in several stages; merge them in the profile")
    return parts


def part_names(stages: Sequence[str]) -> list[list[str]]:
    """The same for stages in letters."""
    blocks, parts = 0, []
    for stage in stages:
        names = []
        for letter in dict.fromkeys(stage) if set(stage) <= {"E"} else _collapsed(stage):
            if letter == "m":
                raise ValueError("torchtitan does not support multi-token prediction; leave those layers out")
            if letter == "t":
                names.append(f"layers.{blocks}")
                blocks += 1
            else:
                names += ["tok_embeddings"] if letter == "E" else ["norm", "lm_head"]
        parts.append(names)
    return parts


def _collapsed(stage: str) -> str:
    """Norm and head are two layers of a profile or one."""
    return "".join(letter for place, letter in enumerate(stage) if letter == "t" or letter != stage[place - 1 : place])

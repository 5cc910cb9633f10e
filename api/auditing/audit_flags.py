"""The flags of the better plan, ready to paste."""

import json
import shlex
from collections.abc import Iterator, Sequence

from api.auditing.audited_problem import AuditedProblem
from planner.export.deepspeed import render_deepspeed
from planner.export.megatron import make_megatron_job
from planner.export.torchtitan import make_parallelism, make_torchtitan_files
from planner.plan import Plan
from profiles.configurations.megatron_hybrid import written_pattern
from profiles.configurations.megatron_layout import shortened
from profiles.configurations.run_configuration import RunConfiguration

LAYOUT = "--pipeline-model-parallel-layout"


def flags_of(audited: AuditedProblem, plan: Plan) -> tuple[str, ...]:
    """Lines for the program's command or configuration; raises ValueError where it cannot be told the plan."""
    if audited.run.program == "megatron":
        return tuple(_megatron(audited, plan))
    if audited.run.program == "torchtitan":
        fields = make_parallelism(audited.problem, plan)
        fields.pop("pipeline_parallel_microbatch_size")
        return tuple(f"{name} = {json.dumps(value)}" for name, value in fields.items())
    text = render_deepspeed(audited.problem, plan).splitlines()
    return tuple(line for line in text if line.startswith(("PARTS", "ACTIVATION_CHECKPOINT_INTERVAL")))


def files_of(audited: AuditedProblem, plan: Plan) -> dict[str, str]:
    """What the program is given besides, by file name."""
    if audited.run.program == "torchtitan":
        return make_torchtitan_files(audited.problem, plan)
    if audited.run.program == "deepspeed":
        return {"planned_pipeline.py": render_deepspeed(audited.problem, plan)}
    return {"flags.txt": "".join(f"{line}\n" for line in flags_of(audited, plan))}


def _megatron(audited: AuditedProblem, plan: Plan) -> Iterator[str]:
    for name, *values in make_megatron_job(audited.problem, plan).arguments:
        if name == LAYOUT:
            yield f"{name} {shlex.quote(shortened(values[0]))}"
        elif name.startswith(("--hybrid-layer-pattern", "--recompute")):
            yield shlex.join([name, *values])


def dropped_flags(audited: AuditedProblem, plan: Plan) -> tuple[str, ...]:
    """Flags of the configuration that contradict the new ones."""
    run = audited.run
    recomputes = any(stage.recompute for stage in plan.stages)
    is_dropped = run.program == "megatron" and run.recompute is not None and not recomputes
    return (
        *run.cut_by,
        *(["--recompute-granularity, --recompute-method, --recompute-num-layers"] if is_dropped else []),
    )


def letters_of_rank(run: RunConfiguration, rank: int) -> Sequence[str]:
    """What the stages of a rank hold."""
    stages = shown_stages(run)
    if run.in_v:
        return [stages[rank], stages[2 * run.pipeline - 1 - rank]]
    return stages[rank :: run.pipeline]


def shown_stages(run: RunConfiguration) -> Sequence[str]:
    """Stages in the letters of a layout, or of a hybrid model's pattern."""
    return written_pattern(run.stages, run.shape.pattern) if run.shape.pattern else run.stages

"""A plan for DeepSpeed: a module whose `PlannedPipelineModule` cuts the list of layers where the plan does.

DeepSpeed (0.19) has no argument for explicit cuts; `PipelineModule._partition_layers` sets `self.parts` and the bounds
of its own stage, so a subclass does the same. Its order is 1F1B, one stage per rank; that of `DualPipeVModule` (0.19.8)
is DualPipeV, two stages per rank.
"""

import itertools
from pathlib import Path
from typing import Any

from planner.export.dual_pipe_v import is_v, require_dual_pipe_v
from planner.export.looped_pipelines import require_looped
from planner.export.model_parts import cut_by, require_contiguous
from planner.export.samples import require_known_shares, require_told
from planner.export.shards import is_sharded
from planner.export.stated_assumptions import OWN_CODE, ExportedRun, States, state
from planner.plan import Plan
from planner.problem import Problem

_MODULE = Path(__file__).with_name("deepspeed_module.txt").read_text(encoding="utf-8")

_V_MODULE = '''

class PlannedDualPipeVModule(DualPipeVModule, PlannedPipelineModule):
    """The module to use: two stages per rank, in a V; pass num_stages = {num_ranks}. Wants DeepSpeed 0.19.8."""
'''


def _precision(value: str, _: ExportedRun) -> dict[str, Any]:
    switches: dict[str, dict[str, Any]] = {
        "fp32": {},
        "fp16": {"fp16": {"enabled": True}},
        "bf16": {"bf16": {"enabled": True}},
    }
    if value not in switches:
        raise ValueError("supports fp32, fp16 and bf16 only; profile in one of these")
    return switches[value]


_CONFIG: States = {
    "precision": _precision,
    "gradients": lambda value, _: {"data_types": {"grad_accum_dtype": value}},
}
_MODEL_FIELDS: States = dict.fromkeys(OWN_CODE, lambda value, _: value)


def _told(problem: Problem, plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """What states the assumptions: parts of the configuration, and what the layers' own code has to do."""
    told = dict(state(problem, plan, how={**_CONFIG, **_MODEL_FIELDS}, what="DeepSpeed"))
    config = {name: each for field in _CONFIG for name, each in told.get(field, {}).items()}
    return config, {field: told[field] for field in _MODEL_FIELDS if field in told}


def require_expressible(problem: Problem, plan: Plan) -> None:
    """Raise ValueError for stages that DeepSpeed cannot have, whatever their order of actions."""
    require_contiguous(problem, cut_by(plan))
    is_sharded(plan, what="DeepSpeed")
    require_known_shares(problem, plan, what="DeepSpeed")
    require_told(plan, what="DeepSpeed")
    _told(problem, plan)
    held = [group for stage in plan.stages for group in stage.replicas]
    if len(set(held)) < len(held) and not is_v(plan):
        raise ValueError(
            "a device holds several stages; DeepSpeed takes one, or two in a V; plan with max_stages_per_device = 1, "
            "or with --target deepspeed-dualpipev"
        )
    if len({stage.recompute for stage in plan.stages}) > 1:
        raise ValueError(
            "only some stages recompute, but DeepSpeed's interval applies to all; plan without recomputation"
        )
    if any(not isinstance(stage.recompute, bool) for stage in plan.stages):
        raise ValueError(
            "single layers recompute, but DeepSpeed's interval applies to all; plan with recompute_layers = false"
        )


def render_deepspeed(problem: Problem, plan: Plan) -> str:
    """The module; raises ValueError with the reason why DeepSpeed cannot run the plan exactly."""
    require_expressible(problem, plan)
    has_two, ranks = is_v(plan), _ranks(problem, plan)
    config, model = _told(problem, plan)
    sizes, samples = [len(stage.layers) for stage in plan.stages], problem.profile.microbatch_size
    return (_MODULE + _V_MODULE * has_two).format(
        bases="DualPipeVModule, PipelineModule" if has_two else "PipelineModule",
        num_ranks=len(ranks),
        num_layers=sum(sizes),
        parts=[0, *itertools.accumulate(sizes)],
        interval=1 if plan.stages[0].recompute else 0,
        num_microbatches=problem.num_microbatches,
        micro_batch=None if samples is None else samples // len(plan.stages[0].replicas),
        zero_stage=int(is_sharded(plan, what="DeepSpeed")),
        config=config,
        model=model,
        ranks=list(deepspeed_ranks(problem, plan)),
    )


def _ranks(problem: Problem, plan: Plan) -> tuple[tuple[str, ...], ...]:
    return require_dual_pipe_v(problem, plan) if is_v(plan) else require_looped(problem, plan, what="DeepSpeed")


def deepspeed_ranks(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """The device of every global rank; raises ValueError as `render_deepspeed` does."""
    return tuple(itertools.chain.from_iterable(_ranks(problem, plan)))

"""Replicas of a pipeline's stages as torchtitan has them: copies of the whole pipeline, whole or sharded (FSDP2)."""

from collections import Counter

from planner.export.samples import require_known_shares
from planner.export.torch_table import render_torch_table, torch_ranks
from planner.plan import DeviceGroup, Plan
from planner.problem import Problem

_ACTIVE_STAGES = 3
"""How many stages torch's lowering of a table keeps gathered, which torchtitan 0.3 has no field for."""


def require_whole_state(plan: Plan) -> None:
    """Raise ValueError if replicas are to shard some of their state and not all."""
    for number, stage in enumerate(plan.stages):
        if stage.shard == "optimizer":
            raise ValueError(
                f"stage {number} has shard = {stage.shard!r}, but torchtitan shards parameters and gradients too "
                "(FSDP2); plan with --target torchtitan"
            )


def render_pipeline_table(problem: Problem, plan: Plan) -> str:
    """The schedule of one copy of the pipeline; raises ValueError where torchtitan cannot run the plan."""
    table = render_torch_table(problem, plan, has_groups=True, copies=("max_active_stages",))
    if len(torch_ranks(plan)) == 1:
        raise ValueError(
            f"one rank holds {len(plan.stages)} stages, but torchtitan has pipelines on two ranks or more; plan with "
            "max_stages_per_device = 1"
        )
    _require_copies(plan)
    _require_active_stages(plan)
    require_known_shares(problem, plan, what="torchtitan")
    return table


def _require_copies(plan: Plan) -> None:
    """Raise ValueError unless replicas are copies of the whole pipeline, which shard alike and run the same orders."""
    first, of_rank = plan.stages[0], dict[str, tuple[DeviceGroup, ...]]()
    if plan.dealing:
        raise ValueError("dealing gives pipelines whole microbatches, and torchtitan cuts each; plan without dealing")
    for number, stage in enumerate(plan.stages):
        if len(stage.replicas) != len(first.replicas) or stage.is_gathered != first.is_gathered:
            has, wants = (f"{len(each.replicas)} replicas, shard = {each.shard!r}" for each in (stage, first))
            raise ValueError(
                f"stage {number} has {has} but stage 0 {wants}, and torchtitan copies or shards the whole pipeline; "
                "plan with --target torchtitan"
            )
        for group in stage.replicas:
            if of_rank.setdefault(group[0], stage.replicas) != stage.replicas:
                raise ValueError(
                    f"stage {number}: {group[0]!r} is in other company than in another stage, but torchtitan's copies "
                    "of a rank hold the same stages; plan with --target torchtitan, or with max_replicas = 1"
                )
            if plan.schedule[group[0]] != plan.schedule[stage.replicas[0][0]]:
                raise ValueError(
                    f"stage {number}: {group[0]!r} and {stage.replicas[0][0]!r} run other orders, but torchtitan's "
                    "copies of a rank run one; plan with --target torchtitan, or with max_replicas = 1"
                )


def _require_active_stages(plan: Plan) -> None:
    """Raise ValueError where torch, which keeps three stages of a rank gathered, would gather others than planned."""
    if not plan.stages[0].is_gathered:
        return
    held = max(Counter(stage.replicas for stage in plan.stages).values())
    most = plan.max_active_stages or 1
    if min(most, held) != min(_ACTIVE_STAGES, held):
        raise ValueError(
            f"max_active_stages = {most}, but torchtitan 0.3 keeps {_ACTIVE_STAGES} of {held} stages of a rank "
            f"gathered; plan with --max-active-stages {_ACTIVE_STAGES}"
        )


def titan_ranks(plan: Plan) -> tuple[str, ...]:
    """The device of every process, of a group its first: ranks of the pipeline, and within each its copies."""
    of_rank = {stage.replicas[0][0]: stage.replicas for stage in plan.stages}
    return tuple(group[0] for rank in torch_ranks(plan) for group in of_rank[rank])

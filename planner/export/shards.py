"""Sharded optimizer state, for programs that have one switch for all stages."""

from planner.plan import Plan


def is_sharded(plan: Plan, *, what: str) -> bool:
    """Whether the replicas of every replicated stage shard it; raises ValueError where only some do, or shard more."""
    if plan.max_active_stages is not None:
        raise ValueError(
            f"max_active_stages = {plan.max_active_stages}: stages gather their weights, which {what} cannot be told; "
            "plan without max_active_stages"
        )
    if any(stage.is_fully_sharded for stage in plan.stages):
        raise ValueError(f"it shards weights and gradients (FSDP2), which {what} is not told; plan without fully_shard")
    replicated = [number for number, stage in enumerate(plan.stages) if len(stage.replicas) > 1]
    sharding = [number for number in replicated if plan.stages[number].shard == "optimizer"]
    if sharding and (others := sorted(set(replicated) - set(sharding))):
        raise ValueError(
            f"stage {sharding[0]} has shard = 'optimizer' and stage {others[0]} has not, but {what} shards all stages "
            f"or none; plan with --target {what.lower()}"
        )
    return bool(sharding)

"""Sharded optimizer state, for programs that have one switch for all stages."""

from planner.plan import Plan


def is_sharded(plan: Plan, *, what: str) -> bool:
    """Whether the replicas of every replicated stage shard it; raises ValueError where only some do."""
    replicated = [number for number, stage in enumerate(plan.stages) if len(stage.replicas) > 1]
    sharding = [number for number in replicated if plan.stages[number].shard == "optimizer"]
    if sharding and (others := sorted(set(replicated) - set(sharding))):
        raise ValueError(
            f"stage {sharding[0]} has shard = 'optimizer' and stage {others[0]} has not, but {what} shards all stages "
            f"or none; plan with --target {what.lower()}"
        )
    return bool(sharding)

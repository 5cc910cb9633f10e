"""How many samples a microbatch has, for programs that have to be told."""

from planner.plan import Plan
from planner.problem import Problem


def require_samples(problem: Problem, *, what: str) -> int:
    """Samples of one microbatch; raises ValueError where the profile does not say, and `what` has to know."""
    size = problem.profile.microbatch_size
    if size is None:
        raise ValueError(
            f"profile {problem.profile.name!r}: microbatch_size = null, but {what} needs the samples of a microbatch; "
            "state them in the profile and plan again"
        )
    return size


def require_equal_shares(plan: Plan, *, what: str) -> None:
    """Raise ValueError if replicas of a stage take unequal shares of the samples, or microbatches differ; or if some
    are offloaded, which no other program does with single ones.
    """
    require_no_offload(plan, what=what)
    if plan.problem.microbatches is not None:
        raise ValueError(
            f"problem.microbatches lists {len(plan.problem.microbatches)} sizes, but {what} supports equal "
            "microbatches only; plan with num_microbatches"
        )
    for number, stage in enumerate(plan.stages):
        if stage.samples:
            raise ValueError(
                f"stage {number} has samples = {list(stage.samples)}, but the replicas of {what} take equal shares; "
                "plan with unequal_shares = false"
            )


def require_no_offload(plan: Plan, *, what: str) -> None:
    """Raise ValueError if stashes of single microbatches are to travel to host memory."""
    for number, stage in enumerate(plan.stages):
        if stage.offload:
            raise ValueError(
                f"stage {number} offloads microbatch {stage.offload[0].microbatch}, but {what} offloads every "
                "microbatch alike or none; plan with offload = false"
            )


def require_known_shares(problem: Problem, plan: Plan, *, what: str) -> None:
    """Raise ValueError if replicas are to share microbatches of a size that the profile does not state."""
    counts = [len(stage.replicas) for stage in plan.stages]
    if max(counts, default=1) > 1 and problem.profile.microbatch_size is None:
        number = counts.index(max(counts))
        raise ValueError(
            f"stage {number} has {counts[number]} replicas, but profile {problem.profile.name!r} states "
            f"microbatch_size = null, so {what} cannot divide the samples; state it in the profile, or plan with "
            "max_replicas = 1"
        )


def require_alike_microbatches(plan: Plan, *, what: str) -> None:
    """Raise ValueError for stages that recompute only some microbatches, which `what` cannot be told."""
    some = [number for number, stage in enumerate(plan.stages) if stage.recompute_microbatches]
    if some:
        raise ValueError(
            f"stage {some[0]} recomputes only some microbatches, but {what} recomputes all alike; plan with "
            "recompute_microbatches = false"
        )

"""What programs have to be told of plans: how many samples a microbatch has, and decisions that few know of."""

from collections.abc import Collection
from itertools import product

from planner.decisions import installed
from planner.decisions.choices import closed
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


def require_told(plan: Plan, *, what: str, known: Collection[str] = ()) -> None:
    """Raise ValueError where a stage uses a decision, but for `known`, of which `what` is not told, or sizes differ."""
    if plan.problem.microbatches is not None:
        raise ValueError(
            f"problem.microbatches lists {len(plan.problem.microbatches)} sizes, but {what} supports equal "
            "microbatches only; plan with num_microbatches"
        )
    for (option, decision), (number, stage) in product(installed().items(), enumerate(plan.stages)):
        if option not in known and decision.use is not None and (use := decision.use(stage)):
            raise ValueError(f"stage {number} {use}, which {what} cannot be told; plan with {closed(option)}")


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

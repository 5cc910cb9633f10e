"""The stages of a plan as `planner.dealing` wants them: what each takes and holds, by the size of a microbatch."""

from dataclasses import replace

from planner.dealing import StageTimes
from planner.documents.embedded_problem import enclosed_problem
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem
from profiles.cluster import Cluster
from profiles.microbatch_sizes import measured_sizes

_MOST_MULTIPLE = 64
"""Where costs scale linearly: up to so many times the largest size that was measured."""


def stages_of_plan(plan: Plan, problem: Problem | None = None) -> tuple[StageTimes, ...]:
    """What a pipeline of the plan takes for a whole microbatch at every size that was measured, and has room for.

    The plan's stages have r replicas each, and replica k of all of them is pipeline k: `deal(lengths, r,
    stages=stages_of_plan(plan))`. Lengths are in the unit of the profile's `microbatch_size`. `problem`: the question,
    if the plan brings none along. Raises ValueError for other plans, and where no size is known.
    """
    question = problem or enclosed_problem(plan)
    if question is None:
        raise ValueError("the plan contains no profile; give `problem`")
    count = _require_pipelines(plan, question.cluster)
    types = question.cluster.device_types
    sizes = _known_sizes(question)
    if not sizes:
        raise ValueError(
            f"profile {question.profile.name!r}: no size is measured on all of {', '.join(types)}; profile some"
        )
    listed = replace(question, microbatches=(sizes[-1],) * count, num_microbatches=count)
    balanced = replace(plan, problem=listed.reference(), dealing=tuple((k,) for k in range(count)), schedule={})
    costs = CostModel(listed)
    static = costs.static_bytes_of(balanced)
    found = []
    for stage in balanced.stages_in(0):
        at = [CostModel(listed.at_size(size)).stage_cost(stage, 0) for size in sizes]
        beside = at[-1].stash_bytes - at[-1].held_bytes + at[-1].workspace_bytes
        (device,) = stage.replicas[0]
        found.append(
            StageTimes(
                lengths=sizes,
                forward_ns=tuple(cost.forward_ns for cost in at),
                backward_ns=tuple(cost.backward_ns for cost in at),
                held_bytes=tuple(cost.held_bytes for cost in at),
                room_bytes=question.cluster.by_name[device].usable_bytes - static[device] - beside,
            )
        )
    return tuple(found)


def _require_pipelines(plan: Plan, cluster: Cluster) -> int:
    """How many equal pipelines there are, on a device of one type per stage."""
    counts = {len(stage.replicas) for stage in plan.stages}
    groups = [group for stage in plan.stages for group in stage.replicas]
    devices = {device for group in groups for device in group}
    is_mixed = any(len({cluster.by_name[group[0]].type for group in stage.replicas}) > 1 for stage in plan.stages)
    if len(counts) > 1 or is_mixed or len(devices) < len(groups) or max(map(len, groups)) > 1:
        raise ValueError(
            f"the plan has {len(plan.stages)} stages of {', '.join(map(str, sorted(counts)))} replicas on "
            f"{len(devices)} devices{' of several types' if is_mixed else ''}: whole microbatches are dealt to equal "
            "pipelines with one device per stage; plan with max_stages_per_device = 1, max_width = 1 and "
            "uneven_replication = false"
        )
    return counts.pop()


def _known_sizes(question: Problem) -> tuple[int, ...]:
    """Ascending; with linear costs from one sample to far beyond the largest."""
    sizes = measured_sizes(question.profile, question.cluster.device_types)
    if not sizes or not question.profile.scales_linearly:
        return sizes
    return tuple(sorted({1, *sizes, _MOST_MULTIPLE * sizes[-1]}))

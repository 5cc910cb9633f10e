"""Whether a published method can honour what a problem has decided: one rule per function, each with its reason."""

from collections.abc import Sequence
from fractions import Fraction

from planner.clock import HasTime
from planner.layout.costs import CostModel
from planner.plan import Stage
from planner.problem import Problem

_MAX_LISTED_ACTIONS = 300_000
"""Largest schedule that a list scheduler of ours is asked for."""


class DoesNotApplyError(ValueError):
    """The method cannot answer this problem as published; the message is the reason, in a phrase."""


class OutOfTimeError(DoesNotApplyError):
    """The time that the baselines may take ended while the method was at work."""


class NoRoomError(DoesNotApplyError):
    """The method keeps to the memory, and there is too little for it; with recomputation there may be enough."""


def require_time(has_time: HasTime) -> None:
    """Methods that try many plans ask between two of them."""
    if not has_time():
        raise OutOfTimeError("the time for baselines is over")


def require_split_backward(problem: Problem) -> None:
    """A method that runs I and W apart needs an executor that can."""
    if not problem.options.split_backward:
        raise DoesNotApplyError("needs split_backward")


def require_chunks(problem: Problem, chunks: int) -> None:
    """A method with several stages per device needs an executor that can hold them."""
    limit = problem.options.max_stages_per_device
    if chunks > limit:
        raise DoesNotApplyError(f"needs {chunks} stages per device, max_stages_per_device = {limit}")


def require_few_actions(problem: Problem, num_stages: int) -> None:
    """A method that plays events one by one takes too long on the largest schedules."""
    require_few_steps(num_stages, problem.num_microbatches)


def require_few_steps(num_stages: int, num_microbatches: int) -> None:
    """The same for a method that sees stages and microbatches only."""
    if 3 * num_stages * num_microbatches > _MAX_LISTED_ACTIONS:
        raise DoesNotApplyError(f"orders at most {_MAX_LISTED_ACTIONS:,} actions")


def require_choices(costs: CostModel, stages: Sequence[Stage]) -> None:
    """The stages agree with everything that the options have decided."""
    _require_given(costs.problem, stages)
    _require_pins(costs.problem, stages)
    _require_no_idle_device(costs.problem, stages)
    _require_no_skip(costs, stages)
    _require_replicas(costs.problem, stages)


def _require_given(problem: Problem, stages: Sequence[Stage]) -> None:
    if not problem.is_as_given(stages):
        raise DoesNotApplyError("has other stages, or other devices for them, than those that are given")


def _require_pins(problem: Problem, stages: Sequence[Stage]) -> None:
    stage_of = {name: stage for stage in stages for name in stage.layers}
    for pin in problem.options.pinned:
        if any(pin.device not in group for group in stage_of[pin.layer].replicas):
            raise DoesNotApplyError(f"does not put layer {pin.layer!r} on {pin.device!r}, where it is pinned")


def _require_no_idle_device(problem: Problem, stages: Sequence[Stage]) -> None:
    used = {device for stage in stages for group in stage.groups for device in group}
    idle = len(problem.cluster.devices) - len(used)
    if idle and not problem.options.idle_devices:
        raise DoesNotApplyError(f"leaves {idle} of {len(problem.cluster.devices)} devices idle")


def _require_no_skip(costs: CostModel, stages: Sequence[Stage]) -> None:
    if costs.problem.options.skip_edges:
        return
    for a, b in costs.traffic(stages):
        if b != a + 1:
            raise DoesNotApplyError(f"a tensor would skip from stage {a} to stage {b}, skip_edges = false")


def _require_replicas(problem: Problem, stages: Sequence[Stage]) -> None:
    most = max(len(stage.replicas) for stage in stages)
    if most > problem.replica_limit:
        raise DoesNotApplyError(f"needs {most} replicas, max_replicas = {problem.replica_limit}")
    for count in {len(stage.replicas) for stage in stages}:
        if count not in problem.allowed_replicas:
            size = problem.profile.microbatch_size
            raise DoesNotApplyError(f"needs {count} replicas, which does not divide microbatch_size = {size}")


def replicated_devices(costs: CostModel) -> tuple[str, ...]:
    """The devices of a method that trains everything on all of them: as many as can take equal whole samples.

    Where that is not all, the fastest. Raises DoesNotApplyError where it is a single one of several, or the shares of
    so many were not measured.
    """
    problem = costs.problem
    devices, size = problem.cluster.devices, problem.profile.microbatch_size
    if len(devices) > problem.replica_limit:
        raise DoesNotApplyError(f"needs {len(devices)} replicas, max_replicas = {problem.replica_limit}")
    counts = sorted(problem.allowed_replicas, reverse=True)
    most = next((count for count in counts if costs.has_share(Fraction(1, count))), 1)
    if most == 1 < len(devices):
        raise DoesNotApplyError(f"cannot cut microbatch_size = {size} for any of {len(devices)} devices as measured")
    took = {each: costs.model_ns(each) for each in problem.cluster.device_types}
    slowest_last = sorted(devices, key=lambda device: took[device.type])
    chosen = {device.name for device in slowest_last[:most]}
    return tuple(device.name for device in devices if device.name in chosen)

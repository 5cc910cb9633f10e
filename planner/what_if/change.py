"""What may be different in a what-if: devices, memory, links, the batch and how it is cut into microbatches."""

from dataclasses import dataclass, replace
from typing import Annotated

from planner.batch_problem import MAX_BATCH
from planner.plan import Plan
from planner.problem import Problem
from planner.what_if.cluster_changes import with_link_speed, with_memory, with_twins
from planner.what_if.device_loss import adapt_plan, find_lost, without_devices
from profiles.documents.schema_rules import Stated, not_together
from profiles.documents.strict_record import StrictRecord
from profiles.field_rules import MAX_SAMPLES, Whole, require_fields
from profiles.microbatch_sizes import measured_sizes, profile_at, why_no_cost

_MAX_SPEEDUP = 1000.0

_Objective = Annotated[int, Stated(minimum=0)]

_MOST_DOUBLINGS = 3
"""Microbatches are offered up to eight times as large or as small as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(StrictRecord):
    """What is different in a what-if; everything left out stays as it is."""

    __schema_rules__ = not_together("num_microbatches", "global_batch_size", "microbatch_size")

    devices: Annotated[int, Whole(least=-1024, most=1024)] = 0
    """So many more devices like the last one (fewer, if negative)."""
    memory_bytes: Annotated[int, Whole(least=-(2**50), most=2**50)] = 0
    """So many more bytes on every device (fewer, if negative)."""
    link_speed: Annotated[float, Stated(minimum=1 / _MAX_SPEEDUP, maximum=_MAX_SPEEDUP)] = 1.0
    """Every link has so many times its bandwidth."""
    num_microbatches: Annotated[int, Whole(least=1, most=2**20)] | None = None
    """Microbatches instead of the present number; alone, they keep their size, and the batch changes."""
    global_batch_size: Annotated[int, Whole(least=1, most=MAX_BATCH)] | None = None
    """Samples in the batch instead of the present number; alone, microbatches keep their size."""
    microbatch_size: Annotated[int, Whole(least=1, most=MAX_SAMPLES)] | None = None
    """Samples in a microbatch instead of the present number; alone, the batch stays, and is cut anew."""
    lost: tuple[str, ...] = ()
    """Devices and hosts that are gone."""

    def __post_init__(self) -> None:
        require_fields("change", self)
        if not 1 / _MAX_SPEEDUP <= self.link_speed <= _MAX_SPEEDUP:
            raise ValueError(f"change: link_speed = {self.link_speed} is out of range; give 0.001 to 1000")
        if None not in (self.num_microbatches, self.global_batch_size, self.microbatch_size):
            raise ValueError(
                "change: num_microbatches, global_batch_size and microbatch_size are all given; leave one out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRange:
    """Between what the best plan of a changed question lies; both ends are certain, wherever they are not None."""

    at_least_ns: _Objective | None
    """No plan of the changed question is below; None: there is no such question."""
    at_most_ns: _Objective | None
    """Some verified plan of it takes so long; None: none was found so soon."""
    witness: str | None
    """Which: `this plan`, or a baseline."""
    reason: str | None
    """Why there is no such question, or no plan that fits."""
    price_per_hour: float | None
    """Of all devices that are there then; None where some have no price."""


def find_gone(problem: Problem, change: Change) -> frozenset[str]:
    """The devices that the change takes away; raises ValueError for unknown names, or if none would be left."""
    gone = find_lost(problem, change.lost, field="change: lost =")
    left = [device.name for device in problem.cluster.devices if device.name not in gone]
    if -change.devices >= len(left):
        raise ValueError(f"change: devices = {change.devices} removes all {len(left)} devices; keep at least one")
    return gone | frozenset(left[change.devices :] if change.devices < 0 else ())


def find_start(problem: Problem, plan: Plan, *, change: Change) -> Plan | None:
    """What a search for the changed question may begin with: the present plan, without the devices that are gone."""
    gone = find_gone(problem, change)
    return adapt_plan(plan, gone) if gone else plan


def apply_change(problem: Problem, change: Change) -> Problem:
    """The problem with the change; raises ValueError if there is no such problem."""
    problem.require_alike("a change")
    problem = problem.at_its_size()
    if gone := find_gone(problem, change):
        problem = without_devices(problem, gone)
    if change.memory_bytes:
        problem = with_memory(problem, lambda device: device.memory_bytes + change.memory_bytes)
    if change.link_speed != 1.0:
        problem = with_link_speed(problem, change.link_speed)
    if change.devices > 0:
        problem = with_twins(problem, problem.cluster.devices[-1].name, count=change.devices)
    return _with_batch(problem, change)


def _with_batch(problem: Problem, change: Change) -> Problem:
    """The problem with the batch and the cut that the change asks for."""
    if change.global_batch_size is None and change.microbatch_size is None:
        return replace(problem, num_microbatches=change.num_microbatches or problem.num_microbatches)
    now = problem.profile.microbatch_size
    if now is None:
        raise ValueError(
            f"change: the samples of a microbatch of {problem.profile.name!r} are unknown (microbatch_size = null); "
            "change num_microbatches instead"
        )
    count, size, batch = change.num_microbatches, change.microbatch_size, change.global_batch_size
    if count is None:
        size = now if size is None else size
        count = _quotient(batch or now * problem.num_microbatches, size, what="microbatches of so many samples")
    elif batch is not None:
        size = _quotient(batch, count, what="microbatches")
    assert size is not None
    if reason := why_no_cost(problem.profile, size, device_types=problem.cluster.device_types):
        raise ValueError(f"change: microbatch_size = {size}, but {reason}; measure it (pipeplan profile -b)")
    return replace(problem, profile=profile_at(problem.profile, size), num_microbatches=count)


def _quotient(batch: int, part: int, *, what: str) -> int:
    if batch % part:
        raise ValueError(
            f"change: {batch} samples are not a whole number of {what}: {part}; choose one that divides them"
        )
    return batch // part


def other_cuts(problem: Problem) -> tuple[int, ...]:
    """The sizes of microbatches, ascending, into which the same batch can be cut, the present one among them.

    Those that were measured, and halves and doubles of the present one, wherever the profile says what they cost. There
    are none where the size is not known, or microbatches are listed.
    """
    now, types = problem.profile.microbatch_size, problem.cluster.device_types
    if now is None or problem.microbatches is not None:
        return ()
    doubled = {now << step for step in range(_MOST_DOUBLINGS + 1)}
    halved = {now >> step for step in range(_MOST_DOUBLINGS + 1) if now % (1 << step) == 0}
    batch = now * problem.num_microbatches
    candidates = sorted(doubled | halved | set(measured_sizes(problem.profile, types)))
    divisors = [size for size in candidates if size <= MAX_SAMPLES and batch % size == 0]
    return tuple(size for size in divisors if why_no_cost(problem.profile, size, device_types=types) is None)

"""What may be different in a what-if: devices, memory, links, microbatches."""

from dataclasses import dataclass, replace

from planner.plan import Plan
from planner.problem import Problem
from planner.what_if.cluster_changes import with_link_speed, with_memory, with_twins
from planner.what_if.device_loss import adapt_plan, find_lost, without_devices
from profiles.field_rules import require_integer

_STRICT = {"extra": "forbid", "use_attribute_docstrings": True}

MAX_SPEEDUP = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is different in a what-if; everything left out stays as it is."""

    __pydantic_config__ = _STRICT

    devices: int = 0
    """So many more devices like the last one (fewer, if negative)."""
    memory_bytes: int = 0
    """So many more bytes on every device (fewer, if negative)."""
    link_speed: float = 1.0
    """Every link has so many times its bandwidth."""
    num_microbatches: int | None = None
    """Microbatches instead of the present number."""
    lost: tuple[str, ...] = ()
    """Devices and hosts that are gone."""

    def __post_init__(self) -> None:
        require_integer("change: devices", self.devices, least=-1024, most=1024)
        require_integer("change: memory_bytes", self.memory_bytes, least=-(2**50), most=2**50)
        if not 1 / MAX_SPEEDUP <= self.link_speed <= MAX_SPEEDUP:
            raise ValueError(f"change: link_speed = {self.link_speed} is out of range; give 0.001 to 1000")
        if self.num_microbatches is not None:
            require_integer("change: num_microbatches", self.num_microbatches, least=1, most=2**20)


def find_gone(problem: Problem, change: Change) -> frozenset[str]:
    """The devices that the change takes away; raises ValueError for unknown names, or if none would be left."""
    gone = find_lost(problem, change.lost, field="change: lost =")
    left = [device.name for device in problem.cluster.devices if device.name not in gone]
    if not left:
        raise ValueError(f"change: lost = {', '.join(change.lost)[:200]} takes away every device; leave one")
    if -change.devices >= len(left):
        raise ValueError(f"change: devices = {change.devices} takes away all {len(left)} devices; leave one")
    return gone | frozenset(left[change.devices :] if change.devices < 0 else ())


def find_start(problem: Problem, plan: Plan, *, change: Change) -> Plan | None:
    """What a search for the changed question may begin with: the present plan, without the devices that are gone."""
    gone = find_gone(problem, change)
    return adapt_plan(plan, gone) if gone else plan


def apply_change(problem: Problem, change: Change) -> Problem:
    """The problem with the change, its microbatches cut as they are; raises ValueError if there is no such problem."""
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
    return replace(problem, num_microbatches=change.num_microbatches or problem.num_microbatches)

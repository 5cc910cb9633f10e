"""What is left of a problem, and of a plan, when devices are lost."""

from collections.abc import Collection
from dataclasses import replace

from planner.actions import Action
from planner.plan import Plan, Stage
from planner.problem import Problem


def find_lost(problem: Problem, names: Collection[str], *, field: str = "--lost") -> frozenset[str]:
    """The devices that names of devices and hosts stand for; ValueError for a name that is neither, or if none is left.

    `field`: what the names are called in messages.
    """
    devices = problem.cluster.devices
    known = {device.name for device in devices} | {device.host for device in devices if device.host}
    for name in names:
        if name not in known:
            raise ValueError(
                f"{field} {name}: no device or host of the cluster; give one of {', '.join(sorted(known))[:200]}"
            )
    asked = frozenset(names)
    lost = frozenset(
        device.name for device in devices if device.name in asked or (device.host and device.host in asked)
    )
    if len(lost) == len(devices):
        raise ValueError(f"{field} {', '.join(names)[:200]} removes every device; keep at least one")
    return lost


def without_devices(problem: Problem, lost: Collection[str]) -> Problem:
    """The same question for the devices that are left.

    Links whose end is gone go with it. Pins to lost devices and a given placement are dropped. Raises ValueError if
    nothing is left, or if what is left is no longer connected.
    """
    cluster = problem.cluster
    left = tuple(device for device in cluster.devices if device.name not in lost)
    ends = {device.name for device in left} | {device.host for device in left if device.host} | set(cluster.switches)
    options = replace(
        problem.options,
        pinned=tuple(pin for pin in problem.options.pinned if pin.device not in lost),
        placement=None,
    )
    links = tuple(link for link in cluster.links if {link.a, link.b} <= ends)
    return replace(problem, cluster=replace(cluster, devices=left, links=links), options=options)


def adapt_plan(plan: Plan, lost: Collection[str]) -> Plan | None:
    """The nearest plan on the devices that are left, to start from; None if there is no obvious one.

    A stage that still has replicas continues with them. One that has none is taken in by the stage after it (the last
    one by the stage before it), in that stage's order.
    """
    stages = [_survivors(stage, lost) for stage in plan.stages]
    if any(stage.is_split for stage in plan.stages) or not any(stage.replicas for stage in stages):
        return None
    into = _hosts_of_layers(stages)
    number = {old: new for new, old in enumerate(sorted(set(into)))}
    merged = tuple(
        replace(
            stages[old],
            layers=tuple(name for place, taker in enumerate(into) if taker == old for name in stages[place].layers),
        )
        for old in sorted(set(into))
    )
    held = {device for stage in merged for group in stage.replicas for device in group}
    schedule = {
        device: tuple(Action(kind, number[stage], m) for kind, stage, m in order if stage in number)
        for device, order in plan.schedule.items()
        if device in held
    }
    return replace(plan, stages=merged, schedule=schedule, evidence=None)


def _survivors(stage: Stage, lost: Collection[str]) -> Stage:
    return replace(stage, replicas=tuple(group for group in stage.replicas if not set(group) & set(lost)))


def _hosts_of_layers(stages: list[Stage]) -> list[int]:
    """Per stage the one that runs its layers from now on."""
    alive = [number for number, stage in enumerate(stages) if stage.replicas]
    return [next((taker for taker in alive if taker >= number), alive[-1]) for number in range(len(stages))]

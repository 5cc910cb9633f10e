"""Groups of a host's cores as processes with threads: one process per group, pinned to its cores."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from planner.plan import DeviceGroup, Plan, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostCores:
    """Which cores of its host a device stands for."""

    host: str
    first: int
    """Place of its first among the host's cores that a process may use."""
    count: int


def as_processes(plan: Plan) -> tuple[Plan, dict[str, DeviceGroup]]:
    """The plan with a group's first device in place of the group, and per such device the group.

    Raises ValueError where groups of different stages have some devices in common but not all.
    """
    groups = dict.fromkeys(group for stage in plan.stages for group in stage.groups)
    home: dict[str, DeviceGroup] = {}
    for group in groups:
        for device in group:
            other = home.setdefault(device, group)
            if other != group:
                raise ValueError(
                    f"{device} is in the groups {', '.join(other)} and {', '.join(group)}, but a process drives one "
                    "group only; plan with --max-stages-per-device 1, or run groups as tensor-parallel processes"
                )
    stages = tuple(_merged(stage) for stage in plan.stages)
    schedule = {group[0]: plan.schedule[group[0]] for group in groups}
    evidence = plan.evidence
    if evidence is not None:
        peaks = {group[0]: sum(evidence.peak_bytes.get(device, 0) for device in group) for group in groups}
        evidence = replace(evidence, peak_bytes=peaks)
    return replace(plan, stages=stages, schedule=schedule, evidence=evidence), {group[0]: group for group in groups}


def _merged(stage: Stage) -> Stage:
    return replace(stage, replicas=tuple((group[0],) for group in stage.replicas))


def cores_of(cluster: Any, devices: Sequence[str]) -> dict[str, _HostCores]:
    """The cores of every device of a cluster as parsed, in the order in which its host's devices are listed; None: each
    of the devices named is one core of one host.
    """
    if cluster is None:
        return {name: _HostCores(host="", first=place, count=1) for place, name in enumerate(devices)}
    found, used = dict[str, _HostCores](), dict[str, int]()
    for device in cluster["devices"]:
        host, count = device.get("host") or device["name"], int(device.get("cores", 1))
        found[device["name"]] = _HostCores(host=host, first=used.get(host, 0), count=count)
        used[host] = used.get(host, 0) + count
    return found


def pick_cores(group: DeviceGroup, cores: Mapping[str, _HostCores], *, usable: Sequence[int]) -> tuple[int, ...]:
    """The cores of a group among those that this process may use, in ascending order.

    Raises ValueError if the group is not on one host, or its host has too few.
    """
    if missing := [device for device in group if device not in cores]:
        raise ValueError(f"the cluster does not have {missing[0]}; give the cluster of the plan")
    if len({cores[device].host for device in group}) > 1:
        raise ValueError(
            f"the devices {', '.join(group)} are not on one host, so no process has threads on all of them; "
            "run without --groups threads"
        )
    places = sorted(cores[d].first + k for d in group for k in range(cores[d].count))
    if places[-1] >= len(usable):
        raise ValueError(
            f"{', '.join(group)} stand for cores {', '.join(map(str, places))}, but this process may use "
            f"{len(usable)}; plan for a cluster with as many cores"
        )
    return tuple(usable[place] for place in places)


def pin(cores: Sequence[int]) -> None:
    """From here on this process, and what it starts, runs on these cores only."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def pin_threads(cores: Sequence[int]) -> None:
    """Pinned, with one thread per core; to be called before torch computes."""
    pin(cores)
    torch.set_num_threads(len(cores))

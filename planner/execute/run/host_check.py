"""Whether this host is the one that the plan was made for: devices, memory, links between them. Needs no torch."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.execute.run.nvidia_smi import (
    CONNECTION_QUESTION,
    QUESTION,
    UUID_QUESTION,
    AcceleratorRow,
    names_accelerators,
    nvlink_lanes,
    parse_accelerators,
    parse_connections,
    parse_uuids,
    visible_numbers,
)

_MEASURED_TYPE = "NVIDIA "
"""Device types that begin so are names that `pipeplan cluster discover` read off the devices: they can be compared."""
_NVLINK_SWITCH = "nvlink "
"""Switches that begin so are NVSwitches that `pipeplan cluster discover` saw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the plan takes one device of this host for."""

    device: str
    """Its name in the cluster."""
    index: int
    """Which accelerator of the host it is."""
    type: str
    """Its type in the cluster."""
    need_bytes: int
    """The most that the plan holds there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Devices and memory of this host."""

    memory_bytes: int
    """Of the host itself."""
    accelerators: tuple[AcceleratorRow, ...] = ()
    """In the order in which a process sees them."""
    direct: frozenset[tuple[int, int]] | None = None
    """Pairs of accelerators (lower index first) with a link of their own; None where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What the plan says about one host."""

    host: str
    """Its name in the cluster."""
    devices: tuple[Expected, ...]
    """Devices that the plan uses, with expected type and memory."""
    direct: frozenset[tuple[int, int]] = field(default_factory=frozenset)
    """Pairs of their indices that have a link of their own in the cluster."""


def expect_world(
    cluster: Any, host: str, *, hosts: Mapping[str, tuple[str, int]], used: Sequence[str], peak_bytes: Mapping[str, int]
) -> World:
    """What a cluster document, as parsed, says about `host`; `hosts` as `placement.hosts_of` gives it."""
    described = {device["name"]: device for device in cluster["devices"]}
    here = [name for name in used if name in hosts and hosts[name][0] == host]
    devices = tuple(
        Expected(
            device=name,
            index=hosts[name][1],
            type=str(described[name].get("type", "")),
            need_bytes=peak_bytes.get(name, 0),
        )
        for name in here
    )
    direct = {(hosts[a][1], hosts[b][1]) for a, b in _joined_pairs(cluster, described) if a in here and b in here}
    pairs = frozenset((min(pair), max(pair)) for pair in direct)
    return World(host=host, devices=tuple(sorted(devices, key=lambda device: device.index)), direct=pairs)


def _joined_pairs(cluster: Any, devices: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Pairs of devices that NVLink joins, by a link of their own or at an NVSwitch."""
    at_switches: dict[str, list[str]] = {}
    for link in cluster.get("links", ()):
        a, b = link.get("a"), link.get("b")
        if a in devices and b in devices:
            yield a, b
        for end, other in ((a, b), (b, a)):
            if end in devices and str(other).startswith(_NVLINK_SWITCH):
                at_switches.setdefault(other, []).append(end)
    for names in at_switches.values():
        yield from itertools.combinations(names, 2)


def find_world_differences(world: World, found: Found, *, on_processors: bool = False) -> tuple[str, ...]:
    """How this host differs from what the plan takes it for, a sentence each; empty if the plan fits.

    `on_processors`: run there, whatever accelerators there are.
    """
    if not on_processors and (found.accelerators or any(_is_measured(device) for device in world.devices)):
        sentences = [
            sentence for device in world.devices for sentence in _differences(device, world=world, found=found)
        ]
        return tuple(sentences) or _topology(world, found)
    need = sum(device.need_bytes for device in world.devices)
    if need > found.memory_bytes:
        names = ", ".join(device.device for device in world.devices)
        return (
            f"other memory: the plan holds {need:,} bytes on {names}, but host {world.host!r} has "
            f"{found.memory_bytes:,}; plan for the memory that is there",
        )
    return ()


def _is_measured(device: Expected) -> bool:
    return device.type.startswith(_MEASURED_TYPE)


def _differences(device: Expected, *, world: World, found: Found) -> list[str]:
    where = f"accelerator {device.index} of host {world.host!r}"
    if device.index >= len(found.accelerators):
        return [
            f"missing device: {device.device} is {where}, which shows {len(found.accelerators)}; make it visible, or "
            "plan again without it"
        ]
    has, sentences = found.accelerators[device.index], []
    has_bytes = has.memory_bytes or found.memory_bytes
    if _is_measured(device) and has.name != device.type:
        sentences.append(
            f"other device: {device.device} is a {device.type!r} in the plan, but {where} is a {has.name!r}; "
            "profile it and plan again"
        )
    if device.need_bytes > has_bytes:
        sentences.append(
            f"other memory: the plan holds {device.need_bytes:,} bytes on {device.device}, but {where} has "
            f"{has_bytes:,}; plan for the memory that is there"
        )
    return sentences


def _topology(world: World, found: Found) -> tuple[str, ...]:
    """Links that the plan counts on and that are not there; more links than planned do no harm."""
    if found.direct is None or not all(_is_measured(device) for device in world.devices):
        return ()
    return tuple(
        f"other topology: the plan counts on a link between accelerators {a} and {b} of host {world.host!r}, and "
        "there is none; discover the cluster and plan again"
        for a, b in sorted(world.direct - found.direct)
    )


def look_around(environment: Mapping[str, str]) -> Found:
    """What this host has, as the system and nvidia-smi say; accelerators that do not answer are none."""
    memory_bytes = host_memory_bytes()
    if shutil.which("nvidia-smi") is None:
        return Found(memory_bytes=memory_bytes)
    wanted = environment.get("CUDA_VISIBLE_DEVICES")
    try:
        rows = {row.index: row for row in parse_accelerators(_ask(*QUESTION)).working}
    except ValueError:
        return Found(memory_bytes=memory_bytes)
    uuids = parse_uuids(_ask(*UUID_QUESTION)) if names_accelerators(wanted) else {}
    try:
        kept = visible_numbers(wanted, numbers=list(rows), uuids=uuids)
    except ValueError:  # slices of a GPU: which of them is not told
        kept = list(rows)
    direct = nvlink_lanes(parse_connections(_ask(*CONNECTION_QUESTION)))
    return Found(
        memory_bytes=memory_bytes,
        accelerators=tuple(rows[number] for number in kept),
        direct=frozenset(
            (a, b) for a, first in enumerate(kept) for b, second in enumerate(kept)
            if a < b and (min(first, second), max(first, second)) in direct
        ),
    )  # fmt: skip


def host_memory_bytes() -> int:
    """Physical memory of this machine in bytes, as sysconf tells it."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _ask(*arguments: str) -> str:
    done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 else ""

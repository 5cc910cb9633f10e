"""This host, or another one, as nvidia-smi describes it."""

import itertools
from collections.abc import Mapping
from dataclasses import replace

from planner.execute.run.nvidia_smi import (
    AcceleratorRow,
    AcceleratorRows,
    nvlink_lanes,
    parse_connections,
    visible_numbers,
)
from profiles.discovery.hosts import (
    DeviceDefaults,
    FoundHosts,
    HostDevice,
    HostFacts,
    LeftOut,
    accelerator,
    accelerators,
)
from profiles.discovery.nvlink import restricted, with_nvlink

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def describe_host(
    bare: HostFacts,
    rows: AcceleratorRows,
    *,
    connections: str,
    sizes: DeviceDefaults,
    environment: Mapping[str, str],
    uuids: Mapping[int, str],
) -> FoundHosts:
    """A host with the accelerators that it has and that `environment` leaves visible, and the links between those.

    `bare`: the host without them. `connections`: the matrix of `nvidia-smi topo -m`; empty: not told. `uuids`: names of
    the accelerators by number, where `environment` uses them. Raises ValueError for a matrix of another host.
    """
    numbers = [row.index for row in rows.working]
    place = {number: position for position, number in enumerate(numbers)}
    pairs = parse_connections(connections)
    if connections and (missing := set(itertools.combinations(numbers, 2)) - pairs.keys()):
        a, b = min(missing)
        raise ValueError(f"`nvidia-smi topo -m` does not show what joins GPU {a} and {b}; give the matrix of this host")
    others = {number for pair in pairs for number in pair} - {*numbers}
    if len(others) > len(rows.lost):
        raise ValueError(f"`nvidia-smi topo -m` shows GPU {min(others)}, which is not listed; give both of one host")
    lanes = {(place[a], place[b]): count for (a, b), count in nvlink_lanes(pairs).items() if {a, b} <= place.keys()}
    host = with_nvlink(
        replace(bare, devices=tuple(_device(row, rows, bare=bare, sizes=sizes) for row in rows.working)), lanes
    )
    wanted = environment.get(_VISIBLE)
    kept = visible_numbers(wanted, numbers=numbers, uuids=uuids)
    left_out = [LeftOut(what=name, why=why) for name, why in rows.lost.items()]
    left_out += [LeftOut(what=f"GPU {n}", why=f"{_VISIBLE}={wanted}") for n in numbers if n not in kept]
    return FoundHosts(
        hosts=(restricted(host, [place[number] for number in kept]),),
        left_out=tuple(left_out),
        notes=tuple(_notes(rows, bare, sizes=sizes)),
        assumed=tuple(_assumed(rows, connections=connections, environment=environment)),
    )


def _device(row: AcceleratorRow, rows: AcceleratorRows, *, bare: HostFacts, sizes: DeviceDefaults) -> HostDevice:
    if row.memory_bytes is None and sizes.memory_bytes is None and bare.memory_bytes is not None:
        return accelerator(row.name, memory_bytes=bare.memory_bytes // len(rows.unified))
    return accelerators(row.name, count=1, memory_bytes=row.memory_bytes, sizes=sizes)[0]


def _notes(rows: AcceleratorRows, bare: HostFacts, *, sizes: DeviceDefaults) -> list[str]:
    """What has to be known of devices without memory of their own."""
    if not rows.unified or sizes.memory_bytes is not None or bare.memory_bytes is None:
        return []
    names = ", ".join(dict.fromkeys(row.name for row in rows.unified))
    return [f"{names} uses the memory of its host, {bare.memory_bytes / 2**30:.4g} GiB (unified memory)"]


def _assumed(rows: AcceleratorRows, *, connections: str, environment: Mapping[str, str]) -> list[str]:
    """What nvidia-smi does not tell about several devices."""
    assumed = []
    if len(rows.working) > 1 and not connections:
        assumed.append("no NVLink (the output of `nvidia-smi topo -m` is missing)")
    if len({row.name for row in rows.working}) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        assumed.append("numbers as nvidia-smi has them (CUDA_DEVICE_ORDER=PCI_BUS_ID)")
    return assumed

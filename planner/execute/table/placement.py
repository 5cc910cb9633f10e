"""Which device of the plan this process drives, found out by the process itself before it meets the others.

A launcher only has to start as many processes on every host as the plan uses devices there: their ranks are settled
here, whatever order the launcher counted them in.
"""

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HOST_VARIABLES = ("PLAN_NODE", "SLURMD_NODENAME", "NODE_NAME")
"""Where the name of this host, as the cluster document has it, is looked for; else it is the machine's own name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePosition:
    """Rank, host and slot of a process."""

    rank: int
    """Its number in the plan's layout."""
    host: str
    """The host it runs on."""
    index: int
    """Which accelerator of that host it drives."""


def find_position(
    devices: Sequence[str], environment: Mapping[str, str], *, hosts: Mapping[str, tuple[str, int]] | None = None
) -> DevicePosition:
    """The place of this process.

    `devices`: the device of every rank; `hosts`: host and index there of every device of the cluster, None to take
    the launcher's ranks as they are. Raises ValueError if the launcher started other processes than the plan needs.
    """
    world_size = _number(environment, "WORLD_SIZE")
    if world_size != len(devices):
        raise ValueError(
            f"the plan runs on {len(devices)} devices ({', '.join(devices)}), but {world_size} processes were started; "
            f"start {len(devices)}{_per_host(devices, hosts)}"
        )
    host = next((environment[name] for name in HOST_VARIABLES if environment.get(name)), socket.gethostname())
    slot = _number(environment, "LOCAL_RANK")
    if hosts is None:
        return DevicePosition(rank=_number(environment, "RANK"), host=host, index=slot)
    here = sorted((hosts[name][1], name) for name in devices if name in hosts and hosts[name][0] == host)
    if slot >= len(here):
        known = ", ".join(sorted({place for place, _ in hosts.values()}))
        raise ValueError(
            f"process {slot} of host {host!r} has no device: the plan uses {len(here)} there; "
            f"start {len(devices)}{_per_host(devices, hosts)}, and name hosts as in the cluster ({known}) "
            f"or set {HOST_VARIABLES[0]}"
        )
    index, device = here[slot]
    return DevicePosition(rank=list(devices).index(device), host=host, index=index)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isdecimal():
        raise ValueError(
            f"{name} = {text!r} is not a number; start with torchrun, or set RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR "
            "and MASTER_PORT"
        )
    return int(text)


def _per_host(devices: Sequence[str], hosts: Mapping[str, tuple[str, int]] | None) -> str:
    """How many on which host, where that is known."""
    if hosts is None:
        return f" (torchrun --nproc-per-node {len(devices)} on a single host)"
    counts: dict[str, int] = {}
    for name in devices:
        if name in hosts:
            counts[hosts[name][0]] = counts.get(hosts[name][0], 0) + 1
    return f" ({', '.join(f'{count} on {host}' for host, count in counts.items())})"


def load_cluster_tree(text: str, *, source: str = "cluster") -> Any:
    """The cluster of a cluster or workload document, as parsed; raises ValueError if it is not JSON."""
    try:
        document: Any = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{source}: not JSON ({str(error)[:120]}); give a cluster or a workload document") from None
    return document.get("cluster", document) if isinstance(document, dict) else None


def hosts_of(cluster: Any, *, source: str) -> dict[str, tuple[str, int]]:
    """Host, and index among the devices there, of every device of a cluster as parsed.

    Raises ValueError that names the source.
    """
    devices = cluster.get("devices") if isinstance(cluster, dict) else None
    if not isinstance(devices, list):
        raise ValueError(f"{source}: has no list of devices; give a cluster or a workload document")
    hosts: dict[str, tuple[str, int]] = {}
    counts: dict[str, int] = {}
    for device in devices:
        if not isinstance(device, dict) or not isinstance(device.get("name"), str):
            raise ValueError(f"{source}: {str(device)[:60]!r} is not a device; give a cluster or a workload document")
        host = device.get("host") or device["name"]
        hosts[device["name"]] = (host, counts.get(host, 0))
        counts[host] = counts.get(host, 0) + 1
    return hosts


def read_host_names(pairs: Sequence[str]) -> dict[str, str]:
    """What planned hosts are really called, from `PLANNED=REAL` pairs; raises ValueError for anything else."""
    names: dict[str, str] = {}
    for pair in pairs:
        planned, equals, real = pair.partition("=")
        if not (planned and equals and real):
            raise ValueError(f"--host {pair}: write PLANNED=REAL, e.g. --host h0=node17")
        if names.get(planned, real) != real:
            raise ValueError(f"--host {pair}: {planned} is {names[planned]} already; give one")
        names[planned] = real
    return names

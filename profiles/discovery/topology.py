"""Which switches hosts hang on: what Slurm's topology plugins and the labels of Kubernetes' nodes say."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from profiles.discovery.hosts import HostFacts

TOPOLOGY_LABELS = (
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
    "cloud.google.com/gce-topology-block",
    "cloud.google.com/gce-topology-subblock",
    "cloud.google.com/gce-topology-host",
    "network.topology.nvidia.com/datacenter",
    "network.topology.nvidia.com/core",
    "network.topology.nvidia.com/spine",
    "network.topology.nvidia.com/leaf",
    "network.topology.nvidia.com/block",
    *(f"fabric.topograph.run/tier-{number}" for number in range(7, -1, -1)),
    "cloud.provider.com/topology-block",
    "cloud.provider.com/topology-rack",
)
"""What clouds and NVIDIA's topograph call the levels of a network, the outermost first."""
MAX_DEPTH = 32
"""More switches above each other than any network has: they would go round in a circle."""
MAX_NAMES = 100_000
"""More names than a list of hosts has."""


def with_slurm_switches(hosts: Sequence[HostFacts], text: str) -> list[HostFacts]:
    """The hosts under the switches or blocks of `scontrol show topology`; as they are if it tells of none.

    Raises ValueError for an answer whose switches go round in a circle, or whose lists of names are none.
    """
    above: dict[str, str] = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S+)", line))
        name = fields.get("SwitchName") or fields.get("BlockName")
        if name is None:
            continue
        # The line of a switch above others lists the nodes below them as well.
        for child in expand_names(fields.get("Switches") or fields.get("Nodes") or ""):
            above.setdefault(("" if "Switches" in fields else "host ") + child, name)
    return [replace(host, switches=_climb(above, f"host {host.name}")) for host in hosts]


def _climb(above: Mapping[str, str], start: str) -> tuple[str, ...]:
    """The switches above, the outermost first."""
    path: list[str] = []
    here = above.get(start)
    while here is not None:
        path.insert(0, here)
        if len(path) > MAX_DEPTH:
            raise ValueError(f"topology: switch {here!r} is above itself; give the answer of `scontrol show topology`")
        here = above.get(here)
    return tuple(path)


def expand_names(text: str) -> list[str]:
    """The names of a list as Slurm writes it: `n[0-3,07],login` are n0 to n3, n07 and login.

    Raises ValueError for brackets that do not close, and for ranges that are none.
    """
    names: list[str] = []
    if text in ("", "(null)"):
        return names
    for part in re.split(r",(?![^\[]*\])", text):
        names += _expand(part, whole=text)
        if len(names) > MAX_NAMES:
            raise ValueError(f"topology: {text[:60]!r} names more than {MAX_NAMES:,} hosts; give what is there")
    return names


def _expand(part: str, *, whole: str) -> Iterator[str]:
    match = re.fullmatch(r"([^\[\]]*)(?:\[([0-9,-]+)\](.*))?", part)
    if match is None:
        raise ValueError(f"topology: {whole[:60]!r} is no list of names; write it as Slurm does, e.g. n[0-3,7]")
    head, ranges, rest = match.groups()
    if ranges is None:
        yield head
        return
    tails = list(_expand(rest, whole=whole))
    for one in ranges.split(","):
        first, dash, last = one.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) - int(first) > MAX_NAMES:
            raise ValueError(f"topology: {one!r} in {whole[:60]!r} is no range; write e.g. 0-3")
        for number in range(int(first), int(last or first) + 1):
            yield from (f"{head}{number:0{len(first)}d}{tail}" for tail in tails)


def switches_of_labels(labels: Mapping[str, Any], *, keys: Sequence[str] = ()) -> tuple[str, ...]:
    """The switches above a node of Kubernetes, the outermost first, each named by the way to it.

    `keys`: the labels that say it, the outermost first; those of `TOPOLOGY_LABELS` if there are none.
    """
    values = [str(labels[key]) for key in keys or TOPOLOGY_LABELS if labels.get(key)]
    return tuple("/".join(values[: depth + 1]) for depth in range(len(values)))

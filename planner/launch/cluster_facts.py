"""What launchers want to know of a cluster beyond who is where: types of devices, and NVLink domains."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Of the cluster document that a plan is launched on."""

    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By host: the types of its devices, in order of their indices."""
    domains: tuple[frozenset[str], ...] = ()
    """The hosts of every NVLink domain that joins several."""


def read_cluster_facts(cluster: Any, hosts: Mapping[str, tuple[str, int]]) -> ClusterFacts:
    """Facts of a cluster as parsed; `hosts` as `planner.execute.table.placement.hosts_of` gives it for the same.

    A domain is a switch to which devices of several hosts have links of their own.
    """
    found: dict[str, dict[int, str]] = {}
    for device in cluster["devices"]:
        host, index = hosts[device["name"]]
        found.setdefault(host, {})[index] = str(device.get("type", ""))
    switches = set(cluster.get("switches") or ())
    joined: dict[str, set[str]] = {}
    for link in cluster.get("links") or ():
        ends = link.get("a"), link.get("b")
        for device, switch in (ends, ends[::-1]):
            if device in hosts and switch in switches:
                joined.setdefault(switch, set()).add(hosts[device][0])
    return ClusterFacts(
        types={host: tuple(kinds[index] for index in sorted(kinds)) for host, kinds in found.items()},
        domains=tuple(frozenset(members) for members in joined.values() if len(members) > 1),
    )

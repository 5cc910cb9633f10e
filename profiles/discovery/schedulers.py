"""What Slurm, Kubernetes and hostfiles say about hosts."""

import json
import re
from collections.abc import Sequence
from typing import Any

from profiles.discovery.hosts import DeviceDefaults, HostFacts, accelerators, workers
from profiles.discovery.topology import switches_of_labels

_DOWN = ("DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "MAINT", "INVAL")
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_slurm_nodes(text: str, *, sizes: DeviceDefaults) -> list[HostFacts]:
    """The answer of `scontrol --oneliner show node`; nodes that are down or drained are left out.

    Raises ValueError if there is no node, or one with accelerators whose memory is not given.
    """
    hosts = []
    for line in text.splitlines():
        fields = dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", line))
        if "NodeName" in fields and not any(word in fields.get("State", "") for word in _DOWN):
            hosts.append(_slurm_node(fields, sizes=sizes))
    if not hosts:
        raise ValueError("scontrol shows no node that is up; give the answer of `scontrol --oneliner show node`")
    return hosts


def _slurm_node(fields: dict[str, str], *, sizes: DeviceDefaults) -> HostFacts:
    gres = re.findall(r"gpu:(?:([A-Za-z][^:,()]*):)?([0-9]+)", fields.get("Gres", ""))
    devices = tuple(
        device
        for kind, count in gres
        for device in accelerators(kind or "gpu", count=int(count), memory_bytes=None, sizes=sizes)
    )
    memory_bytes = int(fields.get("RealMemory", "0")) * 2**20
    return HostFacts(
        name=fields["NodeName"],
        devices=devices or workers(cores=int(fields.get("CPUTot", "1")), memory_bytes=memory_bytes, sizes=sizes),
    )


def parse_kubernetes_nodes(text: str, *, sizes: DeviceDefaults, topology_labels: Sequence[str] = ()) -> list[HostFacts]:
    """The answer of `kubectl get nodes --output json`; nodes that are not ready or take no pods are left out.

    Accelerators are described by the labels of NVIDIA's feature discovery (`nvidia.com/gpu.product`, `.memory` in MiB),
    switches by `topology_labels`, the outermost first, or those that clouds and topograph set.
    Raises ValueError if there is no node, or one whose accelerators nobody describes.
    """
    try:
        nodes = json.loads(text)["items"]
        hosts = [_kubernetes_node(node, sizes=sizes, keys=topology_labels) for node in nodes if _is_ready(node)]
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"not the answer of `kubectl get nodes --output json` ({error})") from None
    if not hosts:
        raise ValueError("Kubernetes has no node that is ready; see `kubectl get nodes`")
    return hosts


def _is_ready(node: Any) -> bool:
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])
    return ready and not node.get("spec", {}).get("unschedulable", False)


def _kubernetes_node(node: Any, *, sizes: DeviceDefaults, keys: Sequence[str]) -> HostFacts:
    labels, offered = node["metadata"].get("labels", {}), node["status"]["allocatable"]
    name = labels.get("kubernetes.io/hostname", node["metadata"]["name"])
    count = int(offered.get("nvidia.com/gpu", "0"))
    if count:
        memory = labels.get("nvidia.com/gpu.memory")
        devices = accelerators(
            labels.get("nvidia.com/gpu.product", "nvidia.com/gpu"),
            count=count,
            memory_bytes=int(memory) * 2**20 if memory else None,
            sizes=sizes,
        )
    else:
        devices = workers(cores=_cores(offered["cpu"]), memory_bytes=_bytes(offered["memory"]), sizes=sizes)
    return HostFacts(name=name, devices=devices, switches=switches_of_labels(labels, keys=keys))


def _cores(quantity: str) -> int:
    """`8` or `7910m`."""
    return int(quantity[:-1]) // 1000 if quantity.endswith("m") else int(quantity)


def _bytes(quantity: str) -> int:
    """`32779544Ki` and the like."""
    number, unit = re.fullmatch(r"([0-9]+)([A-Za-z]*)", quantity).groups()  # type: ignore[union-attr]
    return int(number) * (_BINARY[unit] if unit else 1)


def parse_hostfile(text: str, *, sizes: DeviceDefaults, kind: str) -> list[HostFacts]:
    """Lines `HOST`, `HOST slots=N` or `HOST:N`, as for mpirun and DeepSpeed; comments begin with #.

    `kind`: device type of every slot. Raises ValueError that names the line for anything else, and for a host that is
    listed twice.
    """
    hosts: dict[str, HostFacts] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        match = re.fullmatch(r"(\S+?)(?::([0-9]+)|\s+slots\s*=\s*([0-9]+)(?:\s.*)?)?", words)
        if match is None or match[1] in hosts:
            raise ValueError(f"line {number} of the hostfile: {words[:60]!r}; write HOST, HOST slots=N or HOST:N, once")
        count = int(match[2] or match[3] or 1)
        devices = accelerators(kind, count=count, memory_bytes=None, sizes=sizes)
        hosts[match[1]] = HostFacts(name=match[1], devices=devices)
    if not hosts:
        raise ValueError("the hostfile names no host")
    return list(hosts.values())

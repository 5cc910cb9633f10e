"""The accelerators of a node of Kubernetes: what device plugins offer and what labels say about it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiles.discovery.hosts import DeviceDefaults, HostDevice, accelerators
from profiles.discovery.migs import mig_memory_bytes
from profiles.discovery.quantities import parse_quantity, whole_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Accelerators of one maker."""

    resource: re.Pattern[str]
    """The resources that are devices, each device under one of them."""
    product: tuple[str, ...] = ()
    """Labels that name the type, the first that is there; none: the resource does."""
    memory: tuple[tuple[str, int], ...] = ()
    """Labels that state the memory of a device, and the unit in bytes of a bare number."""


_MEBIBYTE = 2**20
FAMILIES = (
    Family(
        resource=re.compile(r"nvidia\.com/(gpu|mig-[^/]+?)(\.shared)?"),
        product=("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "karpenter.k8s.aws/instance-gpu-name"),
        memory=(("nvidia.com/gpu.memory", _MEBIBYTE), ("karpenter.k8s.aws/instance-gpu-memory", _MEBIBYTE)),
    ),
    Family(
        resource=re.compile(r"amd\.com/(gpu|[a-z]px_nps[0-9]+)"),
        product=("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name"),
        memory=(("amd.com/gpu.vram", 1), ("beta.amd.com/gpu.vram", 1)),
    ),
    Family(resource=re.compile(r"habana\.ai/(gaudi|goya)")),
    Family(resource=re.compile(r"google\.com/tpu"), product=("cloud.google.com/gke-tpu-accelerator",)),
    Family(
        resource=re.compile(r"huawei\.com/(?!.*-memory)([Aa]scend[^/]*|npu)"),
        product=("node.kubernetes.io/npu.chip.name",),
    ),
    Family(resource=re.compile(r"gpu\.intel\.com/(i915|xe)"), product=("gpu.intel.com/product",)),
    Family(
        resource=re.compile(r"aws\.amazon\.com/neuron"),
        product=("karpenter.k8s.aws/instance-accelerator-name",),
    ),
    Family(resource=re.compile(r"cambricon\.com/(real-)?mlu[^/.]*")),
    Family(resource=re.compile(r"(iluvatar\.ai/gpu|metax-tech\.com/gpu|mthreads\.com/gpu|enflame\.com/gcu)")),
    Family(resource=re.compile(r"(hygon\.com/dcu|kunlunxin\.com/xpu|tenstorrent\.com/[^/]+)")),
)
"""Resources that are accelerators; all others are not."""
_PLAIN = re.compile(r"cpu|memory|pods|ephemeral-storage|storage|(hugepages|attachable-volumes)-.*|.*kubernetes\.io/.*")
"""Resources that every node has."""


_AMD_KEY = re.compile(r"((?:beta\.)?amd\.com/(?:gpu\.(?:vram|product-name|device-id)|compute-memory-partition))\.(.+)")
_AMD_PARTITION = ("amd.com/compute-memory-partition", "beta.amd.com/compute-memory-partition")
_THERE = ("nvidia.com/gpu.count", "nvidia.com/gpu.present")
_CLAIMED = "where pods claim them (DRA), list them in a hostfile"
_GKE_CLIENTS = "cloud.google.com/gke-max-shared-clients-per-gpu"
_GKE_SLICE = "cloud.google.com/gke-gpu-partition-size"
_HAMI_KEY = re.compile(r"hami\.io/node-.*register.*")
"""Annotations of a scheduler that offers parts of devices as if each were one."""
_INTEL_KEY = re.compile(r"gpu\.intel\.com/device-id\..*\.count")


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeDevices:
    """The accelerators that a node offers."""

    devices: tuple[HostDevice, ...]
    notes: tuple[str, ...]
    """Remarks for the last line: devices that are shared, assumed or left out."""


def node_devices(node: Mapping[str, Any], *, sizes: DeviceDefaults) -> _NodeDevices:
    """The whole devices of a node, those that are shared in time counted once.

    Raises ValueError that names the field where counts contradict each other or a quantity is none.
    """
    labels = _clean(node["metadata"].get("labels") or {})
    if key := next((key for key in node["metadata"].get("annotations") or {} if _HAMI_KEY.fullmatch(key)), None):
        raise ValueError(
            f"annotation {key}: HAMi offers parts of its devices as devices; take the node out of the answer"
        )
    allocatable, capacity = node["status"]["allocatable"], node["status"].get("capacity") or {}
    devices: list[HostDevice] = []
    notes: list[str] = []
    others = []
    for resource in allocatable:
        family = next((one for one in FAMILIES if one.resource.fullmatch(resource)), None)
        offered = _amount(allocatable, resource, field="allocatable") if family or not _PLAIN.fullmatch(resource) else 0
        if family is None:
            others += [resource] if offered else []
            continue
        there = _amount(capacity, resource, field="capacity") if resource in capacity else offered
        if not there and not offered:
            continue
        if offered > there:
            raise ValueError(f"allocatable {resource} = {offered}, but capacity {there}; correct one of them")
        shares = _shares(resource, there, labels=labels)
        count = offered // shares
        if shares > 1:
            notes.append(f"shares {count} of {resource} as {offered}; a plan takes whole ones")
        if offered < there:
            notes.append(f"offers {offered} of its {there} {resource}")
        kind, memory_bytes = _type_of(resource, family, labels=labels), _memory(resource, family, labels=labels)
        if resource.startswith("gpu.intel.com/") and (total := labels.get("gpu.intel.com/memory.max")):
            memory_bytes = int(parse_quantity(total)) // (there // shares)
        memory_bytes = memory_bytes or mig_memory_bytes(kind, sizes)
        devices += accelerators(kind, count=count, memory_bytes=memory_bytes, sizes=sizes) if count else ()
    told = next((key for key in _THERE if labels.get(key, "0") not in ("0", "false")), None)
    if told and not any(resource.startswith("nvidia.com/") for resource in allocatable):
        notes.append(f"has GPUs by its label {told} = {labels[told]}, which no plugin offers; {_CLAIMED}")
    if others:
        notes.append(f"has {', '.join(others[:4])}, not taken for accelerators")
    return _NodeDevices(devices=tuple(devices), notes=tuple(notes))


def _clean(labels: Mapping[str, Any]) -> dict[str, str]:
    """The labels; older ones of AMD hold the value in their key: `beta.amd.com/gpu.vram.16G=1`."""
    clean = {key: str(value) for key, value in labels.items()}
    told: dict[str, set[str]] = {}
    for key in labels:
        if match := _AMD_KEY.fullmatch(key):
            told.setdefault(match[1], set()).add(match[2])
    for key, values in told.items():
        if len(values) > 1:
            raise ValueError(
                f"labels {key}.* name {' and '.join(sorted(values))}, but not which device is which; "
                "leave the node out of the answer"
            )
        clean.setdefault(key, values.pop())
    return clean


def _amount(table: Mapping[str, Any], resource: str, *, field: str) -> int:
    try:
        return whole_quantity(table[resource])
    except ValueError as error:
        raise ValueError(f"{field} {resource}: {error}") from None


def _label_count(labels: Mapping[str, str], key: str) -> int | None:
    if not labels.get(key):
        return None
    if not labels[key].isdecimal():
        raise ValueError(f"label {key} = {labels[key]!r} is not a whole number; correct the label")
    return int(labels[key])


def _shares(resource: str, there: int, *, labels: Mapping[str, str]) -> int:
    """How many of a resource are one device; raises ValueError where labels count otherwise than the plugin."""
    if resource.startswith("nvidia.com/"):
        return _nvidia_shares(resource, there, labels=labels)
    if resource == "amd.com/gpu":
        counted = max((_label_count(labels, key) or 0 for key in labels if _AMD_KEY.fullmatch(key)), default=0)
        if counted not in (0, there):
            raise ValueError(
                f"capacity {resource} = {there}, but labels of amd.com count {counted}; correct the labels"
            )
    if resource.startswith("gpu.intel.com/"):
        counted = sum(_label_count(labels, key) or 0 for key in labels if _INTEL_KEY.fullmatch(key))
        if counted and there % counted:
            raise ValueError(
                f"capacity {resource} = {there}, but labels of gpu.intel.com count {counted}; correct the labels"
            )
        return there // counted if counted else 1
    return 1


def _nvidia_shares(resource: str, there: int, *, labels: Mapping[str, str]) -> int:
    base = resource.removesuffix(".shared")
    count, replicas = _label_count(labels, f"{base}.count"), _label_count(labels, f"{base}.replicas")
    clients = _label_count(labels, _GKE_CLIENTS)
    replicas = clients if replicas is None else replicas
    is_shared = (
        resource.endswith(".shared")
        or labels.get(f"{base}.product", "").endswith("-SHARED")
        or labels.get(f"{base}.sharing-strategy", "none") not in ("none", "")
    )
    shares = max(replicas or 1, 1)
    if is_shared and replicas in (None, 0, 1) and count:
        shares = there // count or 1
    if is_shared and replicas is None and count is None:
        raise ValueError(f"{resource} is shared, but no label {base}.replicas or {base}.count states by how many")
    # With MIG's mixed strategy the label counts the GPUs that are sliced as well.
    is_mixed = base == "nvidia.com/gpu" and labels.get("nvidia.com/mig.strategy") == "mixed"
    if count is not None and (there > count * shares if is_mixed else there != count * shares):
        told = f"label {base}.count = {count}" + (f" and {base}.replicas = {replicas}" if replicas else "")
        raise ValueError(f"capacity {resource} = {there}, but {told}; correct the label, or cordon the node")
    if there % shares:
        raise ValueError(
            f"capacity {resource} = {there} is no multiple of the {shares} that share each by the labels; "
            "correct the labels"
        )
    return shares


def _type_of(resource: str, family: Family, *, labels: Mapping[str, str]) -> str:
    own = labels.get(f"{resource.removesuffix('.shared')}.product")
    name = own or next((labels[key] for key in family.product if labels.get(key)), None)
    if partition := _amd_partition(resource, labels=labels):
        return f"{name}-{partition}" if name else resource
    is_whole = not resource.startswith("nvidia.com/mig-")
    size = labels.get(_GKE_SLICE) if resource.startswith("nvidia.com/") and is_whole else None
    if (not is_whole or size) and not own:
        name_of_slice = f"nvidia.com/mig-{size}" if size else resource
        profile = name_of_slice.removeprefix("nvidia.com/").removesuffix(".shared").replace("mig-", "MIG-")
        return f"{name.removesuffix('-SHARED')}-{profile}" if name else resource
    return name.removesuffix("-SHARED") if name else resource


def _amd_partition(resource: str, *, labels: Mapping[str, str]) -> str:
    """The mode in which GPUs of AMD are cut into parts, whose memory no label states; empty: they are whole."""
    if not resource.startswith("amd.com/"):
        return ""
    told = next((labels[key] for key in _AMD_PARTITION if labels.get(key)), "")
    mode = told if resource == "amd.com/gpu" else resource.removeprefix("amd.com/")
    return "" if mode.lower().startswith("spx") else mode


def _memory(resource: str, family: Family, *, labels: Mapping[str, str]) -> int | None:
    """Bytes of a device as a label states it; None: no label does."""
    keys = family.memory
    if resource.startswith("nvidia.com/mig-"):
        keys = ((f"{resource.removesuffix('.shared')}.memory", _MEBIBYTE),)
    elif _amd_partition(resource, labels=labels):
        keys = ()
    for key, unit in keys:
        if labels.get(key):
            # AMD's labeller cuts off to whole gibibytes, and writes G for them.
            text = re.sub(r"^([0-9]+)([GM])$", r"\1\2i", labels[key])
            try:
                return int(parse_quantity(text) * (unit if text.isdecimal() else 1)) or None
            except ValueError as error:
                raise ValueError(f"label {key}: {error}") from None
    return None

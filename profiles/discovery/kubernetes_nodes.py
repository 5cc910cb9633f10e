"""What Kubernetes says about nodes: the answer of `kubectl get nodes`, as JSON or YAML."""

from collections.abc import Mapping, Sequence
from typing import Any

from profiles.discovery.hosts import DeviceDefaults, FoundHosts, HostFacts, LeftOut, NvlinkDomain, notes_about
from profiles.discovery.kubernetes_devices import FAMILIES, node_devices
from profiles.discovery.nvlink import nvlink_of
from profiles.discovery.quantities import parse_quantity
from profiles.discovery.topology_labels import switches_of_labels
from profiles.documents.unique_names import read_json, read_yaml

_QUESTION = "`kubectl get nodes --output json`"
_HOSTNAME = "kubernetes.io/hostname"
_CLIQUE = "nvidia.com/gpu.clique"


def parse_kubernetes_nodes(
    text: str, *, sizes: DeviceDefaults, topology_labels: Sequence[str] = (), tolerated: Sequence[str] = ()
) -> FoundHosts:
    """The nodes of `kubectl get nodes --output json` (or yaml): a List, a NodeList or one Node.

    Nodes that are not ready, are cordoned or have a taint that keeps pods away are left out. `topology_labels`: those
    that name switches, the outermost first; none: those that clouds and topograph set. `tolerated`: keys of taints
    that the job tolerates. Raises ValueError that names the node and the field for what is not understood.
    """
    hosts: list[HostFacts] = []
    left_out: list[LeftOut] = []
    said: dict[str, list[str]] = {}
    known: dict[str, object] = {}
    for node in _read_nodes(text):
        name = _name_of(node)
        try:
            if why := _why_left_out(node, tolerated):
                left_out.append(LeftOut(what=name, why=why))
                continue
            own = node["metadata"].get("name", name)
            if known.setdefault(name, own) != own:
                raise ValueError(f"nodes {known[name]} and {own} share label {_HOSTNAME} = {name}; give each its own")
            if len(known) == len(hosts):
                raise ValueError(f"it is described twice; give one answer of {_QUESTION}")
            found = node_devices(node, sizes=sizes)
            hosts.append(_host(node, found.devices, keys=topology_labels))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"node {name}: cannot be read ({error!r}); give the answer of {_QUESTION}") from None
        except ValueError as error:
            raise ValueError(f"node {name}: {error}") from None
        labels = node["metadata"].get("labels") or {}
        for note in (*found.notes, *(f"has no label {key}" for key in topology_labels if not labels.get(key))):
            said.setdefault(note, []).append(name)
    return FoundHosts(hosts=tuple(hosts), left_out=tuple(left_out), notes=notes_about(said))


def _read_nodes(text: str) -> list[Any]:
    """The nodes of a List, a NodeList or a Node, or of several documents of YAML."""
    try:
        documents = [read_json(text)] if text.lstrip().startswith(("{", "[")) else read_yaml(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it cannot be read ({str(error)[:200]}); give the answer of {_QUESTION}") from None
    nodes: list[Any] = []
    for document in documents:
        if not isinstance(document, dict):
            raise ValueError(f"a {type(document).__name__} is no List and no Node; give the answer of {_QUESTION}")
        nodes += document["items"] if isinstance(document.get("items"), list) else [document]
    if not nodes:
        raise ValueError("Kubernetes has no node; see `kubectl get nodes`")
    kinds = [str(node.get("kind", "Node")) if isinstance(node, dict) else type(node).__name__ for node in nodes]
    if other := next((kind for kind in kinds if kind != "Node"), None):
        raise ValueError(f"it describes a {other[:60]}; give the answer of {_QUESTION}")
    if not all("status" in node for node in nodes):
        raise ValueError(f"it describes a Node without status; give the answer of {_QUESTION}")
    return nodes


def _name_of(node: Mapping[str, Any]) -> str:
    try:
        labels = node["metadata"].get("labels") or {}
        return str(labels.get(_HOSTNAME, node["metadata"]["name"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a node has no metadata.name ({error!r}); give the answer of {_QUESTION}") from None


def _why_left_out(node: Mapping[str, Any], tolerated: Sequence[str]) -> str:
    """What keeps pods off the node; empty: nothing."""
    spec = node.get("spec") or {}
    if node["metadata"].get("deletionTimestamp"):
        return "being deleted"
    if spec.get("unschedulable"):
        return "cordoned"
    taints = [taint["key"] for taint in spec.get("taints") or () if taint["effect"] in ("NoSchedule", "NoExecute")]
    kept = [key for key in taints if key not in tolerated and not _is_of_accelerators(key)]
    ready = [condition["status"] for condition in node["status"]["conditions"] if condition["type"] == "Ready"]
    if ready != ["True"]:
        return "not ready"
    remedy = "" if any("kubernetes.io/" in key for key in kept) else "; --tolerate takes it"
    return f"taint {kept[0]}{remedy}" if kept else ""


def _is_of_accelerators(key: str) -> bool:
    """Whether a taint keeps off only pods that ask for no accelerator: it is called like the resource."""
    return any(family.resource.fullmatch(key) for family in FAMILIES)


def _host(node: Mapping[str, Any], devices: tuple[Any, ...], *, keys: Sequence[str]) -> HostFacts:
    labels, offered = node["metadata"].get("labels") or {}, node["status"]["allocatable"]
    amounts: dict[str, int] = {}
    for resource in ("cpu", "memory"):
        try:
            amounts[resource] = int(parse_quantity(offered[resource]))
        except ValueError as error:
            raise ValueError(f"allocatable {resource}: {error}") from None
    domains: tuple[NvlinkDomain, ...] = ()
    if devices and (clique := labels.get(_CLIQUE)):
        rate = nvlink_of(devices[0].type).bytes_per_s
        domains = (NvlinkDomain(name=f"nvlink {clique}", bytes_per_s=dict.fromkeys(range(len(devices)), rate)),)
    return HostFacts(
        name=_name_of(node),
        devices=devices,
        cores=amounts["cpu"],
        memory_bytes=amounts["memory"],
        nvlink_domains=domains,
        switches=switches_of_labels(labels, keys=keys),
    )

"""Nodes of Kubernetes: quantities, who takes pods, and what device plugins and labels say about accelerators."""

import json

import pytest

from profiles.discovery.hosts import DeviceDefaults, FoundHosts
from profiles.discovery.kubernetes_nodes import parse_kubernetes_nodes

GIB, MIB = 2**30, 2**20
GFD = "nvidia.com/gpu"


def node(
    name: str = "n1",
    *,
    ready: str = "True",
    labels: dict[str, str] | None = None,
    spec: dict | None = None,
    capacity: dict[str, str] | None = None,
    **offered: str,
) -> dict:
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec or {},
        "status": {
            "allocatable": {"cpu": "7910m", "memory": "2097152Ki", "pods": "110"} | offered,
            "capacity": offered if capacity is None else capacity,
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}],
        },
    }


def parse(*nodes: dict, gib: int | None = None, **more) -> FoundHosts:
    sizes = DeviceDefaults(memory_bytes=gib and gib * GIB)
    return parse_kubernetes_nodes(json.dumps({"kind": "List", "items": nodes}), sizes=sizes, **more)


def test_a_preference_keeps_nobody_away():
    """Tests that PreferNoSchedule does not leave a node out."""
    taints = [{"key": "node-role.kubernetes.io/control-plane", "effect": "PreferNoSchedule"}]
    assert parse(node(spec={"taints": taints}, **{GFD: "1"}), gib=1).left_out == ()


YAML = """\
apiVersion: v1
kind: Node
metadata:
  name: y1
status:
  allocatable: {cpu: 4, memory: 1.5Gi, nvidia.com/gpu: "2"}
  conditions: [{type: Ready, status: "True"}]
"""


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"kind": "List", "items": [node("y1", **{GFD: "2"})]}),
        json.dumps({"kind": "NodeList", "items": [{**node("y1", **{GFD: "2"}), "kind": "Node"}]}),
        json.dumps(node("y1", **{GFD: "2"})),
        YAML,
        "---\n" + YAML + "---\n",
    ],
)
def test_lists_and_single_nodes_are_read(text: str):
    """Tests that kubectl's List, a NodeList, one Node, and YAML are the same."""
    (host,) = parse_kubernetes_nodes(text, sizes=DeviceDefaults(memory_bytes=GIB)).hosts
    assert (host.name, len(host.devices)) == ("y1", 2)


@pytest.mark.parametrize(
    "text",
    ["{", "{}", '{"items": [3]}', "[]", "a: b: c", "nodes", json.dumps({"items": [{"kind": "Pod"}]}), '{"items": 3}'],
)
def test_other_answers_are_refused(text: str):
    """Tests that what is no list of nodes is told."""
    with pytest.raises(ValueError, match="give the answer of `kubectl get nodes --output json`"):
        parse_kubernetes_nodes(text, sizes=DeviceDefaults())
    for kind in ("ResourceFlavor", "JobSet", "Topology"):
        with pytest.raises(ValueError, match=f"it describes a {kind}; give the answer of `kubectl get nodes"):
            parse_kubernetes_nodes(json.dumps({"kind": kind, "spec": {}}), sizes=DeviceDefaults())
    with pytest.raises(ValueError, match="Kubernetes has no node"):
        parse_kubernetes_nodes('{"items": []}', sizes=DeviceDefaults())
    with pytest.raises(ValueError, match="node n1: it is described twice"):
        parse(node(), node())
    with pytest.raises(ValueError, match=r"node n1: cannot be read .*'conditions'"):
        parse(node() | {"status": {"allocatable": {}}})


def test_nodes_that_pods_cannot_tell_apart_are_refused():
    """Tests that two nodes with one hostname label are named, unless no pod gets to one of them."""
    shared = {"kubernetes.io/hostname": "localhost"}
    both = "nodes n1 and n2 share label kubernetes.io/hostname = localhost; give each its own"
    with pytest.raises(ValueError, match=both):
        parse(node("n1", labels=shared), node("n2", labels=shared))
    found = parse(node("n1", labels=shared), node("n2", labels=shared, ready="False"))
    assert [host.name for host in found.hosts] == ["localhost"]


def test_nodes_without_a_label_that_is_asked_for_are_told():
    """Tests that a node outside of the levels that `topology_labels` names is named, and so is a label of nobody."""
    nodes = node("n1", labels={"x/block": "b"}), node("n2")
    assert parse(*nodes, topology_labels=("x/block",)).notes == ("n2 has no label x/block",)
    assert parse(*nodes, topology_labels=("y",)).notes == ("n1, n2 has no label y",)
    assert parse(*nodes).notes == ()


def test_brackets_without_end_are_refused():
    """Tests that JSON nested too deeply is refused, not an error of ours."""
    with pytest.raises(ValueError, match="it cannot be read"):
        parse_kubernetes_nodes("[" * 100_000, sizes=DeviceDefaults())


@pytest.mark.parametrize("text", [YAML.replace("{cpu: 4", "{cpu: 4, cpu: 8"), '{"kind": "Node", "kind": "Pod"}'])
def test_two_values_of_a_field_are_refused(text: str):
    """Tests that an answer that was put together by hand is not read by its last value."""
    with pytest.raises(ValueError, match=r"it cannot be read \(.*twice.*\); give the answer of `kubectl get nodes"):
        parse_kubernetes_nodes(text, sizes=DeviceDefaults(memory_bytes=GIB))

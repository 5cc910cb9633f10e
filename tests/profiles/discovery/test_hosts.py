"""From what is known about hosts to a cluster: tests of profiles/discovery/hosts.py."""

import pytest

from profiles.discovery.hosts import DeviceDefaults, HostDevice, LeftOut, make_cluster, with_processors
from tests.profiles.discovery.test_kubernetes_nodes import GFD, node, parse


def test_nodes_of_other_schedulers_and_those_that_go_are_not_guessed_at():
    """Tests that parts that HAMi offers as devices are refused, and that a node that is being deleted is left out."""
    shared, going = node(**{GFD: "10"}), node("n2", **{GFD: "1"})
    shared["metadata"]["annotations"] = {"hami.io/node-nvidia-register": "GPU-0,10,32768,100,Tesla V100,0,true:"}
    with pytest.raises(ValueError, match=r"node n1: annotation hami\.io/node-nvidia-register: HAMi offers parts"):
        parse(shared, gib=32)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert parse(going, gib=32).left_out == (LeftOut(what="n2", why="being deleted"),)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ready": "False"}, "not ready"),
        ({"ready": "Unknown"}, "not ready"),
        ({"spec": {"unschedulable": True}}, "cordoned"),
        ("node-role.kubernetes.io/control-plane", "taint node-role.kubernetes.io/control-plane"),
        ("node-role.kubernetes.io/master", "taint node-role.kubernetes.io/master"),
        ("node.kubernetes.io/unreachable", "taint node.kubernetes.io/unreachable"),
        ("node.kubernetes.io/disk-pressure", "taint node.kubernetes.io/disk-pressure"),
        ("dedicated", "taint dedicated; --tolerate takes it"),
        ("nvidia.com/gpu", ""),
        ("amd.com/gpu", ""),
        ("google.com/tpu", ""),
        ("sku", ""),
    ],
)
@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_nodes_that_take_no_pods_are_left_out(changes, why: str, effect: str):
    """Tests that a taint keeps a node out unless it is called like the accelerator or tolerated."""
    if isinstance(changes, str):
        changes = {"spec": {"taints": [{"key": changes, "effect": effect, "value": "present"}]}}
    found = parse(node("g", **{GFD: "1"}), node(**{GFD: "1"}, **changes), gib=1, tolerated=["sku"])
    assert found.left_out == ((LeftOut(what="n1", why=why),) if why else ())
    assert [host.name for host in found.hosts] == (["g"] if why else ["g", "n1"])


def test_names_and_processors_are_told():
    """Tests that a host is called as its label says, and that fractions of bytes and cores are cut off.

    A refusal for want of accelerators says what the host has in their place.
    """
    labels = {"kubernetes.io/hostname": "worker-1"}
    found = parse(node(labels=labels, memory="128849018880m", **{"devices.kubevirt.io/kvm": "1k"}))
    (host,) = with_processors(found, DeviceDefaults(workers_per_host=1)).hosts
    assert host.name == "worker-1"
    assert host.devices == (HostDevice(type="cpu", memory_bytes=128849018, cores=7),)
    assert found.notes == ("worker-1 has devices.kubevirt.io/kvm, not taken for accelerators",)
    with pytest.raises(ValueError, match=r"\(no accelerators\); worker-1 has devices.kubevirt.io/kvm, .*--cpus"):
        with_processors(found, DeviceDefaults())
    (small,) = with_processors(parse(node(cpu="500m")), DeviceDefaults(workers_per_host=1)).hosts
    assert small.devices[0].cores == 1


def test_the_clique_is_a_domain_of_nvlink():
    """Tests that GPUs of several hosts with one clique meet at an NVSwitch, each with its lanes once."""
    labels = {f"{GFD}.product": "NVIDIA-GB200", f"{GFD}.clique": "7b968a6d.32766"}
    nodes = [node(name, labels=labels, **{GFD: "2"}) for name in ("a", "b")]
    other = node("c", labels=labels | {f"{GFD}.clique": "7b968a6d.1"}, **{GFD: "2"})
    cluster = make_cluster("c", parse(*nodes, other, gib=186).hosts)
    route = cluster.route("a-0", "b-1", num_bytes=2**20)
    assert route.bandwidth_bytes_per_s == 900_000_000_000
    first, second = (cluster.route("a-0", target, num_bytes=2**20).links[0] for target in ("a-1", "b-0"))
    assert first == second, "both transfers leave by the same lanes"
    assert cluster.route("a-0", "c-0", num_bytes=2**20).bandwidth_bytes_per_s == 12_500_000_000
    assert {"nvlink 7b968a6d.32766", "nvlink 7b968a6d.1"} <= set(cluster.switches)

"""Which switches nodes of Kubernetes hang on: tests of profiles/discovery/topology_labels.py."""

import json

from profiles.discovery.hosts import DeviceDefaults, make_cluster
from profiles.discovery.kubernetes_nodes import parse_kubernetes_nodes
from profiles.discovery.topology_labels import switches_of_labels
from tests.profiles.discovery.test_kubernetes_nodes import node
from tests.profiles.discovery.test_slurm_topology import route


def test_labels_of_nodes_are_switches():
    """Tests that zones, racks and layers make a tree, and that keys may be given."""
    racks = [("z1", "r1"), ("z1", "r1"), ("z1", "r2"), ("z1", "r2"), ("z2", "r1"), ("z2", "r1")]
    nodes = [
        node(
            f"n{number}",
            labels={"topology.kubernetes.io/zone": zone, "cloud.provider.com/topology-rack": rack},
            **{"nvidia.com/gpu": "1"},
        )
        for number, (zone, rack) in enumerate(racks)
    ]
    found = parse_kubernetes_nodes(json.dumps({"items": nodes}), sizes=DeviceDefaults(memory_bytes=2**30)).hosts
    assert [host.switches for host in found][::2] == [("z1", "z1/r1"), ("z1", "z1/r2"), ("z2", "z2/r1")]
    cluster = make_cluster("c", found)
    assert set(cluster.switches) == {"z1/r1", "z1/r2", "z1", "z2/r1", "network"}
    assert len(route(cluster, "n0", "n1")) < len(route(cluster, "n0", "n2")) < len(route(cluster, "n0", "n4"))
    assert switches_of_labels({"a": "1", "b": "2"}, keys=["b", "a"]) == ("2", "2/1")
    layers = {f"topology.k8s.aws/network-node-layer-{n}": f"nn-{n}" for n in (3, 1, 2)}
    assert switches_of_labels(layers)[-1] == "nn-1/nn-2/nn-3"
    tiers = {"fabric.topograph.run/tier-0": "leaf", "fabric.topograph.run/tier-1": "spine"}
    assert switches_of_labels(tiers) == ("spine", "spine/leaf")
    blocks = {f"oci.oraclecloud.com/rdma.{level}": level[0] for level in ("local_block_id", "host_id", "hpc_island_id")}
    assert switches_of_labels(blocks) == ("h", "h/l")
    groups = {"ib.coreweave.cloud/leafgroup": "l", "ib.coreweave.cloud/superpod": "s", "ib.coreweave.cloud/fabric": ""}
    assert switches_of_labels(groups) == ("s", "s/l")


def test_a_network_that_is_described_twice_is_one():
    """Tests that of two families of labels on a node, as InfiniBand has at CoreWeave, one makes the switches."""
    levels = {"fabric": "f", "superpod": "2", "leafgroup": "7"}
    backend, ib = ({f"{net}.coreweave.cloud/{level}": levels[level] for level in levels} for net in ("backend", "ib"))
    assert switches_of_labels(ib | backend) == switches_of_labels(backend) == switches_of_labels(ib)
    assert switches_of_labels({**ib, **backend, "backend.coreweave.cloud/leafgroup": "8"})[-1] == "f/2/8"
    assert switches_of_labels({**ib, **dict.fromkeys(backend, "")}) == ("f", "f/2", "f/2/7")
    assert switches_of_labels({**ib, "backend.coreweave.cloud/fabric": "f"}) == ("f", "f/2", "f/2/7")
    layers = {f"topology.k8s.aws/network-node-layer-{n}": f"nn-{n}" for n in (1, 2, 3)}
    zoned = {**layers, "network.topology.nvidia.com/leaf": "nn-3", "topology.kubernetes.io/zone": "z"}
    assert switches_of_labels(zoned) == ("z", "z/nn-1", "z/nn-1/nn-2", "z/nn-1/nn-2/nn-3")

"""Clusters out of what schedulers and machines say."""

import json

import pytest

from profiles.cluster import Cluster
from profiles.discovery.hosts import DeviceDefaults, HostDevice, HostFacts, make_cluster
from profiles.discovery.measured import with_measured_links
from profiles.discovery.schedulers import parse_hostfile, parse_kubernetes_nodes, parse_slurm_nodes
from profiles.load import load_cluster
from profiles.measure.links import LinkTables, PairTable, Place
from profiles.workload import dump_cluster

GIB = 2**30
SLURM = """\
NodeName=n0 Arch=x86_64 CoresPerSocket=32 CPUAlloc=0 CPUTot=64 Gres=gpu:h100:2(S:0-1) NodeAddr=n0 RealMemory=1000 \
State=IDLE ThreadsPerCore=1 Reason=a b [root@x]
NodeName=n1 CPUTot=64 Gres=gpu:1 RealMemory=1000 State=MIXED+PLANNED
NodeName=n2 CPUTot=64 Gres=gpu:h100:8 RealMemory=1000 State=DOWN*+DRAIN
NodeName=n3 CPUTot=6 Gres=(null) RealMemory=2048 State=IDLE
"""


def test_slurm_nodes_are_read():
    """Tests that accelerators come from Gres, others are cut into workers, and nodes down are left out."""
    hosts = parse_slurm_nodes(SLURM, sizes=DeviceDefaults(memory_bytes=80 * GIB, workers_per_host=2))
    assert [(host.name, len(host.devices), host.devices[0].type) for host in hosts] == [
        ("n0", 2, "h100"),
        ("n1", 1, "gpu"),
        ("n3", 2, "cpu"),
    ]
    assert hosts[0].devices[0].memory_bytes == 80 * GIB
    assert (hosts[2].devices[0].memory_bytes, hosts[2].devices[0].cores) == (GIB, 3)
    with pytest.raises(ValueError, match="the memory of h100 is not told; add --accelerator-gib N"):
        parse_slurm_nodes(SLURM, sizes=DeviceDefaults())
    with pytest.raises(ValueError, match="no node that is up"):
        parse_slurm_nodes("slurm_load_node error", sizes=DeviceDefaults())


def node(name: str, *, ready: str = "True", labels: dict[str, str] | None = None, **offered: str) -> dict:
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "7910m", "memory": "2097152Ki"} | offered,
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def test_kubernetes_nodes_are_read():
    """Tests that labels describe accelerators, that quantities have units, and that only nodes that take pods count."""
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.memory": "81559",
        "kubernetes.io/hostname": "worker-1",
    }
    nodes = [
        node("a", labels=labels, **{"nvidia.com/gpu": "2"}),
        node("b"),
        node("c", ready="Unknown"),
        node("d") | {"spec": {"unschedulable": True}},
    ]
    first, second = parse_kubernetes_nodes(json.dumps({"items": nodes}), sizes=DeviceDefaults())
    assert first.name == "worker-1"
    reserve = 2**30 + 81559 * 2**20 * 6 // 100
    device = HostDevice(type="NVIDIA-H100-80GB-HBM3", memory_bytes=81559 * 2**20, reserved_bytes=reserve)
    assert first.devices == (device,) * 2
    assert make_cluster("one", [first]).devices[0].usable_bytes == 81559 * 2**20 - reserve
    assert second.devices == (HostDevice(type="cpu", memory_bytes=2 * GIB, cores=7),)
    for text in ("{", "{}", '{"items": [3]}', "[]"):
        with pytest.raises(ValueError, match="not the answer of `kubectl get nodes --output json`"):
            parse_kubernetes_nodes(text, sizes=DeviceDefaults())
    with pytest.raises(ValueError, match="no node that is ready"):
        parse_kubernetes_nodes('{"items": []}', sizes=DeviceDefaults())


def test_hostfiles_are_read():
    """Tests that all three forms are read, and that anything else, and a host twice, is refused with its line."""
    text = "# two racks\na slots=2 max_slots=4\nb:3\n\nc  # one\n"
    hosts = parse_hostfile(text, sizes=DeviceDefaults(memory_bytes=GIB), kind="A100")
    assert [(host.name, len(host.devices)) for host in hosts] == [("a", 2), ("b", 3), ("c", 1)]
    for wrong in ("a slots=x", "a b", "a\na"):
        with pytest.raises(ValueError, match=r"line [12] of the hostfile"):
            parse_hostfile(wrong, sizes=DeviceDefaults(memory_bytes=GIB), kind="A100")
    with pytest.raises(ValueError, match="names no host"):
        parse_hostfile("#\n", sizes=DeviceDefaults(), kind="A100")


def test_hosts_become_a_cluster():
    """Tests that devices are named by host and number, NVLink joins pairs, and hosts meet in the network."""
    devices = (HostDevice(type="h100", memory_bytes=GIB),) * 2
    hosts = [HostFacts(name="a", devices=devices, nvlink_lanes={(0, 1): 18}), HostFacts(name="b", devices=devices)]
    cluster = make_cluster("two", hosts)
    assert [device.name for device in cluster.devices] == ["a-0", "a-1", "b-0", "b-1"]
    assert cluster.route("a-0", "a-1", num_bytes=1).bandwidth_bytes_per_s == 450_000_000_000
    assert cluster.route("b-0", "b-1", num_bytes=1).bandwidth_bytes_per_s == 24_000_000_000
    assert cluster.route("a-0", "b-1", num_bytes=1).bandwidth_bytes_per_s == 12_500_000_000
    alone = make_cluster("one", hosts[:1])
    assert alone.switches == ()
    assert isinstance(alone, Cluster)


def test_the_document_is_read_back(tmp_path):
    """Tests that what discovery writes is a cluster document that planning reads, unchanged."""
    hosts = parse_hostfile("a:2\nb:2", sizes=DeviceDefaults(memory_bytes=GIB), kind="A100")
    cluster = make_cluster("two", hosts)
    path = tmp_path / "cluster.json"
    path.write_text(dump_cluster(cluster))
    assert load_cluster(str(path)) == cluster


def test_measured_links_take_the_place_of_nominal_ones():
    """Tests that devices stay as discovered, links become those of the benchmark, and an unmeasured device is named."""
    text = "n0 slots=2\nn1 slots=1\n"
    hosts = parse_hostfile(text, sizes=DeviceDefaults(memory_bytes=80 * GIB), kind="gpu")
    cluster = make_cluster("three", hosts)
    table = ((1024, 11_000), (2**20, 1_060_000))
    places = tuple(Place(name=f"rank{n}", host=h, type="cpu", memory_bytes=1) for n, h in enumerate(["n1", "n0", "n0"]))
    pairs = tuple(PairTable(a=a, b=b, one_way=table) for a, b in ((0, 1), (0, 2), (1, 2)))
    tables = LinkTables(places=places, pairs=pairs)
    found = with_measured_links(cluster, tables)
    assert found.devices == cluster.devices
    assert {frozenset((link.a, link.b)) for link in found.links} == {
        frozenset(pair) for pair in (("n1-0", "n0-0"), ("n1-0", "n0-1"), ("n0-0", "n0-1"))
    }
    assert all(link.bandwidth_bytes_per_s == pytest.approx(1e9, rel=0.02) for link in found.links)
    with pytest.raises(ValueError, match="host n0 was measured with 1 places, but has 2 devices"):
        with_measured_links(cluster, LinkTables(places=places[:2], pairs=pairs[:1]))

"""Clusters out of what schedulers and machines say."""

import pytest

from profiles.cluster import Cluster
from profiles.discovery.hostfile import parse_hostfile
from profiles.discovery.hosts import (
    DeviceDefaults,
    HostDevice,
    HostFacts,
    describe_left_out,
    make_cluster,
    with_processors,
)
from profiles.discovery.slurm_nodes import parse_slurm_nodes
from profiles.load import load_cluster
from profiles.workload import dump_cluster

GIB = 2**30
SLURM = """\
NodeName=n0 Gres=gpu:h100:2(S:0-1) RealMemory=1000 State=IDLE
NodeName=n1 CPUTot=6 Gres=(null) RealMemory=2048 State=IDLE
NodeName=n2 Gres=gpu:h100:8 RealMemory=1000 State=DOWN*+DRAIN
NodeName=n3 CPUTot=6 Gres=(null) RealMemory=2048 State=DOWN
"""


def test_processors_count_only_if_they_are_asked_for():
    """Tests that a host without accelerators is left out and named, or cut into equal parts."""
    found = parse_slurm_nodes(SLURM, sizes=DeviceDefaults(memory_bytes=80 * GIB))
    kept = with_processors(found, DeviceDefaults())
    assert [(host.name, len(host.devices)) for host in kept.hosts] == [("n0", 2)]
    assert describe_left_out(kept.left_out) == "n2 (DOWN DRAIN NOT_RESPONDING), n3 (DOWN), n1 (no accelerators)"
    both = with_processors(found, DeviceDefaults(workers_per_host=2))
    assert both.hosts[1].devices == (HostDevice(type="cpu", memory_bytes=GIB, cores=3),) * 2
    bare = parse_slurm_nodes("NodeName=n1 CPUTot=6 State=IDLE", sizes=DeviceDefaults())
    with pytest.raises(ValueError, match=r"no accelerator to plan for: n1 \(no accelerators\); --cpus counts"):
        with_processors(bare, DeviceDefaults())
    with pytest.raises(ValueError, match="node n1: its cores or its memory are not stated"):
        with_processors(bare, DeviceDefaults(workers_per_host=1))
    with pytest.raises(ValueError, match=r"no accelerator to plan for: n1 \(DOWN\)$"):
        with_processors(parse_slurm_nodes("NodeName=n1 State=DOWN", sizes=DeviceDefaults()), DeviceDefaults())


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("# two racks\na slots=2 max_slots=4\nb:3\n\nc  # one\n", {"a": 2, "b": 3, "c": 1}),
        ("a\na\nb\nb\n", {"a": 2, "b": 2}),
        ("a\nb\na\n", {"a": 2, "b": 1}),
        ("n1.site.org\r\nn1.site.org\r\nn2.site.org\r\n", {"n1.site.org": 2, "n2.site.org": 1}),
        ("a slots=4\na slots = 4\nb max-slots=8\n", {"a": 8, "b": 1}),
        ("me@a_1.b-c:4 binding=user\n10.0.0.2 slots=2 port=22\n", {"me@a_1.b-c": 4, "10.0.0.2": 2}),
        ("10.0.0.1:8\n[fe80::1]:2\n[fe80::2]\n", {"10.0.0.1": 8, "[fe80::1]": 2, "[fe80::2]": 1}),
    ],
)
def test_hostfiles_are_read(text: str, slots: dict[str, int]):
    """Tests that all three forms are read, and that lines of one host add up, as PBS and Open MPI write them."""
    found = parse_hostfile(text, sizes=DeviceDefaults(memory_bytes=GIB), kind="A100")
    assert {host.name: len(host.devices) for host in found.hosts} == slots


@pytest.mark.parametrize(
    "line",
    [
        *("b slots=x", "b 4", "b c", "b:", "b:x", "fe80::1", "b slots=", "slots=4"),
        *("b[1-4]", "b,c", "b*4", "-b", "rank 0=b slot=1", "b gpu=8", "b ppn=4", "b np=2", "\ufeffb"),
    ],
)
def test_other_hostfiles_are_refused(line: str):
    """Tests that anything else is refused with its line."""
    with pytest.raises(ValueError, match="line 2 of the hostfile"):
        parse_hostfile(f"a\n{line}\n", sizes=DeviceDefaults(memory_bytes=GIB), kind="A100")
    with pytest.raises(ValueError, match="names no host"):
        parse_hostfile("#\n", sizes=DeviceDefaults(), kind="A100")
    with pytest.raises(ValueError, match="host a of the hostfile has 0 slots"):
        parse_hostfile("a slots=0", sizes=DeviceDefaults(), kind="A100")


def test_hosts_become_a_cluster():
    """Tests that devices are named by host and number, NVLink joins pairs, and hosts meet in the network."""
    devices = (HostDevice(type="h100", memory_bytes=GIB),) * 2
    hosts = [
        HostFacts(name="a", devices=devices, nvlink_bytes_per_s={(0, 1): 450_000_000_000}),
        HostFacts(name="b", devices=devices),
    ]
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
    hosts = parse_hostfile("a:2\nb:2", sizes=DeviceDefaults(memory_bytes=GIB), kind="A100").hosts
    cluster = make_cluster("two", hosts)
    path = tmp_path / "cluster.json"
    path.write_text(dump_cluster(cluster))
    assert load_cluster(str(path)) == cluster


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a slots=999999999", "999,999,999 of A100 on one host are more than the 512"),
        ("a slots=2 slots=4", "line 1 of the hostfile: 'a slots=2 slots=4'"),
        ("a:2 slots=4", "line 1 of the hostfile"),
    ],
)
def test_counts_that_are_none(text: str, told: str):
    """Tests that two counts of a line that differ, and one beyond all hosts, are refused."""
    with pytest.raises(ValueError, match=told):
        parse_hostfile(text, sizes=DeviceDefaults(memory_bytes=GIB), kind="A100")

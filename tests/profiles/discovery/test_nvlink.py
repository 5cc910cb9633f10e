"""Links between the GPUs of a host: lanes, generations, and NVSwitches."""

import itertools

import pytest

from profiles.cluster import Cluster
from profiles.discovery.hosts import HostDevice, HostFacts, make_cluster
from profiles.discovery.nvlink import nvlink_of, restricted, with_nvlink

MESH = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2}
"""Half of the cube mesh of a DGX-1."""


def host(kind: str, count: int) -> HostFacts:
    return HostFacts(name="h", devices=(HostDevice(type=kind, memory_bytes=2**30),) * count)


def all_pairs(count: int, lanes: int) -> dict[tuple[int, int], int]:
    return dict.fromkeys(itertools.combinations(range(count), 2), lanes)


def gigabytes(cluster: Cluster, source: int, target: int) -> float:
    return cluster.route(f"h-{source}", f"h-{target}", num_bytes=2**30).bandwidth_bytes_per_s / 1e9


@pytest.mark.parametrize(
    ("kind", "lanes", "rate"),
    [
        ("Tesla P100-SXM2-16GB", 4, 80),
        ("Tesla V100-SXM2-16GB", 6, 150),
        ("NVIDIA GeForce RTX 2080 Ti", 2, 50),
        ("NVIDIA GeForce RTX 3090", 4, 56.25),
        ("NVIDIA RTX A6000", 4, 56.25),
        ("NVIDIA A30", 4, 100),
        ("NVIDIA-A100-SXM4-80GB", 12, 300),
        ("NVIDIA_A800_SXM4", 12, 300),
        ("NVIDIA H100 80GB HBM3", 18, 450),
        ("NVIDIA GH200 480GB", 18, 450),
        ("NVIDIA H20", 18, 450),
        ("NVIDIA B200", 18, 900),
        ("NVIDIA-GB200", 18, 900),
        ("NVIDIA GB300", 18, 900),
    ],
)
def test_every_generation_has_its_lanes(kind: str, lanes: int, rate: float):
    """Tests that all lanes of a product together have the bandwidth per direction of its data sheet (GB/s)."""
    assert (nvlink_of(kind).lanes, nvlink_of(kind).bytes_per_s / 1e9) == (lanes, rate)


@pytest.mark.parametrize(
    ("kind", "count", "lanes", "rate"),
    [
        ("NVIDIA H100 80GB HBM3", 8, 18, 450),
        ("NVIDIA A100-SXM4-40GB", 8, 12, 300),
        ("NVIDIA A100-SXM4-40GB", 3, 12, 300),
        ("NVIDIA B200", 8, 18, 900),
        ("NVIDIA GB200", 4, 18, 900),
        ("Tesla V100-SXM3-32GB", 16, 6, 150),
    ],
)
def test_an_nvswitch_gives_a_gpu_its_lanes_once(kind: str, count: int, lanes: int, rate: float):
    """Tests that more lanes than a GPU has are one switch: transfers to two others share its one link."""
    facts = with_nvlink(host(kind, count), all_pairs(count, lanes))
    assert facts.nvlink_bytes_per_s == {}
    cluster = make_cluster("c", [facts])
    assert cluster.switches == ("nvlink h",)
    assert gigabytes(cluster, 0, count - 1) == rate
    ways = [cluster.route("h-0", f"h-{target}", num_bytes=2**30).links for target in (1, 2)]
    assert ways[0][0] == ways[1][0]
    assert cluster.route("h-0", "h-1", num_bytes=1).latency_ns == 2_000


@pytest.mark.parametrize(
    ("kind", "count", "lanes", "rate"),
    [
        ("NVIDIA A100-SXM4-40GB", 4, 4, 100),
        ("NVIDIA H100 80GB HBM3", 4, 6, 150),
        ("NVIDIA RTX A6000", 2, 4, 56.25),
        ("NVIDIA H100 NVL", 2, 12, 300),
        ("Something New", 2, 18, 450),
    ],
)
def test_gpus_that_are_wired_directly_have_links_of_their_own(kind: str, count: int, lanes: int, rate: float):
    """Tests that pairs whose lanes a GPU does have are links, and that two transfers do not share one."""
    facts = with_nvlink(host(kind, count), all_pairs(count, lanes))
    assert facts.nvlink_domains == ()
    cluster = make_cluster("c", [facts])
    assert gigabytes(cluster, 0, 1) == rate
    assert len(cluster.links) == count + count * (count - 1) // 2


def test_a_mesh_is_as_it_is_told():
    """Tests that unequal pairs of a cube mesh keep their own lanes."""
    facts = with_nvlink(host("Tesla V100-SXM2-16GB", 4), MESH)
    assert facts.nvlink_bytes_per_s == {pair: lanes * 25_000_000_000 for pair, lanes in MESH.items()}


def test_two_switches_of_a_host_are_two():
    """Tests that GPUs that no NVLink joins do not meet at one switch, and that one with fewer lanes has fewer."""
    half = all_pairs(4, 18)
    lanes = half | {(a + 4, b + 4): 18 if b < 3 else 17 for a, b in half}
    facts = with_nvlink(host("NVIDIA H100 80GB HBM3", 8), lanes)
    cluster = make_cluster("c", [facts])
    assert cluster.switches == ("nvlink h", "nvlink h 1")
    assert gigabytes(cluster, 0, 4) == 24
    assert (gigabytes(cluster, 4, 6), gigabytes(cluster, 4, 7)) == (450, 425)


def test_a_part_of_the_gpus_keeps_its_links():
    """Tests that GPUs that are chosen in another order have the links of those GPUs."""
    facts = restricted(with_nvlink(host("Tesla V100-SXM2-16GB", 4), MESH), [3, 1])
    assert facts.nvlink_bytes_per_s == {(0, 1): 25_000_000_000}
    switched = with_nvlink(host("NVIDIA H100 80GB HBM3", 8), all_pairs(8, 18))
    assert restricted(switched, [7, 2]).nvlink_domains[0].bytes_per_s == dict.fromkeys((0, 1), 450_000_000_000)
    assert restricted(switched, [5]).nvlink_domains == ()

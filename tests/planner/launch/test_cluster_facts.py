"""What launchers want to know of a cluster beyond who is where: tests of planner/launch/cluster_facts.py."""

import pytest

from planner.launch.cluster_facts import ClusterFacts, read_cluster_facts
from tests.planner.launch.test_slurm import components, job_on


def test_accelerators_are_asked_for_by_the_highest_that_is_used():
    """Tests that no node gives more than its own highest index needs, and that those alike stand together."""
    job = job_on(("a", 0), ("b", 2), ("c", 0), ("d", 0), ("d", 2))
    assert components(job) == [
        ["nodes=2", "nodelist=a,c", "ntasks=2", "ntasks-per-node=1", "gpus-per-node=1"],
        ["nodes=1", "nodelist=b", "ntasks=1", "ntasks-per-node=1", "gpus-per-node=3"],
        ["nodes=1", "nodelist=d", "ntasks=2", "ntasks-per-node=2", "gpus-per-node=3"],
    ]
    assert [asked[1] for asked in components(job, with_gpus=False)] == ["nodelist=a,b,c", "nodelist=d"]


@pytest.mark.parametrize(
    ("types", "request_of_a"),
    [
        (("1g.10gb",) * 7, "gres=gpu:1g.10gb:3"),
        (("a100_3g.20gb",) * 2 + ("a100_1g.5gb",), "gres=gpu:a100_3g.20gb:2,gpu:a100_1g.5gb:1"),
        (("1g.10gb+me",) * 3, "gres=gpu:1g.10gb+me:3"),
        (("3090",) * 3 + ("2080ti",) * 5, "gres=gpu:3090:3"),
        (("NVIDIA H100",) * 8, "gpus-per-node=3"),
        (("a", "a", "b"), "gpus-per-node=3"),
        ((), "gpus-per-node=3"),
    ],
)
def test_types_are_asked_for_where_a_number_would_not_do(types: tuple[str, ...], request_of_a: str):
    """Tests that parts of accelerators, and a part of a node of several types, are asked for by type."""
    job = job_on(("a", 0), ("a", 1), ("a", 2), cluster=ClusterFacts(types={"a": types}))
    assert components(job) == [["nodes=1", "nodelist=a", "ntasks=3", "ntasks-per-node=3", request_of_a]]


DOMAINS = (frozenset({"a", "b", "c", "d"}), frozenset({"e", "f", "g", "h"}))


@pytest.mark.parametrize(
    ("hosts", "segment"),
    [("ab", None), ("ae", 1), ("abef", 2), ("abcefg", None), ("abcdefgh", None), ("abe", 1), ("abxy", None)],
)
def test_segments_say_how_nodes_lie_in_domains(hosts: str, segment: int | None):
    """Tests that a plan that is spread over more NVLink domains than could hold it says how many nodes lie together.

    Slurm's blocks would take it for impossible otherwise: two nodes in each of two blocks of four.
    """
    (asked,) = components(job_on(*((host, 0) for host in hosts), cluster=ClusterFacts(domains=DOMAINS)))
    assert [one for one in asked if one.startswith("segment")] == ([] if segment is None else [f"segment={segment}"])


def test_facts_of_a_cluster():
    """Tests that types stand in the order of devices, and that a switch with devices of several hosts is a domain."""
    cluster = {
        "devices": [{"name": f"{host}{n}", "host": host, "type": "xy"[n]} for host in "ab" for n in (0, 1)],
        "links": [
            *({"a": device, "b": "nvlink"} for device in ("a0", "a1", "b0", "b1")),
            *({"a": "inside", "b": device} for device in ("a0", "a1")),
            *({"a": host, "b": "leaf"} for host in "ab"),
        ],
        "switches": ["nvlink", "inside", "leaf"],
    }
    hosts = {f"{host}{n}": (host, n) for host in "ab" for n in (0, 1)}
    facts = read_cluster_facts(cluster, hosts)
    assert facts == ClusterFacts(types={"a": ("x", "y"), "b": ("x", "y")}, domains=(frozenset("ab"),))

"""Which device a process drives."""

import json

import pytest

from planner.execute.table.placement import find_position, hosts_of, load_cluster_tree, read_host_names

HOSTS = {"g0": ("a", 0), "g1": ("a", 1), "g2": ("b", 0), "g3": ("b", 1)}


def environment(**values: object) -> dict[str, str]:
    return {key: str(value) for key, value in values.items()}


def test_the_launchers_ranks_count_without_a_cluster():
    """Tests that without hosts a process keeps the rank that it was given."""
    seat = find_position(("d0", "d1"), environment(RANK=1, LOCAL_RANK=1, WORLD_SIZE=2, PLAN_NODE="x"))
    assert (seat.rank, seat.host, seat.index) == (1, "x", 1)


@pytest.mark.parametrize("given", [0, 1, 2])
@pytest.mark.parametrize(("host", "slot", "rank", "index"), [("a", 0, 2, 1), ("b", 0, 1, 0), ("b", 1, 0, 1)])
def test_a_process_finds_its_device(given: int, host: str, slot: int, rank: int, index: int):
    """Tests that host and slot settle rank and accelerator, whatever rank the launcher gave."""
    own = environment(RANK=given, LOCAL_RANK=slot, WORLD_SIZE=3, SLURMD_NODENAME=host)
    seat = find_position(("g3", "g2", "g1"), own, hosts=HOSTS)
    assert (seat.rank, seat.index) == (rank, index)


def test_a_process_too_many_is_told_so():
    """Tests that a process for which its host has no device says how many to start where, and how hosts are named."""
    own = environment(RANK=0, LOCAL_RANK=1, WORLD_SIZE=3, NODE_NAME="a")
    with pytest.raises(
        ValueError, match=r"process 1 of host 'a' has no device.*2 on b, 1 on a.*\(a, b\) or set PLAN_NODE"
    ):
        find_position(("g3", "g2", "g1"), own, hosts=HOSTS)


def test_a_wrong_number_of_processes_is_refused():
    """Tests that plan and launcher must agree on the number, and that the message says what to start."""
    own = environment(RANK=0, LOCAL_RANK=0, WORLD_SIZE=4)
    with pytest.raises(ValueError, match=r"2 devices \(d0, d1\), but 4 processes were started; start 2 \(torchrun"):
        find_position(("d0", "d1"), own)
    with pytest.raises(ValueError, match="WORLD_SIZE = '' is not a number; start with torchrun"):
        find_position(("d0", "d1"), {})


def test_hosts_come_from_a_cluster_or_a_workload():
    """Tests that both documents are read, that devices are counted host by host, and that one may be its own host."""
    devices = [{"name": "g0", "host": "a"}, {"name": "g2", "host": "b"}, {"name": "g1", "host": "a"}, {"name": "solo"}]
    hosts = {"g0": ("a", 0), "g2": ("b", 0), "g1": ("a", 1), "solo": ("solo", 0)}
    for document in ({"devices": devices}, {"cluster": {"devices": devices}}):
        assert hosts_of(load_cluster_tree(json.dumps(document)), source="c.json") == hosts


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"devices": [1]}', '{"devices": [{"host": "a"}]}', '{"cluster": 1}']
)
def test_other_documents_are_refused(text: str):
    """Tests that anything else is refused with the name of the file."""
    with pytest.raises(ValueError, match=r"^c\.json: .*give a cluster or a workload document"):
        hosts_of(load_cluster_tree(text, source="c.json"), source="c.json")


def test_a_host_has_one_real_name():
    """Tests that a host that is named twice alike is taken, and one with two real names is refused, not the last of
    them taken.
    """
    assert read_host_names(["h0=node17", "h1=node18", "h0=node17"]) == {"h0": "node17", "h1": "node18"}
    with pytest.raises(ValueError, match=r"--host h0=node18: h0 is node17 already; give one"):
        read_host_names(["h0=node17", "h0=node18"])

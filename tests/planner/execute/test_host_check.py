"""Whether a host is the one that a plan was made for."""

import pytest

from planner.execute.host_check import (
    Accelerator,
    Expected,
    Found,
    World,
    expect_world,
    find_world_differences,
    parse_accelerators,
    parse_connections,
    parse_direct_links,
)

H100 = "NVIDIA H100 80GB HBM3"
TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tSYS\tPIX\t0-47\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tPHB\tSYS\t0-47\t0\t\tN/A\n"
    "GPU2\tSYS\tPHB\t X \tSYS\t48-95\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\tSYS\t X \n"
    "\nLegend:\n  X    = Self\n"
)


def world(*, kind: str = H100, direct: frozenset[tuple[int, int]] = frozenset()) -> World:
    devices = tuple(Expected(device=f"g{index}", index=index, type=kind, need_bytes=70) for index in range(2))
    return World(host="a", devices=devices, direct=direct)


def found(*, count: int = 2, name: str = H100, memory: int = 80, direct: frozenset[tuple[int, int]] | None = None):
    accelerators = tuple(Accelerator(name=name, memory_bytes=memory) for _ in range(count))
    return Found(memory_bytes=1000, accelerators=accelerators, direct=direct)


@pytest.mark.parametrize(
    ("has", "expected"),
    [
        ({"count": 1}, "missing device: g1 is accelerator 1 of host 'a', which shows 1"),
        ({"count": 0}, "missing device: g0 is accelerator 0 of host 'a', which shows 0"),
        ({"memory": 69}, "other memory: the plan holds 70 bytes on g0, but accelerator 0 of host 'a' has 69"),
        ({"name": "NVIDIA A100"}, f"other device: g0 is a '{H100}' in the plan, but accelerator 0 of host 'a' is a"),
        ({"direct": frozenset()}, "other topology: the plan counts on a link between accelerators 0 and 1 of host 'a'"),
    ],
)
def test_what_differs_is_said(has: dict, expected: str):
    """Tests that each way in which a host is not the plan's is told, and that the host itself passes."""
    asked = world(direct=frozenset({(0, 1)}))
    assert find_world_differences(asked, found(direct=frozenset({(0, 1)}))) == ()
    assert find_world_differences(asked, found()) == ()  # links that cannot be seen are not missed
    assert find_world_differences(asked, found(**has))[0].startswith(expected)


def test_invented_types_are_not_compared():
    """Tests that a type that was not read off the device says nothing about its name, only count and memory count."""
    assert find_world_differences(world(kind="big"), found(direct=frozenset())) == ()
    assert find_world_differences(world(kind="big"), found(memory=1))[0].startswith("other memory")


def test_processors_share_the_memory_of_their_host():
    """Tests that without accelerators, or where they are not wanted, the devices of a host are added up."""
    plain = Found(memory_bytes=139)
    for case, more in [(plain, False), (Found(memory_bytes=139, accelerators=found().accelerators), True)]:
        (sentence,) = find_world_differences(world(kind="core"), case, on_processors=more)
        assert sentence.startswith("other memory: the plan holds 140 bytes on g0, g1, but host 'a' has 139")
    assert find_world_differences(world(kind="core"), Found(memory_bytes=140)) == ()


def test_the_expectation_is_that_of_one_host():
    """Tests that only used devices of the host count, and of links only those between two of them."""
    cluster = {
        "devices": [{"name": name, "type": "t", "host": name[0]} for name in ("a0", "a1", "a2", "b0")],
        "links": [{"a": "a2", "b": "a0"}, {"a": "a0", "b": "b0"}, {"a": "a1", "b": "a"}],
    }
    hosts = {"a0": ("a", 0), "a1": ("a", 1), "a2": ("a", 2), "b0": ("b", 0)}
    seen = expect_world(cluster, "a", hosts=hosts, used=("b0", "a2", "a0"), peak_bytes={"a2": 5})
    assert [(device.device, device.index, device.need_bytes) for device in seen.devices] == [("a0", 0, 0), ("a2", 2, 5)]
    assert seen.direct == {(0, 2)}


def test_the_answers_of_nvidia_smi_are_read():
    """Tests that names, memory and the matrix of connections are read, whatever the order of the rows."""
    rows = f"1, {H100}, 81559\n0, {H100}, 81559\n"
    assert parse_accelerators(rows) == [Accelerator(name=H100, memory_bytes=81559 * 2**20)] * 2
    assert parse_accelerators("No devices were found\n") == []
    assert parse_connections(TOPOLOGY) == {(0, 1): "NV18", (0, 2): "SYS", (1, 2): "PHB"}
    assert parse_direct_links(TOPOLOGY) == {(0, 1)}
    assert parse_direct_links("") == set()

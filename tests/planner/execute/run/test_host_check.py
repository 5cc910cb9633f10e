"""Whether a host is the one that a plan was made for."""

import pytest

from planner.execute.run import host_check
from planner.execute.run.host_check import (
    Expected,
    Found,
    World,
    expect_world,
    find_world_differences,
)
from planner.execute.run.nvidia_smi import QUESTION, AcceleratorRow

H100 = "NVIDIA H100 80GB HBM3"


def world(*, kind: str = H100, direct: frozenset[tuple[int, int]] = frozenset()) -> World:
    devices = tuple(Expected(device=f"g{index}", index=index, type=kind, need_bytes=70) for index in range(2))
    return World(host="a", devices=devices, direct=direct)


def found(*, count: int = 2, name: str = H100, memory: int = 80, direct: frozenset[tuple[int, int]] | None = None):
    accelerators = tuple(AcceleratorRow(index=index, name=name, memory_bytes=memory) for index in range(count))
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


def test_gpus_at_an_nvswitch_are_joined():
    """Tests that two GPUs at a switch of NVLink count as joined, and those at another switch do not."""
    cluster = {
        "devices": [{"name": name, "type": H100, "host": name[0]} for name in ("a0", "a1", "a2", "b0")],
        "links": [{"a": name, "b": "nvlink a"} for name in ("a2", "a0", "b0")]
        + [{"a": name, "b": "network"} for name in ("a0", "a1")],
        "switches": ["nvlink a", "network"],
    }
    hosts = {"a0": ("a", 0), "a1": ("a", 1), "a2": ("a", 2), "b0": ("b", 0)}
    assert expect_world(cluster, "a", hosts=hosts, used=("a0", "a1", "a2", "b0"), peak_bytes={}).direct == {(0, 2)}


@pytest.mark.parametrize(
    ("rows", "visible", "expected"),
    [
        ("1, A, 80\n0, B, 40\n", None, [("B", 40 * 2**20), ("A", 80 * 2**20)]),
        ("0, A, 80\n1, B, 40\n", "1", [("B", 40 * 2**20)]),
        ("0, A, 80\n", "MIG-1", [("A", 80 * 2**20)]),
        ("NVIDIA-SMI has failed", None, []),
    ],
)
def test_this_host_is_looked_at(rows: str, visible: str | None, expected: list, monkeypatch):
    """Tests that the plan is compared with what a process sees, and with nothing where nvidia-smi fails."""
    monkeypatch.setattr(host_check, "_ask", lambda *question: rows if question == QUESTION else "")
    monkeypatch.setattr(host_check.shutil, "which", lambda name: name)
    seen = host_check.look_around({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert [(one.name, one.memory_bytes) for one in seen.accelerators] == expected


def test_unified_memory_is_compared_with_the_hosts(monkeypatch):
    """Tests that a GPU without memory of its own has all of the host's."""
    monkeypatch.setattr(host_check, "_ask", lambda *question: "0, NVIDIA GB10, [N/A]" if question == QUESTION else "")
    monkeypatch.setattr(host_check.shutil, "which", lambda name: name)
    monkeypatch.setattr(host_check, "host_memory_bytes", lambda: 100)
    seen = host_check.look_around({})
    for need_bytes, count in [(100, 0), (101, 1)]:
        device = Expected(device="g0", index=0, type="NVIDIA GB10", need_bytes=need_bytes)
        assert len(find_world_differences(World(host="a", devices=(device,)), seen)) == count

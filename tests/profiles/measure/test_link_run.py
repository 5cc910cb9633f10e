"""Tests of profiles/measure/link_run.py."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiles.measure.host_processes import PAUSE_S, HostProcesses
from profiles.measure.link_run import DeviceKind, measure_links
from profiles.measure.links import dump_links, infer_cluster, load_links

OPTIMIZER = """
import sys
import torch

there = set(sys.modules)
torch.optim.SGD([torch.ones(1, requires_grad=True)])
print(sorted(set(sys.modules) - there))
"""


@pytest.fixture(scope="module")
def host() -> Iterator[HostProcesses]:
    """One start of torch for all of them."""
    with HostProcesses() as started:
        yield started


def test_links_of_real_processes(host: HostProcesses, tmp_path: Path):
    """Tests that three gloo processes give a full table, a document that reads back, and a cluster to plan on."""
    kind = DeviceKind(memory_bytes=2**30)
    tables = measure_links(3, host=host, kind=kind, repetitions=2, largest_bytes=1 << 17, timeout_s=300)
    assert [(pair.a, pair.b) for pair in tables.pairs] == [(0, 1), (0, 2), (1, 2)]
    assert all([size for size, _ in pair.one_way] == [1 << 10, 1 << 14, 1 << 17] for pair in tables.pairs)
    assert all(pair.both_ways_ns for pair in tables.pairs)
    assert {(c.first, c.second) for c in tables.contention} == {((0, 1), (0, 2))}
    assert [(entry.places, entry.num_bytes) for entry in tables.all_reduce] == [
        (places, size) for places in (2, 3) for size in (1 << 10, 1 << 14, 1 << 17)
    ]
    path = tmp_path / "links.json"
    path.write_text(dump_links(tables))
    assert load_links(path) == tables
    cluster = infer_cluster(tables, name="here")
    assert [device.memory_bytes for device in cluster.devices] == [2**30] * 3
    assert cluster.sharding_occupancy == 1000
    route = cluster.route(cluster.devices[0].name, cluster.devices[2].name, num_bytes=1 << 17)
    assert route.duration_ns(1 << 17) > 0


def test_a_process_that_dies_ends_the_sweep(host: HostProcesses):
    """Tests that a device that does not exist ends in one message, not in a wait."""
    complaint = r"links: process \d ended with 2 .*invalid choice: 'abacus'"
    with pytest.raises(ValueError, match=complaint):
        measure_links(1, host=host, kind=DeviceKind(device="abacus"), timeout_s=120)


def test_an_optimizer_is_imported_once(host: HostProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that what torch loads for a first optimizer is there before processes are started."""
    (tmp_path / "program.py").write_text(OPTIMIZER)
    monkeypatch.chdir(tmp_path)
    (process,) = host.start_ranks("program", count=1, folder=tmp_path)
    while process.poll() is None:
        time.sleep(PAUSE_S)
    assert (tmp_path / "log0").read_text() == "[]\n"

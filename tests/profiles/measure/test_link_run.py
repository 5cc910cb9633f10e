"""Tests of profiles/measure/link_run.py."""

from pathlib import Path

import pytest

from profiles.measure.host_processes import HostProcesses
from profiles.measure.link_run import DeviceKind, measure_links
from profiles.measure.links import dump_links, infer_cluster, load_links


def test_links_of_real_processes(tmp_path: Path):
    """Tests that three gloo processes give a full table, a document that reads back, and a cluster to plan on."""
    kind = DeviceKind(memory_bytes=2**30)
    with HostProcesses() as host:
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


def test_a_process_that_dies_ends_the_sweep():
    """Tests that a device that does not exist ends in one message, not in a wait."""
    complaint = r"links: process \d ended with 2 .*invalid choice: 'abacus'"
    with HostProcesses() as host, pytest.raises(ValueError, match=complaint):
        measure_links(1, host=host, kind=DeviceKind(device="abacus"), timeout_s=120)

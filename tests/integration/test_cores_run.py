"""Stages of one host with threads and affinities of their own."""

from benchmarks.concurrency.strategies import Operation, run_one_by_one, run_side_by_side
from benchmarks.cores_run import Host, StageWork, usable_cores


def test_schedules_run_on_real_processes():
    """Tests that operations with precedences run to their end, side by side and one by one, on the cores there are."""
    cores = len(usable_cores())
    operations = [
        Operation(name="a", kind="a", times_ns={1: 10}),
        Operation(name="b", kind="a", times_ns={1: 5, cores: 4}, after=(0,)),
    ]
    with Host(works=[StageWork(size=64, repeats=2), StageWork(size=64, repeats=2)]) as host:
        assert host.measure_ns(0, 1) > 0
        assert host.run_schedule(operations, run_one_by_one(operations, [1, cores])) > 0
        assert host.run_schedule(operations, run_side_by_side(operations, [1, 1], cores=cores)) > 0

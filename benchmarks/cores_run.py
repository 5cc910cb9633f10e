"""A host's cores shared by stages in processes of their own: `run_schedule` sets threads and affinity, and measures.

Each stage is a process that multiplies matrices; for every operation it is told on which cores to run and with as many
threads. The parent starts operations in the order of a schedule as soon as enough cores are idle.
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median

from benchmarks.concurrency.strategies import Operation, Placed


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """What a stage multiplies for one operation."""

    size: int
    """Square matrices of so many rows."""
    repeats: int


def usable_cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def serve(pipe: Connection, work: StageWork) -> None:
    """Answer every list of cores with the nanoseconds that the stage's work took on them; an empty list ends it."""
    import torch

    left, right = torch.randn(work.size, work.size), torch.randn(work.size, work.size)
    while cores := pipe.recv():
        torch.set_num_threads(len(cores))
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), cores)
        start = time.perf_counter_ns()
        for _ in range(work.repeats):
            left @ right
        pipe.send(time.perf_counter_ns() - start)


@dataclass(slots=True)
class Host:
    """The processes of all stages; to be used in a `with` statement."""

    works: Sequence[StageWork]
    pipes: list[Connection] = field(default_factory=list)
    processes: list[object] = field(default_factory=list)

    def __enter__(self) -> "Host":
        context = get_context("spawn")
        for work in self.works:
            mine, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, work), daemon=True)
            process.start()
            self.pipes.append(mine)
            self.processes.append(process)
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self.pipes:
            pipe.send([])
        for process in self.processes:
            process.join(10)  # type: ignore[attr-defined]

    def measure_ns(self, stage: int, threads: int, *, repeats: int = 5) -> int:
        """The median time of a stage's work on the first so many cores, alone."""
        times = []
        for _ in range(repeats + 1):
            self.pipes[stage].send(usable_cores()[:threads])
            times.append(self.pipes[stage].recv())
        return int(median(times[1:]))

    def run_schedule(self, operations: Sequence[Operation], placed: Sequence[Placed]) -> float:
        """Run a schedule once, operation n being stage n's; its makespan in seconds.

        Operations start in the order of the schedule, each once what it waits for has ended and enough cores are idle.
        """
        waiting = sorted(placed, key=lambda each: (each.start_ns, each.operation))
        idle, running, ended = usable_cores(), dict[int, list[int]](), set[int]()
        start = time.perf_counter()
        while waiting or running:
            while waiting and self._may_start(operations, waiting[0], idle=idle, ended=ended):
                each = waiting.pop(0)
                running[each.operation], idle = idle[: each.width], idle[each.width :]
                self.pipes[each.operation].send(running[each.operation])
            for pipe in wait([self.pipes[number] for number in running]):
                number = next(n for n in running if self.pipes[n] is pipe)
                self.pipes[number].recv()
                idle = sorted(idle + running.pop(number))
                ended.add(number)
        return time.perf_counter() - start

    @staticmethod
    def _may_start(operations: Sequence[Operation], placed: Placed, *, idle: list[int], ended: set[int]) -> bool:
        return placed.width <= len(idle) and set(operations[placed.operation].after) <= ended


def has_siblings() -> bool:
    """Whether the machine shows SMT siblings among the usable cores."""
    for core in usable_cores():
        path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        if path.exists() and path.read_text(encoding="utf-8").strip() != str(core):
            return True
    return False


if sys.platform != "linux":
    raise ImportError("benchmarks.cores_run needs Linux: affinities are set there only")

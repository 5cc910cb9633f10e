"""What threads bring: the same rounds on 1, 2, ... 64 threads: `python -m benchmarks.threads`.

The rounds, and so the plans, are the same on any number of threads; the wall time is what differs. For numbers of
threads that this machine does not have, the tasks, with the processor seconds that they took, are laid out on so many
threads by the rule of `solver_models.local_search.task_window`: a round begins when the tasks that it must know have
ended.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from api.inputs import make_problem, read_workload
from benchmarks.report import Table
from planner.layout.costs import CostModel
from planner.lowering import make_instance
from planner.problem import Problem
from solver_models.local_search.multistart import JointSearch
from solver_models.local_search.search import Candidate
from solver_models.local_search.task_window import TaskWindow
from solver_models.search_params import MultistartParams, TaskWindowParams
from solver_models.starts.first_candidates import make_seeds

HEADER = ("workload", "width", "threads", "seconds", "speed-up", "processor s", "objective ms")

USUAL, TASKS_PER_ROUND = TaskWindowParams(), MultistartParams().tasks_per_round
WIDTHS = {"2": (2, 2), "16": (16, 16), f"{USUAL.first} to {USUAL.most}": (USUAL.first, USUAL.most)}
"""First and last width of every search."""

LAID_OUT = (4, 16, 64)
"""Numbers of threads that tasks are laid out on."""

WORKLOADS = ("demo:gnmt8-four-gpus", "demo:bert24-six-accelerators")

SHORTER = 8
"""Tasks are so many times as short as usual, so that a table with many of them is made in minutes."""

Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A search that was run."""

    wall_s: float
    cpu_s: float
    objective_ns: int
    tasks_s: Sequence[float] = field(default_factory=list)
    """Processor seconds of every task, in the order in which they were started."""


class TimedWindow(TaskWindow):
    """A window that notes how long every task keeps a processor busy."""

    tasks_s: dict[int, float]

    def start(
        self, tasks: Sequence[Callable[[], Found]], take: Callable[[Found, float], None], *, expected_s: float = 0.0
    ) -> None:
        """Start the tasks of a round."""
        begin = self.num_started
        timed = [self._timed(task, begin + k) for k, task in enumerate(tasks)]
        super().start(timed, take, expected_s=expected_s)

    def _timed(self, task: Callable[[], Found], number: int) -> Callable[[], Found]:
        def run() -> Found:
            begin = time.thread_time()
            found = task()
            self.tasks_s[number] = time.thread_time() - begin
            return found

        return run


def run_rounds(problem: Problem, *, rounds: int, threads: int, widths: tuple[int, int]) -> Measured:
    """The joint search alone, for so many rounds; compiled kernels are loaded before the clock starts."""
    instance = make_instance(problem, CostModel(problem))
    seeds: list[Candidate] = []
    for count in (1, rounds):
        window = TimedWindow(threads, params=replace(USUAL, first=widths[0], most=widths[1]))
        window.tasks_s = {}
        search = JointSearch(instance, window=window)
        seeds = seeds or list(make_seeds(search.searcher))
        search.iterations = max(1, search.iterations // SHORTER)
        search.add(seeds)
        begin, cpu = time.monotonic(), time.process_time()
        for _ in range(count):
            search.run_round()
        window.drain()
        wall_s, cpu_s = time.monotonic() - begin, time.process_time() - cpu
        window.close()
    assert search.best is not None
    tasks = [window.tasks_s[number] for number in range(TASKS_PER_ROUND * rounds)]
    return Measured(wall_s=wall_s, cpu_s=cpu_s, objective_ns=search.best.objective, tasks_s=tasks)


def lay_out(tasks_s: Sequence[float], *, threads: int, widths: tuple[int, int]) -> float:
    """Seconds that the tasks take on so many threads of their own."""
    free, ends, now, taken = [0.0] * threads, list[float](), 0.0, 0
    for number in range(0, len(tasks_s), TASKS_PER_ROUND):
        width = min(widths[1], widths[0] + number // USUAL.tasks_per_width)
        while taken < number and number - taken + TASKS_PER_ROUND > width:
            now, taken = max(now, ends[taken]), taken + 1
        for seconds in tasks_s[number : number + TASKS_PER_ROUND]:
            thread = min(range(threads), key=free.__getitem__)
            free[thread] = max(free[thread], now) + seconds
            ends.append(free[thread])
    return max(ends)


def rows_of(name: str, problem: Problem, *, rounds: int) -> Iterator[list[str]]:
    """Measured on the cores that there are, laid out on more."""
    cores = len(os.sched_getaffinity(0))
    for width, widths in WIDTHS.items():
        alone = run_rounds(problem, rounds=rounds, threads=1, widths=widths)
        runs = {1: alone} | {
            threads: run_rounds(problem, rounds=rounds, threads=threads, widths=widths)
            for threads in (2, 4, 8, 16, 32, 64)
            if threads <= cores
        }
        assert len({run.objective_ns for run in runs.values()}) == 1
        total = sum(alone.tasks_s)
        for threads, run in runs.items():
            speed = alone.wall_s / run.wall_s
            yield _row(name, width, f"{threads}", run.wall_s, speed=speed, run=run)
        for threads in (each for each in LAID_OUT if each > cores):
            seconds = lay_out(alone.tasks_s, threads=threads, widths=widths)
            yield _row(name, width, f"{threads} (laid out)", seconds, speed=total / seconds, run=alone)


def _row(name: str, width: str, threads: str, seconds: float, *, speed: float, run: Measured) -> list[str]:
    objective = f"{run.objective_ns / 1e6:,.2f}"
    return [name, width, threads, f"{seconds:.1f}", f"{speed:.2f}", f"{run.cpu_s:.1f}", objective]


def main() -> None:
    """Write the table to standard output, and to `-o`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, help="workload documents or demo:NAME")
    parser.add_argument("--rounds", type=int, default=80, help="rounds of two tasks each")
    parser.add_argument("-o", "--output", type=Path, help="also write the table here")
    given = parser.parse_args()
    preface = (
        "# Threads",
        "",
        f"The same {given.rounds} rounds of the joint search on any number of threads, tasks {SHORTER} times as short",
        "as usual. Width: tasks under way, at first and at most; one more after every "
        f"{USUAL.tasks_per_width} where it grows. Laid out: by their processor seconds, where a machine has too few "
        "cores.",
    )
    table = Table(preface=preface, header=HEADER, output=given.output)
    for source in given.workloads:
        workload = read_workload(source)
        for row in rows_of(workload.profile.name, make_problem(workload), rounds=given.rounds):
            table.add(row)
    table.close("Within a width every row has the same plan: the table is not made otherwise.")


if __name__ == "__main__":
    main()

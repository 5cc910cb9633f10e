"""Large questions on 1, 2, 4 and 8 workers, laid out from measured processor seconds: `python -m benchmarks.spread`.

Every task runs here, one after the other. Its processor seconds occupy the worker that is free first; what is left of
this process's own seconds is the driver's. So the times are those of machines with a core for each worker and one for
the driver, without the network. One worker has the time limit, the others stop at the gap that it reached.
"""

import pickle
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from benchmarks.generate import make_workload, parse_family
from benchmarks.report import Table, make_parser, percent
from planner.batch_problem import Question, question_of_workload
from planner.planning import make_plans, search_state
from planner.planning.starts import first_starts
from planner.problem import Options
from planner.progress import Limits, Progress
from solver_models.local_search.portable_tasks import PortableTask
from solver_models.precompile import FIRST, LATER, compile_groups
from tests.planner.planning.starts.two_type_cluster import make_question

QUESTIONS: dict[str, Callable[[], Question]] = {
    "200 layers, 64 devices, tight": lambda: _generated("chain-200x64-m256-tight-random-different"),
    "Sailor's OPT-350M, 128 A100 + 384 V100": lambda: make_question(128, 384),
    "global batch, 512 unlike devices": lambda: _generated("chain-100x512-g4096-mid-sparse-different"),
}
NUM_WORKERS = (1, 2, 4, 8)


def _generated(family: str) -> Question:
    return question_of_workload(make_workload(parse_family(family)), Options())


class LaidOutWorkers:
    """Workers on a clock of their own."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers, self.free_s = num_workers, [0.0] * num_workers
        self.num_tasks = 0
        self.begin_s, self.tasks_s, self.waited_s = time.process_time(), 0.0, 0.0

    def now(self) -> float:
        """Seconds since the beginning, as laid out."""
        return time.process_time() - self.begin_s - self.tasks_s + self.waited_s

    def submit(self, task: PortableTask, *, may_start: Callable[[], bool], is_over: Callable[[], bool]) -> Any:
        if is_over() or not may_start():
            return _Laid(self, None, self.now())
        call, worker = pickle.dumps(task.given), self.free_s.index(min(self.free_s))
        start, begin = max(self.now(), self.free_s[worker]), time.process_time()
        answer = pickle.dumps(PortableTask(task.owner, task.method, pickle.loads(call))())
        seconds = time.process_time() - begin
        self.tasks_s += seconds
        self.free_s[worker] = start + seconds
        return _Laid(self, (answer, seconds), start + seconds)

    def first_of(self, futures: Sequence[Any]) -> int:
        return min(range(len(futures)), key=lambda number: futures[number].end_s)


class _Laid(Future):  # type: ignore[type-arg]
    def __init__(self, workers: LaidOutWorkers, ended: tuple[bytes, float] | None, end_s: float) -> None:
        super().__init__()
        self.workers, self.ended, self.end_s = workers, ended, end_s

    def done(self) -> bool:
        return self.end_s <= self.workers.now()

    def result(self, timeout: float | None = None) -> Any:
        del timeout
        self.workers.waited_s += max(0.0, self.end_s - self.workers.now())
        return None if self.ended is None else (pickle.loads(self.ended[0]), self.ended[1])


def time_to(question: Question, num_workers: int, *, limit_s: float, gap: float) -> tuple[float, float]:
    """Seconds, as laid out, to the first plan and bound with such a gap, or the last ones; and their gap."""
    compile_groups(*FIRST, *LATER)  # the clock is no wall clock: it must not stand still for compilers
    workers, heard = LaidOutWorkers(num_workers), [(0.0, 1.0)]
    search_state.time = first_starts.time = SimpleNamespace(monotonic=workers.now)  # type: ignore[assignment]

    def hear(progress: Progress) -> None:
        if progress.gap is not None and progress.gap < heard[-1][1]:
            heard.append((progress.elapsed_s, progress.gap))

    limits = Limits(time_limit_s=limit_s, threads=1)
    how: Any = {"should_stop": lambda: heard[-1][1] <= gap, "on_progress": hear, "workers": workers}
    make_plans(question, top=1, limits=limits, **how)
    return heard[-1]


def main() -> None:
    """Print the table, and write it where `-o` says."""
    parser = make_parser(__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="only the questions whose name contains this")
    wishes = parser.parse_args()
    header = ("question", "gap of one worker", *(f"{number} workers s" for number in NUM_WORKERS), "parts of one")
    table = Table(preface=["# Workers", "", *__doc__.splitlines()[2:], ""], header=header, output=wishes.output)
    for name, make in QUESTIONS.items():
        if wishes.only in name:
            first_s, gap = time_to(make(), 1, limit_s=10.0 if wishes.quick else 120.0, gap=0.0)
            seconds = [first_s, *(time_to(make(), n, limit_s=120.0, gap=gap)[0] for n in NUM_WORKERS[1:])]
            parts = ", ".join(f"{each / first_s:.2f}" for each in seconds[1:])
            table.add([name, percent(gap), *(f"{each:.1f}" for each in seconds), parts])
    table.close("Times are laid out, not measured: there are fewer cores than workers.")


if __name__ == "__main__":
    main()

"""The process that solves: it reads orders from standard input, one JSON a line, and answers on standard output.

    {"op": "solve", "request": TEXT, "start": TEXT | null}   progress ..., then done or failed
    {"op": "inspect", "what": NAME, ...}                     done or failed
    {"op": "stop"}                                           the solve under way ends with its best plan

It holds no database and no secrets, and speaks to nobody but a Dask scheduler, where there is one for its tasks. When
its standard input ends, its master is gone, and it goes too, even in the middle of a solver: a thread of its own
watches. `python -m api.jobs.workers.solver_process` starts it.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Any

from api.jobs.job import Outcome, ProgressUpdate
from api.jobs.logs import VARIABLE, configure, tell
from planner.errors import InfeasibleProblemError, NoPlanFoundError, PlanError
from planner.plan import Plan
from planner.progress import Progress

if TYPE_CHECKING:
    from api.dask_workers import DaskWorkers
    from api.jobs.request import PlanRequest

PAUSE_S = 0.25
"""Incumbents closer together than this are told as one."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_NO_NEW_PRIVS = 38


class Controller:
    """The other end: orders come in, answers go out whole and in order."""

    def __init__(self, orders: IO[str], answers: IO[str]) -> None:
        self._orders, self._answers = orders, answers
        self._lock = threading.Lock()
        self._inbox: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.stop = threading.Event()
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def _read(self) -> None:
        for line in self._orders:
            order = json.loads(line)
            if order["op"] == "stop":
                self.stop.set()
            else:
                self.stop.clear()  # here, not when work begins: a stop may come while the solvers are still loaded
                self._inbox.put(order)
        os._exit(0)

    def next_order(self) -> dict[str, Any]:
        """Waits for work."""
        return self._inbox.get()

    def tell(self, event: str, **values: Any) -> None:
        """One line to the master."""
        with self._lock:
            self._answers.write(json.dumps({"event": event, **values}) + "\n")
            self._answers.flush()


class _ProgressForwarder:
    """Passes the latest progress on, at most once every `PAUSE_S`, whatever the solver is doing."""

    def __init__(self, master: Controller) -> None:
        self._master = master
        self._latest: Progress | None = None
        self._told_ns: int | None = None
        self._changed = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forwarder", daemon=True)
        self._thread.start()

    def hear(self, progress: Progress) -> None:
        """Take note; called by the solver."""
        self._latest = progress
        self._changed.set()

    def close(self) -> None:
        """Stop reporting progress."""
        self._over.set()
        self._changed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            self._changed.wait()
            self._changed.clear()
            if self._latest is not None and not self._over.is_set():
                self._tell(self._latest)
                self._over.wait(PAUSE_S)

    def _tell(self, progress: Progress) -> None:
        from api.jobs.request_fields import shared_fields
        from planner.document import render_plan

        is_new = progress.incumbent is not None and progress.incumbent_ns != self._told_ns
        text = render_plan(progress.incumbent) if is_new and progress.incumbent is not None else None
        self._told_ns = progress.incumbent_ns
        self._master.tell("progress", **shared_fields(progress, ProgressUpdate), plan=text)


def solve(
    master: Controller, order: dict[str, Any], *, most_threads: int | None = None, scheduler: str | None = None
) -> dict[str, Any]:
    """The plan, as the command line would write it; at most so many threads look for it, and workers."""
    from api.jobs.request import read_request
    from planner.document import parse_plan
    from planner.planning import make_plans

    request = read_request(order["request"])
    start = None if order.get("start") is None else parse_plan(order["start"])
    forwarder = _ProgressForwarder(master)
    try:
        with _workers(scheduler) as workers:
            plan, *_ = make_plans(
                request.problem,
                top=1,
                limits=request.limits.within(threads=most_threads),
                start=start,
                on_progress=forwarder.hear,
                should_stop=master.stop.is_set,
                workers=workers,
            )
    finally:
        forwarder.close()
    return _final_report(request, plan)


@contextmanager
def _workers(scheduler: str | None) -> "Iterator[DaskWorkers | None]":
    """The scheduler's workers; none, with a word in the log, while it cannot be used."""
    with ExitStack() as stack:
        workers = None
        if scheduler is not None:
            from api.dask_workers import open_workers

            try:
                workers = stack.enter_context(open_workers(scheduler))
            except ValueError as error:
                tell("no workers", reason=str(error))
        yield workers


def _final_report(request: "PlanRequest", plan: Plan) -> dict[str, Any]:
    """What is said of a plan at the end."""
    from api.jobs.request_fields import shared_fields
    from planner.document import render_plan

    evidence = plan.evidence
    assert evidence is not None
    return shared_fields(evidence, Outcome) | {
        "plan": render_plan(plan),
        "incumbent_ns": evidence.objective_ns(request.problem.options.objective),
        "gap": evidence.objective_gap,
    }


def _carry_out(master: Controller, order: dict[str, Any], **how: Any) -> None:
    """One order, and one last word about it; the log says whose it was."""
    begin, whose = time.monotonic(), order.get("log") or {}
    tell(f"{order['op']} begins", **whose, pid=os.getpid())
    try:
        if order["op"] == "solve":
            answer = solve(master, order, **how)
        else:
            from api.jobs.workers.inspection import inspect

            answer = inspect(order)
    except Exception as error:
        failure = describe(error)
        tell(f"{order['op']} failed", **whose, code=failure["code"], seconds=round(time.monotonic() - begin, 3))
        master.tell("failed", **failure)
    else:
        tell(f"{order['op']} ends", **whose, pid=os.getpid(), seconds=round(time.monotonic() - begin, 3))
        master.tell("done", **answer)


def describe(error: Exception) -> dict[str, Any]:
    """A failure's code and what may be said about it."""
    codes = {
        InfeasibleProblemError: "infeasible",
        NoPlanFoundError: "no_plan_found",
        PlanError: "plan_rejected",
        MemoryError: "out_of_memory",
        ValueError: "invalid",
    }
    code = next((code for kind, code in codes.items() if isinstance(error, kind)), "internal_error")
    return {"code": code, "detail": str(error)[:2000] or type(error).__name__}


def restrict(memory_bytes: int) -> None:
    """No more memory than allowed, no core file, no new privileges."""
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the master decides


def main() -> None:
    """Carry out orders until there are no more."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    configure("json" if os.environ.get(VARIABLE) == "json" else "text")
    restrict(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    most_threads = int(sys.argv[2]) if len(sys.argv) > 2 else None
    scheduler = sys.argv[3] if len(sys.argv) > 3 else None
    master = Controller(os.fdopen(os.dup(0), encoding="utf-8"), answers)
    import planner.planning  # noqa: F401 the solvers are loaded before the first order

    master.tell("ready")
    while True:
        _carry_out(master, master.next_order(), most_threads=most_threads, scheduler=scheduler)


if __name__ == "__main__":
    main()

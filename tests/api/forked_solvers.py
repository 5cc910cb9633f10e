"""Services, workers and their solver processes as forks of one process that has loaded what they need.

Loading is most of what they do in a test: seconds for each. Tests of a start itself start real ones (`real_solvers`).
"""

import importlib
import os
import threading
import time
from functools import cache
from typing import TYPE_CHECKING

from api.jobs.workers.solver_handle import Child, logs_json
from tests.forking import SHARED, SOLVERS, ForkedProcess, Forker, Program, find_forker

if TYPE_CHECKING:
    from subprocess import Popen

LOADED = (
    "api.cli",
    "api.jobs.workers.inspection",
    "api.jobs.workers.postgres_worker",
    "api.jobs.request",
    "api.service.serving",
    "api.service_commands",
    "api.reporting.summaries",
    "api.viewer",
)
"""What services, workers, solvers and checks import sooner or later."""

_LOCK = threading.Lock()
"""Threads ask for the first solvers at the same time."""

load_solver = Child._open
"""How solver processes are started by whoever is no test."""


def load() -> None:
    """Everything that a service, a worker, a solver and a check import, and the kernels, by planning once."""
    for module in LOADED:
        importlib.import_module(module)
    from api.doctor import make_toy_problem
    from planner.planning import make_plan
    from planner.progress import Limits

    make_plan(make_toy_problem(), limits=Limits(max_rounds=1, threads=1))
    until = time.monotonic() + 60.0
    while len(os.listdir("/proc/self/task")) > 1:  # threads of the search may be about to end
        assert time.monotonic() < until, "there are threads, which forks would not have"
        time.sleep(0.01)


@cache
def _forker() -> Forker:
    return find_forker(SOLVERS, SHARED[SOLVERS])


def forker() -> Forker:
    """The one of this test run or of this process, which a fork of it has in common with it."""
    with _LOCK:
        return _forker()


def fork_solver(child: Child) -> "Popen[bytes]":
    """What `Child._open` gives, as a fork."""
    program, *arguments = child._program()
    orders, stdin = os.pipe()
    stdout, answers = os.pipe()
    asked = Program(program=program, arguments=arguments, environment=child._environment())
    stderr, log = os.pipe() if logs_json() else (None, 2)
    process = forker().start(asked, files=[orders, answers, log])
    for end in {orders, answers, log} - {2}:
        os.close(end)
    process.stdin, process.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")
    process.stderr = None if stderr is None else os.fdopen(stderr, "rb")
    return process  # type: ignore[return-value]


def fork_command(*arguments: str, log: int = 2) -> ForkedProcess:
    """`pipeplan` with these arguments; what it says goes to a file."""
    return fork_program("tests.api.forked_command", *arguments, log=log)


def fork_program(program: str, *arguments: str, log: int = 2) -> ForkedProcess:
    """A module that begins with `join_forks`."""
    environment = {**os.environ, SOLVERS: forker().address}
    asked = Program(program=program, arguments=arguments, environment=environment)
    with open(os.devnull, "rb") as nothing:
        return forker().start(asked, files=[nothing.fileno(), 1, log])


def join_forks() -> None:
    """In a fork: let its solvers be forks too."""
    Child._open = fork_solver  # type: ignore[method-assign]

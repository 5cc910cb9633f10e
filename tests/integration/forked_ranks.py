"""Ranks of a program as forks of one process that has imported torch and the executor, which is most of their work.

Run as a script it is that process: orders come on standard input, one JSON line each, and each is answered by a line.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PROGRAM = "planner.execute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A rank to start."""

    arguments: Sequence[str]
    """Behind the program."""
    environment: dict[str, str]
    """All of it; what PYTHONPATH names is found first, as in a process of its own."""
    folder: Path
    """Where it runs."""
    log: Path
    """Where its standard error goes."""
    program: str = PROGRAM
    """A module as behind `python -m`, or the path of a script."""
    output: Path = Path(os.devnull)
    """Where its standard output goes."""


class Forker:
    """The process that forks."""

    def __init__(self) -> None:
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def start(self, rank: Rank) -> int:
        """Fork a rank; its process id."""
        order = {
            "arguments": list(rank.arguments),
            "environment": rank.environment,
            "folder": str(rank.folder),
            "log": str(rank.log),
            "program": rank.program,
            "output": str(rank.output),
        }
        return self._ask(order, timeout_s=60.0)

    def wait(self, process: int, *, timeout_s: float) -> int:
        """The exit code of a rank, negative if a signal ended it; TimeoutError, and it is killed, if it goes on."""
        try:
            return self._ask({"wait": process}, timeout_s=timeout_s)
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            self._answer(timeout_s=60.0)
            raise

    def _ask(self, order: dict[str, Any], *, timeout_s: float) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        return self._answer(timeout_s=timeout_s)

    def _answer(self, *, timeout_s: float) -> int:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], max(0.0, timeout_s))[0]:
            raise TimeoutError(f"no answer in {timeout_s:.0f} s")
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@cache
def forker() -> Forker:
    """The one of this test process."""
    started = Forker()
    atexit.register(started.close)
    return started


def run_forked(ranks: Sequence[Rank], *, timeout_s: float) -> list[tuple[int, str]]:
    """Exit code and standard error of every rank; all are over when this returns."""
    until = time.monotonic() + timeout_s
    processes = [forker().start(rank) for rank in ranks]
    codes: list[int] = []
    try:
        for process in processes:
            codes.append(forker().wait(process, timeout_s=until - time.monotonic()))
    finally:
        for process in processes[len(codes) + 1 :]:
            os.kill(process, signal.SIGKILL)
            forker().wait(process, timeout_s=60.0)
    return [(code, rank.log.read_text(encoding="utf-8")) for code, rank in zip(codes, ranks, strict=True)]


def run_module(module: str, count: int, *, arguments: Sequence[str] = (), timeout_s: float = 240.0) -> str:
    """What `benchmarks.processes.run_ranks` gives, of forked ranks: what rank 0 wrote."""
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            Rank(
                arguments=[str(Path(folder, "store")), str(rank), str(count), *arguments],
                environment=environment,
                folder=root,
                log=Path(folder, f"{rank}.log"),
                program=module,
                output=Path(folder, f"{rank}.out"),
            )
            for rank in range(count)
        ]
        answers = run_forked(ranks, timeout_s=timeout_s)
        for rank, (code, complaint) in enumerate(answers):
            assert code == 0, f"rank {rank} of {module} ended with {code}: {complaint[-2000:]}"
        return ranks[0].output.read_text(encoding="utf-8")


def import_all() -> None:
    """Torch, and of the executor everything but its main module."""
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    package = importlib.import_module(PROGRAM)
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "__main__":
            importlib.import_module(f"{PROGRAM}.{module.name}")


def become(order: dict[str, Any]) -> None:
    """Be the rank: its folder, environment, arguments and outputs, and then the program as `python` runs it."""
    program, is_script = order["program"], order["program"].endswith(".py")
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    found = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    first = str(Path(program).parent) if is_script else ""
    sys.path[:] = [first, *filter(None, found), *(path for path in sys.path if path not in found)]
    sys.argv = [program, *order["arguments"]]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in ((1, order["output"]), (2, order["log"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    if is_script:
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


def serve() -> None:
    """Carry out orders until there are none; in a fork, be the rank.

    What is imported never becomes garbage: no rank looks through it.
    """
    import_all()
    gc.freeze()
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        if "wait" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
        else:
            answer = os.fork()
            if not answer:
                become(order)
                return
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()

"""Ranks of a program as forks of one process that has imported torch and the executor, which is most of their work."""

import importlib
import os
import pkgutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.forking import RANKS, ROOT, SHARED, ForkedProcess, Forker, Program, find_forker

EXECUTOR = "planner.execute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank(Program):
    """A rank to start."""

    program: str = EXECUTOR
    log: Path
    """Where its standard error goes."""
    output: Path = Path(os.devnull)
    """Where its standard output goes."""


def load() -> None:
    """Torch, with what several programs take of it, and of the executor everything but its main module."""
    import torch
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.profiler

    torch.set_num_threads(1)
    package = importlib.import_module(EXECUTOR)
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "__main__":
            importlib.import_module(f"{EXECUTOR}.{module.name}")


@cache
def forker() -> Forker:
    """The one of this test run, or of this process."""
    return find_forker(RANKS, SHARED[RANKS])


def start_rank(rank: Rank) -> ForkedProcess:
    """Start a rank, without standard input."""
    with open(os.devnull, "rb") as nothing, rank.output.open("wb") as output, rank.log.open("wb") as log:
        return forker().start(rank, files=[nothing.fileno(), output.fileno(), log.fileno()])


def run_forked(ranks: Sequence[Rank], *, timeout_s: float) -> list[tuple[int, str]]:
    """Exit code and standard error of every rank; all are over when this returns."""
    until = time.monotonic() + timeout_s
    processes = [start_rank(rank) for rank in ranks]
    try:
        codes = [process.wait(until - time.monotonic()) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(code, rank.log.read_text(encoding="utf-8")) for code, rank in zip(codes, ranks, strict=True)]


def one_thread() -> dict[str, str]:
    """The environment of a process that computes on one thread and finds our packages."""
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run_alone(program: str, *arguments: str, timeout_s: float = 300) -> str:
    """What one process prints, without a launcher and with one thread."""
    with tempfile.TemporaryDirectory() as folder:
        log, output = Path(folder, "log"), Path(folder, "output")
        rank = Rank(program=program, arguments=arguments, environment=one_thread(), log=log, output=output)
        ((code, said),) = run_forked([rank], timeout_s=timeout_s)
        assert code == 0, f"{program} ended with {code}: {said}"
        return output.read_text(encoding="utf-8")


def run_script(text: str, path: Path) -> str:
    """The same of a script, which is written to the path."""
    path.write_text(text, encoding="utf-8")
    return run_alone(str(path))


def run_module(module: str, count: int, *, arguments: Sequence[str] = (), timeout_s: float = 240.0) -> str:
    """Run so many forked ranks of a module as `MODULE STORE RANK COUNT ARGUMENTS...`; what rank 0 wrote."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            Rank(
                arguments=[str(Path(folder, "store")), str(rank), str(count), *arguments],
                environment=one_thread(),
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

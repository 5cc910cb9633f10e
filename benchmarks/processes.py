"""Several processes of one module on this machine, joined by gloo: `run_ranks("benchmarks.layer_pipe_worker", 4)`."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

LIMIT_S = 240.0


def run_ranks(module: str, count: int, *, arguments: Sequence[str] = (), threads: int = 1) -> str:
    """Start `count` ranks of a module as `MODULE STORE RANK COUNT ARGUMENTS...`; what rank 0 wrote.

    Raises RuntimeError with the first rank's complaint if one fails.
    """
    root = Path(__file__).resolve().parents[1]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder, "store"))
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", module, store, str(rank), str(count), *arguments],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(count)
        ]  # fmt: skip
        try:
            answers = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    for number, (rank, (_, complaint)) in enumerate(zip(ranks, answers, strict=True)):
        if rank.returncode:
            raise RuntimeError(f"rank {number} of {module} ended with {rank.returncode}: {complaint[-2000:]}")
    return answers[0][0]


def fork(call: Callable[[], Any], log: Path) -> int:
    """The process that makes the call in a copy of this one, and writes what it says to the log."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 1)
        os.dup2(1, 2)
        call()
        code = 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException as error:
        sys.stderr.write(f"error: {type(error).__name__}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)

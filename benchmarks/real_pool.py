"""Processes of a real run, and what the parent asks of all of them at once."""

import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class RunFailedError(Exception):
    """A process answered with an error, died, or did not answer; the pool was ended."""


class Pool:
    """As many processes as asked for, each with one thread; started when first needed, and anew after a failure."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def ask(self, what: str, *, timeout_s: float = 120, **details: Any) -> list[Any]:
        """The answers of all processes to one command, by rank; raises RunFailedError."""
        if not self._processes:
            self._start()
        text = json.dumps({"do": what, **details}) + "\n"
        end = time.monotonic() + timeout_s
        try:
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.write(text)
                process.stdin.flush()
            return [self._answer(rank, end=end) for rank in range(self.size)]
        except (RunFailedError, OSError) as error:
            self.end()
            raise RunFailedError(str(error)) from None

    def _answer(self, rank: int, *, end: float) -> Any:
        stream = self._processes[rank].stdout
        assert stream is not None
        ready, _, _ = select.select([stream], [], [], max(0.0, end - time.monotonic()))
        line = stream.readline() if ready else ""
        if not line:
            raise RunFailedError(f"rank {rank} {'died' if ready else 'did not answer in time'}")
        answer = json.loads(line)
        if "error" in answer:
            raise RunFailedError(f"rank {rank}: {answer['error']}")
        return answer["answer"]

    def _start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(self.size)}
        quiet = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.real_worker"],
                env=os.environ | common | quiet | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                cwd=Path(__file__).parents[1],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(self.size)
        ]

    def end(self) -> None:
        """Kill whatever runs."""
        for process in self._processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
        self._processes = []

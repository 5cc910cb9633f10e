"""What else people run for this job, measured: start to first answer, memory, disk, and what a kill costs.

OR-Tools behind a plain FastAPI application, Celery (its messages in a folder), a Prefect server with a runner, and this
service. The first three solve a small CP-SAT model (`benchmarks/peers`); this service plans its toy problem: verified,
with baselines and a certificate. Each has an environment of its own, made by pip below `--environments`.

    python -m benchmarks.service_peers --environments FOLDER [--quick] -o docs/benchmarks/service.md
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from api.client import Client, ServerError
from api.doctor import make_toy_problem
from api.service.serving import free_port
from benchmarks.report import Table, make_parser
from benchmarks.service import demo_problem
from planner.progress import Limits

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
AGAIN = 5
"""Answers after the first."""

LONG_S, KILLED_AFTER_S, PATIENCE_S = 6.0, 3.0, 90.0
"""How long the job takes whose worker is killed, after how long, and how long its answer is waited for."""

START_S = 240.0


class Peer(ABC):
    """A server for solver jobs; `job` is whatever its client needs to ask for the answer."""

    name: str
    packages: tuple[str, ...]

    def __init__(self, folder: Path, environments: Path) -> None:
        self.folder, self.environment, self.port = folder, environments / self.name, free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    def install(self) -> float:
        """MB of the environment, which is made if it is missing."""
        if not (self.environment / "bin" / "pip").exists():
            subprocess.run([sys.executable, "-m", "venv", self.environment], check=True)
            subprocess.run([self._program("pip"), "install", "--quiet", *self.packages], check=True)
        done = subprocess.run(["du", "-sm", self.environment], check=True, capture_output=True, text=True)
        return float(done.stdout.split()[0])

    def _program(self, name: str) -> str:
        return str(self.environment / "bin" / name)

    def _open(self, *command: str, environment: Mapping[str, str] | None = None) -> None:
        with (self.folder / "log").open("ab") as log:
            started = subprocess.Popen(
                command,
                cwd=PEERS,
                env={**os.environ, **(environment or {}), "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(started)

    @abstractmethod
    def start(self) -> None:
        """Start what answers and what works."""

    @abstractmethod
    def submit(self, seconds: float) -> Any:
        """A job that takes about so long; raises OSError or a subclass while nobody answers."""

    @abstractmethod
    def has_answer(self, job: Any) -> bool:
        """Whether the answer is there."""

    def restart(self) -> None:
        """SIGKILL to everything below us that works, then start what is missing."""
        self.kill()
        self.start()

    def kill(self) -> None:
        """SIGKILL to all processes, whoever started them."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for pid in descendants(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()

    def close(self) -> None:
        """Leave nothing behind."""
        self.kill()

    def resident_mib(self) -> float:
        """Of all its processes; pages that they share count once."""
        pids = {pid for process in self._processes for pid in (process.pid, *descendants(process.pid))}
        return sum(map(proportional_kib, pids)) / 1024

    def answer_s(self, seconds: float = 0.0, *, within_s: float = PATIENCE_S) -> float | None:
        """Seconds from the question to its answer; None if there is none in time."""
        begin = time.monotonic()
        job = self._submit_until(begin + within_s, seconds)
        return self.wait(job, begin=begin, within_s=within_s)

    def wait(self, job: Any, *, begin: float, within_s: float) -> float | None:
        """Seconds from `begin` to the answer of the job."""
        while time.monotonic() < begin + within_s:
            with suppress(OSError, ServerError):
                if self.has_answer(job):
                    return time.monotonic() - begin
            time.sleep(0.02)
        return None

    def _submit_until(self, until: float, seconds: float) -> Any:
        while True:
            try:
                return self.submit(seconds)
            except (OSError, ServerError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)


class PlainFastApi(Peer):
    """One process that solves within the request."""

    name = "fastapi"
    packages = ("fastapi", "uvicorn", "ortools")

    def start(self) -> None:
        """One process."""
        self._open(self._program("uvicorn"), "fastapi_app:app", "--port", str(self.port))

    def submit(self, seconds: float) -> Any:
        """There is nothing but the answer; one that takes longer is not waited for here."""
        url = f"http://127.0.0.1:{self.port}/solve?seconds={seconds}"
        if seconds:
            return subprocess.Popen(["curl", "--silent", "--fail", "-X", "POST", url], stdout=subprocess.PIPE)
        return post(url)

    def has_answer(self, job: Any) -> bool:
        """At once, or when the connection that waits for it has brought it."""
        if isinstance(job, subprocess.Popen):
            return job.poll() == 0
        return job is not None


class Celery(Peer):
    """A worker that takes messages from a folder."""

    name = "celery"
    packages = ("celery", "ortools")
    _client: "subprocess.Popen[str] | None" = None

    @property
    def _variables(self) -> dict[str, str]:
        return {"PEER_FOLDER": str(self.folder)}

    def start(self) -> None:
        """A worker with one process below it; messages need no server."""
        worker = ("-A", "celery_tasks", "worker", "--concurrency", "1", "--loglevel", "WARNING")
        self._open(self._program("celery"), *worker, environment=self._variables)

    def submit(self, seconds: float) -> Any:
        """The task's id, from a client that has loaded Celery."""
        if self._client is None:
            ask = "for line in sys.stdin: print(celery_tasks.solve.delay(float(line)).id, flush=True)"
            code = f"import sys, celery_tasks\n{ask}"
            self._client = subprocess.Popen(
                [self._program("python"), "-c", code],
                cwd=PEERS,
                env={**os.environ, **self._variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        self._client.stdin.write(f"{seconds}\n")
        self._client.stdin.flush()
        return self._client.stdout.readline().strip()

    def close(self) -> None:
        """End the client, too."""
        super().close()
        if self._client is not None:
            self._client.kill()
            self._client.wait()

    def has_answer(self, job: Any) -> bool:
        """Whether its result file says that it succeeded."""
        path = self.folder / "results" / f"celery-task-meta-{job}"
        return path.exists() and json.loads(path.read_text())["status"] == "SUCCESS"


class Prefect(Peer):
    """A server with SQLite, and a runner that starts a process for each run."""

    name = "prefect"
    packages = ("prefect<3.5", "fastapi<0.120", "importlib_metadata", "ortools")  # 3.8.8 fails with FastAPI 0.165

    @property
    def _variables(self) -> dict[str, str]:
        return {
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PREFECT_API_URL": f"http://127.0.0.1:{self.port}/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        }

    def start(self) -> None:
        """The server, then the runner as soon as it answers."""
        self._open(self._program("prefect"), "server", "start", "--port", str(self.port), environment=self._variables)
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            with suppress(OSError):
                if get(f"http://127.0.0.1:{self.port}/api/health") is True:
                    break
            time.sleep(0.2)
        self._open(self._program("python"), "prefect_flow.py", environment=self._variables)

    def submit(self, seconds: float) -> Any:
        """The id of a run of the deployment."""
        api = f"http://127.0.0.1:{self.port}/api"
        deployment = get(f"{api}/deployments/name/solve/peer")["id"]
        return post(f"{api}/deployments/{deployment}/create_flow_run", {"parameters": {"seconds": seconds}})["id"]

    def has_answer(self, job: Any) -> bool:
        """Whether the run completed."""
        return bool(get(f"http://127.0.0.1:{self.port}/api/flow_runs/{job}")["state_type"] == "COMPLETED")


class ThisService(Peer):
    """`pipeplan serve` with SQLite."""

    name = "pipeplan"
    packages = (f"{HERE.parent}[solve,serve]",)

    def start(self) -> None:
        """One command."""
        self._open(
            self._program("pipeplan"), "serve", "--port", str(self.port), "--data", str(self.folder / "data"),
        )  # fmt: skip

    def submit(self, seconds: float) -> Any:
        """The job's id; a longer one is a larger problem."""
        client = Client(f"http://127.0.0.1:{self.port}", num_tries=1)
        self._seed = getattr(self, "_seed", 0) + 1
        if seconds:
            return client.submit(demo_problem(), limits=Limits(time_limit_s=seconds, patience_s=seconds))["id"]
        return client.submit(make_toy_problem(), limits=Limits(time_limit_s=60, max_rounds=1, seed=self._seed))["id"]

    def has_answer(self, job: Any) -> bool:
        """Whether there is a verified plan."""
        return Client(f"http://127.0.0.1:{self.port}", num_tries=1).job(job, wait_s=1)["state"] == "succeeded"


def get(url: str) -> Any:
    """JSON; raises OSError."""
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.load(response)


def post(url: str, body: Any = None) -> Any:
    """JSON for JSON; raises OSError."""
    data = b"" if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def descendants(pid: int) -> list[int]:
    """Processes below one, however deep."""
    children = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):  # every thread knows those that it started
        with suppress(OSError):
            children += [int(child) for child in task.read_text().split()]
    return [each for child in children for each in (child, *descendants(child))]


def proportional_kib(pid: int) -> int:
    """The process' share of memory; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def measure(peer: Peer, *, again: int) -> tuple[str, ...]:
    """Cells of the table."""
    disk_mb = peer.install()
    try:
        begin = time.monotonic()
        peer.start()
        if peer.answer_s(within_s=START_S) is None:
            raise SystemExit(f"{peer.name} does not answer; see {peer.folder / 'log'}")
        first_s = time.monotonic() - begin
        later = [took for _ in range(again) if (took := peer.answer_s()) is not None]
        resident = peer.resident_mib()
        begin = time.monotonic()
        job = peer.submit(LONG_S)
        time.sleep(KILLED_AFTER_S)
        peer.restart()
        survived_s = peer.wait(job, begin=begin, within_s=PATIENCE_S)
    finally:
        peer.close()
    survived = "lost" if survived_s is None else f"answered after {survived_s:.0f} s"
    middle = f"{statistics.median(later):.2f}" if later else "–"
    return (peer.name, f"{first_s:.1f}", middle, f"{resident:.0f}", f"{disk_mb:.0f}", survived)


def main() -> None:
    """Measure and write the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--environments", type=Path, required=True, help="folder of an environment for each")
    parser.add_argument("--peer", action="append", help="only this one; repeatable")
    arguments = parser.parse_args()
    first, _, rest = (__doc__ or "").partition("\n\n")
    table = Table(
        preface=("## Beside what else people run for this job", "", first, "", rest.partition("\n\n    ")[0], ""),
        header=("server", "start to first answer s", "later answers s", "memory MiB", "disk MB", "SIGKILL of all"),
        output=arguments.output,
    )
    kinds: Sequence[type[Peer]] = (PlainFastApi, Celery, Prefect, ThisService)
    for kind in kinds:
        if arguments.peer and kind.name not in arguments.peer:
            continue
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            table.add(
                measure(kind(Path(folder), arguments.environments.resolve()), again=1 if arguments.quick else AGAIN)
            )
    table.close()


if __name__ == "__main__":
    main()

"""The planning service: small plans per second, latency under many clients, a long queue on PostgreSQL.

Everything runs on this machine, the clients as well, over the loopback interface, so every figure includes their cost.
Every client has an API key of its own, so that nobody is sent away for his rate.

    python -m benchmarks.service [--quick] -o out/benchmarks/service.md
"""

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from api.client import Client, ServerError
from api.doctor import make_toy_problem
from api.jobs.stores.database import open_database
from api.jobs.stores.sql_store import SqlStore
from api.service.keys import KeyRing
from benchmarks.report import Table, make_parser
from planner.document import parse_plan
from planner.problem import Problem
from planner.progress import Limits
from planner.verify import verify
from profiles.load import load_workload
from tests.api.postgres import PostgresServer
from tests.free_ports import free_port

ROOT = Path(__file__).resolve().parent.parent

TENANTS = ("red", "green", "blue", "white")
"""Whose jobs the long queue holds."""


NUM_VIEWS = 30
"""Clients that look at one plan at the same moment."""


def demo_problem() -> Problem:
    """A question of a usual size."""
    workload = load_workload("demo:vgg16-ethernet")
    assert workload.cluster is not None
    return Problem(profile=workload.profile, cluster=workload.cluster, num_microbatches=32)


@contextmanager
def processes(*commands: Sequence[str]) -> Iterator[None]:
    """Our commands, for as long as the context lasts."""
    started = [
        subprocess.Popen([sys.executable, "-m", "api", *command], cwd=ROOT, start_new_session=True)
        for command in commands
    ]
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(60)


def wait_ready(client: Client) -> None:
    """Until the service of a client says that it is ready."""
    while True:
        try:
            client._bytes("GET", "/readyz")
        except ServerError:
            time.sleep(1.0)
        else:
            return


@dataclass(frozen=True)
class Service:
    """A service that runs, and its key cabinet."""

    url: str
    keys: KeyRing

    def client(self, tenant: str = TENANTS[0]) -> Client:
        """A client with a key of its own."""
        return Client(self.url, key=self.keys.create(tenant)[1], num_tries=12)

    def wait_ready(self) -> None:
        """Until the toy plan is solved."""
        wait_ready(self.client())


@contextmanager
def service(*, database_url: str | None = None) -> Iterator[Service]:
    """A service that is ready; with PostgreSQL without workers."""
    port = free_port()
    more = [] if database_url is None else ["--database-url", database_url]
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(Path(folder), database_url)
        SqlStore(database)
        with processes(["serve", "--keys", "--port", str(port), "--data", folder, *more]):
            made = Service(f"http://127.0.0.1:{port}", KeyRing(database))
            made.wait_ready()
            yield made
        database.close_all()


def quick_limits(seed: int) -> Limits:
    """A small deterministic plan; another seed is another question for the cache."""
    return Limits(time_limit_s=60.0, max_rounds=1, seed=seed)


def submit(client: Client, seeds: Sequence[int]) -> list[str]:
    """The ids of small questions."""
    problem = make_toy_problem()
    return [client.submit(problem, limits=quick_limits(seed))["id"] for seed in seeds]


def wait_all(client: Client, ids: Sequence[str]) -> list[Any]:
    """The jobs, when they have ended."""
    ended = []
    for job_id in ids:
        while (job := client.job(job_id, wait_s=20))["state"] in ("queued", "running"):
            pass
        ended.append(job)
    return ended


def rate(client: Client, count: int) -> float:
    """Plans per second of `count` questions, from the first submission to the last answer."""
    begin = time.monotonic()
    wait_all(client, submit(client, range(count)))
    return count / (time.monotonic() - begin)


def at_once(acts: Sequence[Callable[[], None]]) -> None:
    """Each in a thread of its own."""
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def latencies(clients: Sequence[Client], job_id: str, *, each: int) -> list[float]:
    """Seconds of every look at a job's status, by all clients at once."""
    times: list[float] = []

    def look(client: Client) -> None:
        for _ in range(each):
            begin = time.monotonic()
            client.job(job_id)
            times.append(time.monotonic() - begin)

    at_once([lambda client=client: look(client) for client in clients])  # type: ignore[misc]
    return sorted(times)


def view_times(clients: Sequence[Client], job_id: str) -> list[float]:
    """Seconds until each of the clients, who ask at the same moment, has the view of a plan."""
    ready, times = threading.Barrier(len(clients)), list[float]()

    def look(client: Client) -> None:
        ready.wait()
        begin = time.monotonic()
        client.fetch(job_id, "view")
        times.append(time.monotonic() - begin)

    at_once([lambda client=client: look(client) for client in clients])  # type: ignore[misc]
    return sorted(times)


def event_delays(clients: Sequence[Client]) -> list[float]:
    """Seconds from the end of a job that all clients follow to its last event."""
    job = clients[0].submit(demo_problem(), limits=Limits(time_limit_s=300.0, patience_s=300.0))
    arrived = threading.Barrier(len(clients), action=lambda: clients[0].stop(job["id"]))
    heard: list[float] = []

    def follow(client: Client) -> None:
        has_arrived = False
        for event in client.follow(job["id"]):
            if event["kind"] == "incumbent" and not has_arrived:
                arrived.wait()
                has_arrived = True
            elif event["kind"] == "done":
                heard.append(time.time())

    at_once([lambda client=client: follow(client) for client in clients])  # type: ignore[misc]
    done: Any = clients[0].job(job["id"])
    ended = datetime.fromisoformat(done["finished_at"]).timestamp()
    return sorted(moment - ended for moment in heard)


def long_queue(count: int) -> tuple[float, float, int, int]:
    """Submissions per second, then plans per second of two workers that find `count` jobs; how many ended, verified."""
    server = PostgresServer()
    try:
        url = server.fresh_database()
        worker = ["worker", "--database-url", url]
        with service(database_url=url) as made:
            clients = [made.client(tenant) for tenant in TENANTS]
            begin = time.monotonic()
            ids = [submit(client, range(number, count, len(clients))) for number, client in enumerate(clients)]
            submitted_s = time.monotonic() - begin
            with processes(worker, worker):
                begin = time.monotonic()
                ended = [job for client, own in zip(clients, ids, strict=True) for job in wait_all(client, own)]
                solved_s = time.monotonic() - begin
            num_verified = sum(count_verified(client, own) for client, own in zip(clients, ids, strict=True))
            return count / submitted_s, count / solved_s, len(ended), num_verified
    finally:
        server.close()


def count_verified(client: Client, ids: Sequence[str]) -> int:
    """How many plans pass the verifier here."""
    problem = make_toy_problem()
    return sum(verify(problem, parse_plan(client.fetch(job_id, "plan"))).passed for job_id in ids)


def percentiles(times: list[float]) -> str:
    """Median, 99th percentile and the longest, in milliseconds."""
    return " / ".join(
        f"{1000 * value:.0f}" for value in (statistics.median(times), times[int(0.99 * (len(times) - 1))], times[-1])
    )


def main() -> None:
    """Measure and write the table."""
    arguments = make_parser(__doc__).parse_args()
    count, num_clients, queue = (20, 40, 40) if arguments.quick else (100, 200, 1000)
    first, _, rest = (__doc__ or "").partition("\n\n")
    table = Table(
        preface=("## Throughput and latency", "", first, rest.partition("\n\n")[0], ""),
        header=("what", "measured"),
        output=arguments.output,
    )
    with service() as made:
        client = made.client()
        table.add((f"small plans per second, cache cold ({count} plans, one worker)", f"{rate(client, count):.1f}"))
        table.add((f"small plans per second, cache warm (the same {count})", f"{rate(client, count):.0f}"))
        clients = [made.client() for _ in range(num_clients)]
        status = latencies(clients, submit(client, [0])[0], each=10)
        table.add((f"status, {num_clients} clients at once, ms (median / 99 % / longest)", percentiles(status)))
        viewed = client.plan(demo_problem(), limits=Limits(time_limit_s=20.0, max_rounds=1))["id"]
        for when in ("first seen", "kept"):
            times = percentiles(view_times(clients[:NUM_VIEWS], viewed))
            table.add((f"{NUM_VIEWS} views of one plan at once, {when}, ms (same)", times))
        delays = event_delays(clients)
        table.add((f"last event after the end, {len(delays)} clients, ms (same)", percentiles(delays)))
    submitted, solved, ended, verified = long_queue(queue)
    table.add((f"{queue} jobs of four tenants queued on PostgreSQL: submissions per second", f"{submitted:.0f}"))
    table.add(("the same over two workers that start then: plans per second", f"{solved:.1f}"))
    table.add(("of them ended / verified here once more", f"{ended} / {verified}"))
    table.close()


if __name__ == "__main__":
    main()

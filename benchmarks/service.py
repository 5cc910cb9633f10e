"""The planning service: small plans per second, latency under many clients, a long queue on PostgreSQL.

Everything runs on this machine, the clients as well, over the loopback interface, so every figure includes their cost.

    python -m benchmarks.service [--quick] -o docs/benchmarks/service.md
"""

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from api.client import Client, ServerError
from api.doctor import make_toy_problem
from api.service.serving import free_port
from benchmarks.report import Table, make_parser
from planner.document import parse_plan
from planner.problem import Problem
from planner.progress import Limits
from planner.verify import verify
from profiles.load import load_workload
from tests.api.postgres import PostgresServer

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def processes(*commands: list[str]) -> Iterator[None]:
    """Our commands, for as long as the context lasts."""
    started = [
        subprocess.Popen([sys.executable, "-m", "api.cli", *command], cwd=ROOT, start_new_session=True)
        for command in commands
    ]
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(60)


@contextmanager
def service(*workers: list[str], more: tuple[str, ...] = ()) -> Iterator[Client]:
    """A service that is ready, and its workers."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = ["serve", "--port", str(port), "--data", folder, *more]
        with processes(command, *workers):
            client = Client(f"http://127.0.0.1:{port}", num_tries=12)
            while True:
                try:
                    client._bytes("GET", "/readyz")
                    break
                except ServerError:
                    time.sleep(1.0)
            yield client


def quick_limits(seed: int) -> Limits:
    """A small deterministic plan; another seed is another question for the cache."""
    return Limits(time_limit_s=60.0, max_rounds=1, seed=seed)


def throughput(client: Client, count: int) -> tuple[float, float]:
    """Plans per second, cold and warm: the same `count` questions twice."""
    problem = make_toy_problem()

    def ask() -> float:
        begin = time.monotonic()
        ids = [client.submit(problem, limits=quick_limits(seed))["id"] for seed in range(count)]
        for job_id in ids:
            while client.job(job_id, wait_s=20)["state"] != "succeeded":
                pass
        return count / (time.monotonic() - begin)

    return ask(), ask()


def latencies(act: Callable[[], object], *, clients: int, each: int) -> list[float]:
    """Seconds of every call, by so many threads at once."""
    times: list[float] = []

    def work() -> None:
        for _ in range(each):
            begin = time.monotonic()
            act()
            times.append(time.monotonic() - begin)

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(times)


def event_delays(client: Client, *, clients: int) -> list[float]:
    """Seconds from `stop` to the last event, for clients that all follow one job."""
    workload = load_workload("demo:vgg16-ethernet")
    assert workload.cluster is not None
    problem = Problem(profile=workload.profile, cluster=workload.cluster, num_microbatches=32)
    job = client.submit(problem, limits=Limits(time_limit_s=300.0, patience_s=300.0))
    heard: list[float] = []

    def follow() -> None:
        for event in client.follow(job["id"]):
            if event["kind"] == "done":
                heard.append(time.time())

    threads = [threading.Thread(target=follow) for _ in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(8.0)
    client.stop(job["id"])
    for thread in threads:
        thread.join()
    done = client.job(job["id"])["finished_at"]  # type: ignore[typeddict-item]
    ended = datetime.fromisoformat(done).timestamp()
    return sorted(moment - ended for moment in heard)


def long_queue(count: int) -> tuple[float, int, int]:
    """Plans per second of `count` jobs of four tenants' worth over two workers; how many ended, how many verified."""
    server = PostgresServer()
    try:
        url = server.fresh_database()
        worker = ["worker", "--database-url", url]
        problem = make_toy_problem()
        with service(worker, worker, more=("--database-url", url)) as client:
            begin = time.monotonic()
            ids = [client.submit(problem, limits=quick_limits(seed))["id"] for seed in range(count)]
            for job_id in ids:
                while client.job(job_id, wait_s=20)["state"] in ("queued", "running"):
                    pass
            seconds = time.monotonic() - begin
            ended = [client.job(job_id) for job_id in ids]
            plans = (parse_plan(client.fetch(job["id"], "plan")) for job in ended if job["state"] == "succeeded")
            return count / seconds, len(ended), sum(verify(problem, plan).passed for plan in plans)
    finally:
        server.close()


def percentiles(times: list[float]) -> str:
    """Median, 99th percentile and the longest, in milliseconds."""
    return " / ".join(
        f"{1000 * value:.0f}" for value in (statistics.median(times), times[int(0.99 * (len(times) - 1))], times[-1])
    )


def main() -> None:
    """Measure and write the table."""
    arguments = make_parser(__doc__).parse_args()
    count, clients, queue = (20, 40, 30) if arguments.quick else (100, 200, 1000)
    table = Table(
        preface=("# The planning service", "", (__doc__ or "").partition("\n")[0], ""),
        header=("what", "measured"),
        output=arguments.output,
    )
    with service() as client:
        cold, warm = throughput(client, count)
        table.add((f"small plans per second, cache cold ({count} plans, one worker)", f"{cold:.1f}"))
        table.add((f"small plans per second, cache warm ({count} plans)", f"{warm:.0f}"))
        job = client.plan(make_toy_problem(), limits=quick_limits(0))
        status = latencies(lambda: client.job(job["id"]), clients=clients, each=10)
        table.add((f"status, {clients} clients at once, ms (median / 99 % / longest)", percentiles(status)))
        delays = event_delays(client, clients=clients)
        table.add((f"last event after the end, {clients} clients, ms (median / 99 % / longest)", percentiles(delays)))
    rate, ended, verified = long_queue(queue)
    table.add((f"{queue} queued jobs, two workers, PostgreSQL: plans per second", f"{rate:.1f}"))
    table.add(("of them ended / verified here once more", f"{ended} / {verified}"))
    table.close()


if __name__ == "__main__":
    main()

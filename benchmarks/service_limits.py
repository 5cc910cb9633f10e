"""What the service bears: half-open connections, first submissions after a start, views of one plan at once.

Processes of their own, as `pipeplan serve` starts them, without keys; clients are threads of this one.

    python -m benchmarks.service_limits [--quick] -o docs/benchmarks/service.md
"""

import http.client
import json
import multiprocessing
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from api.client import Client
from api.doctor import make_toy_problem
from api.service.http.listener import raise_file_limit
from api.service.openapi import example_submission
from benchmarks.report import Table, make_parser
from benchmarks.service import at_once, demo_problem, view_times
from benchmarks.soak_site import SERVICE, SoakSite
from planner.progress import Limits

HALVES = {
    "nothing": b"",
    "half a header": b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
    "half a body": b"POST /v1/plans HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9"
    b"\r\n\r\n{",
}
"""What a connection has sent when it falls silent."""

PATHS = ("/livez", "/readyz", "/v1/plans", "/v1/capabilities")
"""Asked by others meanwhile, in turns."""

LIMITS = ("hourly_jobs=1000000", "requests_per_s=10000", "burst=10000")
"""Without keys all are one caller; the rate of one is not what is measured."""

NUM_FIRST = 16
"""Submissions at once, as soon as the service listens."""

LISTENS_S = 120.0


@contextmanager
def started(*, is_ready: bool = True) -> Iterator[SoakSite]:
    """A service on an empty SQLite store, from the moment on that it listens, or is ready."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        site = SoakSite(folder=Path(folder), retention_s=86400.0, limits=LIMITS)
        site.start(SERVICE)
        try:
            if is_ready:
                site.wait_ready()
            yield site
        finally:
            site.close()


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, float]:
    """Status and seconds of one request on a connection of its own; status 0 if nobody listens."""
    begin = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {} if body is None else {"Content-Type": "application/json"}
    try:
        connection.request(method, path, body=body, headers=headers)
        return connection.getresponse().status, time.monotonic() - begin
    except (OSError, http.client.HTTPException):
        return 0, time.monotonic() - begin
    finally:
        connection.close()


class Silent:
    """Connections that stay half-open: whoever is dropped comes again."""

    def __init__(self, port: int, data: bytes, *, count: int) -> None:
        self._port, self._data = port, data
        self._sockets = [self._connect() for _ in range(count)]
        self.num_dropped = 0

    def _connect(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self._port), timeout=60)
        made.sendall(self._data)
        made.setblocking(False)
        return made

    def renew(self) -> None:
        """Look at each once; connect anew where the service hung up."""
        for place, each in enumerate(self._sockets):
            try:
                while each.recv(65536):
                    pass
            except BlockingIOError:
                continue
            except OSError:
                pass
            each.close()
            self._sockets[place] = self._connect()
            self.num_dropped += 1


def hold(port: int, name: str, count: int, pipe: Connection) -> None:
    """In a process of its own: hold connections until the pipe says something; then say how many came again."""
    raise_file_limit()
    silent = Silent(port, HALVES[name], count=count)
    pipe.send(0)
    while not pipe.poll(0.5):
        silent.renew()
    pipe.send(silent.num_dropped)


def half_open_row(name: str, *, count: int, seconds: float) -> tuple[str, str]:
    """What others wait while so many connections stay half-open."""
    times, statuses = list[float](), Counter[int]()
    processes = multiprocessing.get_context("spawn")
    with started() as site:
        here, there = processes.Pipe()
        holder = processes.Process(target=hold, args=(site.port, name, count, there))
        holder.start()
        here.recv()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for path in PATHS:
                status, took_s = ask(site.port, "GET", path)
                statuses[status] += 1
                times.append(took_s)
            time.sleep(0.05)
        here.send(None)
        num_dropped = here.recv()
        holder.join()
    others = {status: number for status, number in statuses.items() if status != 200}
    said = f"{percentiles_ms(sorted(times))}; {len(times)} asked, {'all 200' if not others else f'others: {others}'}"
    return (
        f"{count} connections that sent {name}, for {seconds:.0f} s ({num_dropped} came again): others' answers",
        said,
    )


def first_posts_row(starts: int) -> tuple[str, str]:
    """Statuses of the first submissions after every start."""
    statuses = Counter[int]()
    bodies = [json.dumps({**example_submission(), "priority": number % 3}).encode() for number in range(NUM_FIRST)]
    for _ in range(starts):
        with started(is_ready=False) as site:
            until = time.monotonic() + LISTENS_S
            while ask(site.port, "GET", "/livez")[0] != 200 and time.monotonic() < until:
                time.sleep(0.02)
            at_once([poster(site.port, body, statuses) for body in bodies])
    said = ", ".join(f"{status}: {number}" for status, number in sorted(statuses.items()))
    return f"{starts} starts, {NUM_FIRST} first submissions at once: answers by status", said


def poster(port: int, body: bytes, statuses: Counter[int]) -> Callable[[], None]:
    """Posts once, and notes the status."""

    def post() -> None:
        statuses[ask(port, "POST", "/v1/plans", body)[0]] += 1

    return post


def views_row(count: int) -> Iterator[tuple[str, str]]:
    """What many wait who look at one plan at the same moment, when nobody has yet, and again."""
    with started() as site:
        client = Client(site.url)
        for name, problem in (("toy", make_toy_problem()), ("vgg16, 32 microbatches", demo_problem())):
            job = client.plan(problem, limits=Limits(time_limit_s=20.0, max_rounds=1))["id"]
            for when in ("first seen", "kept"):
                times = view_times([Client(site.url, num_tries=1)] * count, job)
                what = f"{count} views of one plan at once, {name}, {when}"
                yield what, f"{percentiles_ms(times)}; {len(times)} answered"


def percentiles_ms(times: list[float]) -> str:
    """Median, 99th percentile and the longest; `times` are sorted seconds."""
    chosen = (times[len(times) // 2], times[int(0.99 * (len(times) - 1))], times[-1])
    return " / ".join(f"{1000 * value:.0f}" for value in chosen)


def main() -> None:
    """Measure and write the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--starts", type=int, default=20)
    arguments = parser.parse_args()
    count, seconds, starts = (200, 3.0, 2) if arguments.quick else (2000, 60.0, arguments.starts)
    raise_file_limit()
    first, _, rest = (__doc__ or "").partition("\n\n")
    table = Table(
        preface=("## What it bears", "", first, rest.partition("\n\n")[0], ""),
        header=("what (ms: median / 99 % / longest)", "measured"),
        output=arguments.output,
    )
    for row in views_row(30):
        table.add(row)
    for name in HALVES:
        table.add(half_open_row(name, count=count, seconds=seconds))
    table.add(first_posts_row(starts))
    table.close()


if __name__ == "__main__":
    main()

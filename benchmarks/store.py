"""The store of the service, filled: submit, list, count and expire with many large requests, on both engines.

Texts do not compress. A transaction is timed from its first statement to its commit; commits are on the disk.
Everything runs in one process on this machine, without the HTTP in front of it.

    python -m benchmarks.store [--quick] [--engine sqlite|postgres] -o docs/benchmarks/store.md
"""

import base64
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from api.jobs.job import NewJob, Outcome, Quota
from api.jobs.stores.postgres import PostgresDatabase
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.sqlite import SqliteDatabase
from api.jobs.stores.transactions import Cursor, Database
from benchmarks.report import Table, make_parser
from tests.api.postgres import PostgresServer

FULL = (10_000, 2_000_000)
"""Jobs, and bytes of each request."""

QUICK = (200, 20_000)

LOOKS = 200
"""How often each question is asked of a full store."""

MOST_ROUNDS = 60
"""Of housekeeping, an hour of them."""

ROOM = Quota(unfinished_jobs=10**9, hourly_jobs=10**9, stored_bytes=2**50)


class Timings(threading.local):
    """Seconds of every transaction of a database, by what the thread did it for."""

    now_doing = ""

    def __init__(self, seconds: dict[str, list[float]]) -> None:
        self.seconds = seconds
        self.worked_s: dict[str, list[float]] = {}
        """Of that, processor time of the thread; with PostgreSQL its server works besides."""

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Transactions of this thread until the end of the context count as that."""
        self.now_doing = what
        try:
            yield
        finally:
            self.now_doing = ""

    def watch(self, database: Database) -> None:
        """Time every transaction of the database."""
        plain = database.transaction

        @contextmanager
        def timed(*, is_writing: bool = True) -> Iterator[Cursor]:
            begin, worked = time.perf_counter(), time.thread_time()
            try:
                with plain(is_writing=is_writing) as cursor:
                    yield cursor
            finally:  # what was given up held its rows, too
                self.worked_s.setdefault(self.now_doing, []).append(time.thread_time() - worked)
                self.seconds.setdefault(self.now_doing, []).append(time.perf_counter() - begin)

        database.transaction = timed  # type: ignore[method-assign]

    def percentiles(self, what: str, *, of: dict[str, list[float]] | None = None) -> str:
        """Median, 99th percentile and the longest, in milliseconds."""
        times = sorted((of or self.seconds)[what])
        chosen = (times[len(times) // 2], times[int(0.99 * (len(times) - 1))], times[-1])
        return " / ".join(f"{1000 * value:.1f}" for value in chosen)


def texts(size: int) -> Iterator[str]:
    """Requests of that many bytes, each another one, none of which compresses."""
    pool = base64.b64encode(os.urandom(size)).decode()
    number = 0
    while True:
        number += 1
        head = f"{number:012d}"
        start = (number * 7919) % (len(pool) - size)
        yield head + pool[start : start + size - len(head)]


def new_job(text: str, *, tenant: str) -> NewJob:
    """A job that asks that."""
    key = uuid.uuid4().hex * 2
    return NewJob(
        id=uuid.uuid4().hex,
        tenant=tenant,
        name="large",
        request=text,
        problem_key=key,
        request_key=key,
        is_deterministic=False,
        profile_sha256=key,
    )


def fill(store: SqlStore, timings: Timings, *, count: int, size: int) -> None:
    """Submit so many jobs of one tenant, ask about them, then end them."""
    source = texts(size)
    for _ in range(count):
        job = new_job(next(source), tenant="large")
        with timings.doing("submit"):
            store.submit(job, idempotency_key=job.id, body_sha256="x", quota=ROOM)
    ask(store, timings, size=size)
    with store.database.transaction() as cursor:
        cursor.execute("UPDATE jobs SET state = 'cancelled', finished_at = created_at WHERE state = 'queued'")


def ask(store: SqlStore, timings: Timings, *, size: int) -> None:
    """What doors and workers ask of a full store."""
    source = texts(size)
    for _ in range(LOOKS):
        with timings.doing("list"):
            store.recent("large", limit=100)
        with timings.doing("count"):
            store.count_states()
            store.queue_age_s()
            store.count_unfinished("large")
        with timings.doing("submit to a full store"):
            store.submit(new_job(next(source), tenant="large"), quota=ROOM)
        with timings.doing("look for an answer"):
            store.find_answer("large", problem_key="p", request_key="r", gap=0.0, is_exact=False)
        with timings.doing("claim"):
            job = store.claim("w", lease_s=3600.0)
        assert job is not None
        with timings.doing("finish"):
            store.finish(job, Outcome(state="failed"))


def keep_submitting(store: SqlStore, timings: Timings, is_over: threading.Event) -> None:
    """Another tenant goes on while there is housekeeping."""
    while not is_over.is_set():
        with timings.doing("meanwhile"):
            store.submit(new_job("{}", tenant="small"), quota=ROOM)
        time.sleep(0.02)
    store.close()


def keep_house(store: SqlStore, timings: Timings) -> int:
    """What the service does once a minute, until nothing comes back any more; the answer is how often."""
    rounds, before = 0, 0
    while before != (before := size_of(store.database)) and rounds < MOST_ROUNDS:
        with timings.doing("expire"):
            store.expire(older_than_s=-3600.0)
        rounds += 1
    return rounds


def size_of(database: Database) -> int:
    """Bytes that the store takes on the disk."""
    if isinstance(database, SqliteDatabase):
        return sum(path.stat().st_size for path in database.path.parent.glob(database.path.name + "*"))
    assert isinstance(database, PostgresDatabase)
    with psycopg.connect(database.url) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        assert row is not None
        return int(row[0])


def measure(database: Database, *, count: int, size: int) -> Iterator[tuple[str, str]]:
    """Rows of the table for one engine."""
    store, timings = SqlStore(database), Timings({})
    timings.watch(database)
    fill(store, timings, count=count, size=size)
    asked = ("list", "count", "look for an answer", "claim", "finish")
    for what in ("submit", "submit to a full store", *asked):
        yield what, timings.percentiles(what)
    for what in ("submit", "submit to a full store", "list"):
        yield f"{what}, processor time", timings.percentiles(what, of=timings.worked_s)
    full = size_of(database)
    begin, is_over = time.perf_counter(), threading.Event()
    other = threading.Thread(target=keep_submitting, args=(store, timings, is_over))
    other.start()
    with timings.doing("expire"):
        gone = store.expire(older_than_s=-3600.0)
    took_s = time.perf_counter() - begin
    is_over.set()
    other.join()
    yield "expire, each transaction", timings.percentiles("expire")
    yield f"expire {gone} jobs and give the room back, s", f"{took_s:.1f}"
    yield "submit a small job meanwhile", timings.percentiles("meanwhile")
    yield "GB on the disk, full", f"{full / 1e9:.2f}"
    if isinstance(database, PostgresDatabase):
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute("VACUUM")  # what autovacuum does sooner or later
    yield "GB on the disk afterwards", f"{size_of(database) / 1e9:.2f}"
    rounds = keep_house(store, timings)
    yield f"GB on the disk after {rounds} rounds of housekeeping more", f"{size_of(database) / 1e9:.2f}"
    submitted = timings.seconds["submit"]
    source = texts(size)
    for _ in range(count // 10):
        with timings.doing("again"):
            store.submit(new_job(next(source), tenant="large"), quota=ROOM)
    yield f"GB on the disk with {count // 10} jobs again", f"{size_of(database) / 1e9:.2f}"
    yield "submit, s of all", f"{sum(submitted):.0f}"
    database.close_all()


def measure_engine(engine: str, *, count: int, size: int) -> list[tuple[str, str]]:
    """Rows for the engine of that name, on a database that is removed afterwards."""
    if engine == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            return list(measure(SqliteDatabase(Path(folder) / "jobs.sqlite"), count=count, size=size))
    server = PostgresServer(is_durable=True)
    try:
        return list(measure(PostgresDatabase(server.fresh_database()), count=count, size=size))
    finally:
        server.close()


def main() -> None:
    """Measure and write the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), action="append")
    parser.add_argument("--jobs", type=int, help="instead of 10,000")
    arguments = parser.parse_args()
    count, size = QUICK if arguments.quick else FULL
    count = arguments.jobs or count
    first, _, rest = (__doc__ or "").partition("\n\n")
    table = Table(
        preface=("# The store, filled", "", first, rest.partition("\n\n")[0], "", f"{count} jobs of {size} bytes.", ""),
        header=("engine", "what (median / 99 % / longest, ms)", "measured"),
        output=arguments.output,
    )
    for engine in arguments.engine or ("sqlite", "postgres"):
        for what, measured in measure_engine(engine, count=count, size=size):
            table.add((engine, what, measured))
    table.close()


if __name__ == "__main__":
    main()

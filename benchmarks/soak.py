"""The service in use for half an hour: mixed load, kills, expiry; memory, descriptors and latency over time.

Six clients post small plans, poll them or follow their events, then fetch, draw, export, list, search, ask what-ifs and
delete. From a tenth of the time to its middle a process is killed by SIGKILL every two minutes, in turns the service, a
solver, a helper and, with PostgreSQL, the workers; solvers and helpers are killed to the end. Finished plans expire
after three minutes. The processes that are alive at the end are so since the middle.

    python -m benchmarks.soak [--quick] [--minutes 30] [--engine sqlite|postgres] -o out/benchmarks/service.md
"""

import math
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import psycopg

from api.jobs.stores.database import open_database
from api.jobs.stores.postgres import PostgresDatabase
from api.jobs.stores.sqlite import SqliteDatabase
from api.jobs.stores.transactions import Database
from benchmarks.report import Table, make_parser
from benchmarks.soak_load import NUM_CLIENTS, Ledger, Sent, SoakClient
from benchmarks.soak_site import HELPER, SERVICE, SOLVER, Footprint, SoakSite
from tests.api.postgres import PostgresServer

SAMPLE_S = 3.0
"""Between two looks at the processes."""

RETENTION_S, QUICK_RETENTION_S = 180.0, 20.0
"""How long finished plans are kept."""

HOUSEKEEPING_S = 60.0
"""How often the service expires them."""

KILL_EVERY_S, QUICK_KILL_EVERY_S = 120.0, 15.0

STORM = (0.1, 0.5)
"""From which to which part of the time the service and its workers are killed; solvers and helpers are all the time."""

RELIEF_S = 20.0
"""So long after a process of ours was up again, requests count as sent while it was away."""

FLAT = {"memory": (0.10, 12.0), "count": (0.10, 4.0), "size": (0.10, 1.0), "latency": (0.50, 20.0)}
"""By what share and amount (MiB, descriptors, MB, ms) the last third's median may be above the first third's."""


def size_of(database: Database) -> int:
    """Bytes that the store takes on the disk."""
    if isinstance(database, SqliteDatabase):
        return sum(path.stat().st_size for path in database.path.parent.glob(database.path.name + "*"))
    assert isinstance(database, PostgresDatabase)
    with psycopg.connect(database.url) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        assert row is not None
        return int(row[0])


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The processes and the database at one moment."""

    at_s: float
    roles: dict[str, Footprint]
    stored_mb: float


@dataclass
class Soak:
    """One run."""

    site: SoakSite
    minutes: float
    kill_every_s: float
    ledger: Ledger = field(default_factory=Ledger)
    samples: list[Sample] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)
    """From the kill of a process that answers or works to the moment when requests are answered as ever."""
    kills: dict[str, int] = field(default_factory=dict)
    is_over: threading.Event = field(default_factory=threading.Event)

    @property
    def seconds(self) -> float:
        """The whole run."""
        return 60.0 * self.minutes

    def run(self) -> None:
        """Load, kills and samples, until the time is over and every client has seen its last job end."""
        clients = [
            SoakClient(self.site.port, self.ledger, number=number, is_over=self.is_over)
            for number in range(NUM_CLIENTS)
        ]
        others = [threading.Thread(target=self._watch), threading.Thread(target=self._kill_now_and_then)]
        for thread in (*(client.thread for client in clients), *others):
            thread.start()
        try:
            self.is_over.wait(self.seconds)
        finally:
            self.is_over.set()
            for thread in (*(client.thread for client in clients), *others):
                thread.join()

    def _watch(self) -> None:
        database = open_database(self.site.folder / "data", self.site.url)
        while not self.is_over.wait(SAMPLE_S):
            stored = size_of(database) / 1e6
            self.samples.append(Sample(at_s=self.ledger.now(), roles=self.site.footprints(), stored_mb=stored))
        database.close_all()

    def _kill_now_and_then(self) -> None:
        begin, end = (part * self.seconds for part in STORM)
        in_storm = cycle((*self.site.names, SOLVER, HELPER))
        afterwards = cycle((SOLVER, HELPER))
        while not self.is_over.wait(self.kill_every_s):
            now = self.ledger.now()
            name = next(in_storm if begin <= now < end else afterwards)
            if name in (SOLVER, HELPER):
                self.kills[name] = self.kills.get(name, 0) + self.site.kill_below(name)
                continue
            self.kills[name] = self.kills.get(name, 0) + 1
            self.site.kill(name)
            if name == SERVICE:
                self.site.wait_ready()
                self.outages.append((now - 1.0, self.ledger.now() + RELIEF_S))

    def is_away(self, sent: Sent) -> bool:
        """Whether the request was sent, or under way, while the service was away."""
        return any(begin <= sent.at_s + sent.took_s and sent.at_s <= end for begin, end in self.outages)


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Values of the first third beside those of the last."""

    first: list[float]
    last: list[float]

    @classmethod
    def of(cls, points: Sequence[tuple[float, float]], *, begin_s: float, end_s: float) -> "Trend":
        """`points` are seconds and values; what lies before `begin_s` is warming up."""
        third = (end_s - begin_s) / 3
        return cls(
            first=sorted(value for at_s, value in points if begin_s <= at_s < begin_s + third),
            last=sorted(value for at_s, value in points if end_s - third <= at_s),
        )

    def row(self, what: str, *, rule: str, form: Callable[[list[float]], str]) -> tuple[str, ...]:
        """Cells of the table."""
        if not self.first or not self.last:
            return (what, "–", "–", "too few")
        before, after = statistics.median(self.first), statistics.median(self.last)
        share, amount = FLAT[rule]
        verdict = "flat" if after <= before + max(share * before, amount) else f"**+{after - before:.1f}**"
        return (what, form(self.first), form(self.last), verdict)


def middle_and_most(values: list[float]) -> str:
    """Median and largest."""
    return f"{statistics.median(values):.0f} / {values[-1]:.0f}"


def middle_and_tail(values: list[float]) -> str:
    """Median and 99th percentile, with how many there are."""
    return f"{statistics.median(values):.0f} / {values[math.ceil(0.99 * len(values)) - 1]:.0f} ({len(values)})"


def rows(soak: Soak) -> Iterator[tuple[str, ...]]:
    """First third beside last third: processes, database, latency."""
    begin_s, end_s = min(soak.site.retention_s + HOUSEKEEPING_S, soak.seconds / 4), soak.seconds

    def trend(points: Sequence[tuple[float, float]]) -> Trend:
        return Trend.of(points, begin_s=begin_s, end_s=end_s)

    for role in sorted({role for sample in soak.samples for role in sample.roles}):
        seen = [(sample.at_s, sample.roles[role]) for sample in soak.samples if role in sample.roles]
        resident = [(at_s, each.resident_bytes / 2**20) for at_s, each in seen]
        descriptors = [(at_s, float(each.num_descriptors)) for at_s, each in seen]
        threads = [(at_s, float(each.num_threads)) for at_s, each in seen]
        yield trend(resident).row(f"{role}: resident MiB (median / most)", rule="memory", form=middle_and_most)
        yield trend(descriptors).row(f"{role}: descriptors (same)", rule="count", form=middle_and_most)
        yield trend(threads).row(f"{role}: threads (same)", rule="count", form=middle_and_most)
    stored = [(sample.at_s, sample.stored_mb) for sample in soak.samples]
    yield trend(stored).row("database MB (same)", rule="size", form=middle_and_most)
    answered = [sent for sent in soak.ledger.sent if 200 <= sent.status < 500 and not soak.is_away(sent)]
    for kind in sorted({sent.kind for sent in answered}):
        times = [(sent.at_s, 1000 * sent.took_s) for sent in answered if sent.kind == kind]
        yield trend(times).row(f"{kind}, ms (median / 99 %, how many)", rule="latency", form=middle_and_tail)


def remarks(soak: Soak) -> Iterator[str]:
    """What was lost and refused."""
    ledger = soak.ledger
    failed = [sent for sent in ledger.sent if sent.status >= 500]
    beside = [sent for sent in failed if not soak.is_away(sent)]
    broken = [sent for sent in ledger.sent if sent.status == 0]
    broken_beside = [sent for sent in broken if not soak.is_away(sent)]
    kills = ", ".join(f"{name} {count}" for name, count in sorted(soak.kills.items()))
    yield (
        f"{soak.site.folder.name}: {len(ledger.sent):,} requests in {soak.minutes:g} minutes. Jobs posted "
        f"{ledger.posted:,}, seen to end {ledger.ended:,}, failed {len(ledger.failed)}, lost {len(ledger.lost)}; plans "
        f"verified here once more {ledger.verified}. Kills: {kills or 'none'}. 5xx while the service was up: "
        f"{len(beside)}; within {RELIEF_S:g} s of its return: {len(failed) - len(beside)}. Connections refused or "
        f"broken by kills: {len(broken) - len(broken_beside)}; otherwise: {len(broken_beside)}."
    )
    if beside:
        yield "5xx: " + ", ".join(f"{sent.kind} {sent.status} at {sent.at_s:.0f} s" for sent in beside[:20])


@contextmanager
def site_of(engine: str, *, retention_s: float) -> Iterator[SoakSite]:
    """A service that is ready, on an empty store of that engine."""
    server = PostgresServer(is_durable=True) if engine == "postgres" else None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = Path(folder) / engine
        home.mkdir()
        url = None if server is None else server.fresh_database()
        site = SoakSite(folder=home, retention_s=retention_s, url=url)
        try:
            for name in site.names:
                site.start(name)
            site.wait_ready()
            yield site
            site.close()
            (home / "log").replace(Path(tempfile.gettempdir()) / f"soak-{engine}.log")
        finally:
            site.abandon()
            if server is not None:
                server.close()


def main() -> None:
    """Soak and write the tables."""
    parser = make_parser(__doc__)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), action="append")
    parser.add_argument("--minutes", type=float, default=30.0)
    arguments = parser.parse_args()
    minutes = 2.0 if arguments.quick else arguments.minutes
    first, _, rest = (__doc__ or "").partition("\n\n")
    engines = arguments.engine or ("sqlite", "postgres")
    title = f"## In use for {minutes:g} minutes, {' and '.join(engines)}"
    table = Table(
        preface=(title, "", first, "", rest.partition("\n\n    ")[0], ""),
        header=("engine", "what", "first third", "last third", "verdict"),
        output=arguments.output,
    )
    said: list[str] = []
    is_well = True
    for engine in engines:
        with site_of(engine, retention_s=QUICK_RETENTION_S if arguments.quick else RETENTION_S) as site:
            kill_every_s = QUICK_KILL_EVERY_S if arguments.quick else KILL_EVERY_S
            soak = Soak(site=site, minutes=minutes, kill_every_s=kill_every_s)
            soak.run()
        for row in rows(soak):
            table.add((engine, *row))
        said.extend(remarks(soak))
        is_well &= not soak.ledger.lost and not soak.ledger.failed
    table.close("\n\n".join(said))
    sys.exit(0 if is_well else 1)


if __name__ == "__main__":
    main()

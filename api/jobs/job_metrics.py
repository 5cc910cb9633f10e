"""What became of jobs, counted where they are solved, in Prometheus' text form."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence

from api.jobs.job import Job, Outcome

SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
GAPS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Values in buckets, each with its upper bound."""

    def __init__(self, name: str, bounds: Sequence[float]) -> None:
        self._name, self._bounds = name, tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count one more value in its bucket."""
        self._counts[next((n for n, bound in enumerate(self._bounds) if value <= bound), len(self._bounds))] += 1
        self._sum += value

    def render(self) -> Iterator[str]:
        """The metric in the text format of Prometheus."""
        yield f"# TYPE {self._name} histogram"
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{self._name}_bucket{{le="{bound}"}} {total}'
        yield f"{self._name}_sum {self._sum:.6f}"
        yield f"{self._name}_count {total}"


class JobMetrics:
    """Counters of one process that solves jobs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: Counter[tuple[str, str]] = Counter()
        self._islands: Counter[str] = Counter()
        self._num_crashes = self._num_given_back = self._num_lost = 0
        self._waits = Histogram("pipeplan_job_wait_seconds", SECONDS)
        self._solves = Histogram("pipeplan_solve_seconds", SECONDS)
        self._gaps = Histogram("pipeplan_gap", GAPS)

    def started(self, job: Job) -> None:
        """A job was claimed."""
        if job.attempt == 1 and job.started_at is not None:
            with self._lock:
                self._waits.add(max(0.0, job.started_at - job.created_at))

    def ended(self, outcome: Outcome, *, seconds: float) -> None:
        """A job came to its end, after so many seconds with its last worker."""
        with self._lock:
            self._ended[outcome.state, outcome.stopped_by or "none"] += 1
            self._solves.add(seconds)
            if outcome.gap is not None:
                self._gaps.add(outcome.gap)

    def given_back(self, *, is_crash: bool) -> None:
        """A job waits again: its solver died, or this process is told to stop."""
        with self._lock:
            self._num_crashes += is_crash
            self._num_given_back += not is_crash

    def lost(self) -> None:
        """A job was somebody else's all of a sudden, or was deleted."""
        with self._lock:
            self._num_lost += 1

    def island(self, end: str) -> None:
        """A claim of an island is over: it `ended`, was `given_back`, `crashed`, or was `lost` to somebody else."""
        with self._lock:
            self._islands[end] += 1

    def render(self) -> list[str]:
        """Every metric in the text format of Prometheus."""
        with self._lock:
            lines = ["# TYPE pipeplan_jobs_ended_total counter"]
            for (state, stopped_by), count in sorted(self._ended.items()):
                lines.append(f'pipeplan_jobs_ended_total{{state="{state}",stopped_by="{stopped_by}"}} {count}')
            lines.append("# TYPE pipeplan_islands_total counter")
            lines += [f'pipeplan_islands_total{{end="{end}"}} {count}' for end, count in sorted(self._islands.items())]
            for name, value in (
                ("solver_crashes", self._num_crashes),
                ("jobs_given_back", self._num_given_back),
                ("leases_lost", self._num_lost),
            ):
                lines += [f"# TYPE pipeplan_{name}_total counter", f"pipeplan_{name}_total {value}"]
            return [*lines, *self._waits.render(), *self._solves.render(), *self._gaps.render()]

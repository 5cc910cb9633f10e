"""What became of jobs, counted where they are solved."""

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest

from api.jobs.job import Job, Outcome

SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
GAPS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# nobody asks when a counter was made, and each would be listed twice
disable_created_metrics()  # type: ignore[no-untyped-call]


class JobMetrics:
    """Counters of one process that solves jobs."""

    def __init__(self) -> None:
        self.registry = mine = CollectorRegistry()
        self._ended = Counter("pipeplan_jobs_ended", "Jobs by how they ended.", ("state", "stopped_by"), registry=mine)
        self._crashes = Counter("pipeplan_solver_crashes", "Solvers that died.", registry=mine)
        self._given_back = Counter("pipeplan_jobs_given_back", "Jobs that wait again.", registry=mine)
        self._lost = Counter("pipeplan_leases_lost", "Jobs lost to somebody else, or deleted.", registry=mine)
        self._waits = Histogram("pipeplan_job_wait_seconds", "Time in the queue.", buckets=SECONDS, registry=mine)
        self._solves = Histogram("pipeplan_solve_seconds", "Time with the solver.", buckets=SECONDS, registry=mine)
        self._gaps = Histogram("pipeplan_gap", "(plan - bound) / plan.", buckets=GAPS, registry=mine)

    def started(self, job: Job) -> None:
        """A job was claimed."""
        if job.attempt == 1 and job.started_at is not None:
            self._waits.observe(max(0.0, job.started_at - job.created_at))

    def ended(self, outcome: Outcome, *, seconds: float) -> None:
        """A job came to its end, after so many seconds with its last worker."""
        self._ended.labels(outcome.state, outcome.stopped_by or "none").inc()
        self._solves.observe(seconds)
        if outcome.gap is not None:
            self._gaps.observe(outcome.gap)

    def given_back(self, *, is_crash: bool) -> None:
        """A job waits again: its solver died, or this process is told to stop."""
        (self._crashes if is_crash else self._given_back).inc()

    def lost(self) -> None:
        """A job was another's all of a sudden, or was deleted."""
        self._lost.inc()

    def render(self) -> bytes:
        """Every metric in the text format of Prometheus."""
        return generate_latest(self.registry)

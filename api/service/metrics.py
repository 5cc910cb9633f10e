"""What a process of the service counts, and what it measures when it is asked."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class Metrics:
    """What the service has done since it started."""

    def __init__(self) -> None:
        self._registry = mine = CollectorRegistry()
        labels = "method", "route", "status"
        self._requests = Counter("pipeplan_requests", "Requests answered.", labels, registry=mine)
        self._times = Histogram(
            "pipeplan_request_seconds", "Time to the end of the answer.", ("route",), buckets=_BOUNDS_S, registry=mine
        )
        self.cache_hits = Counter("pipeplan_cache_hits", "Questions that had been answered before.", registry=mine)
        self.jobs_submitted = Counter("pipeplan_jobs_submitted", "Jobs stored.", registry=mine)

    def observe(self, method: str, route: str, *, status: int, seconds: float) -> None:
        """A request was answered; `route` is the template, never the path."""
        self._requests.labels(method, route, status).inc()
        self._times.labels(route).observe(seconds)

    def render(self) -> bytes:
        """Every metric in the text format of Prometheus."""
        return generate_latest(self._registry)


Measured = tuple[str, str, dict[str, str], float]
"""A gauge's name, what it is, its labels and its value."""


def render_gauges(values: Iterable[Measured]) -> bytes:
    """What was measured just now, in the text format of Prometheus."""
    registry, gauges = CollectorRegistry(), dict[str, Gauge]()
    for name, meaning, labels, value in values:
        gauge = gauges.get(name) or gauges.setdefault(name, Gauge(name, meaning, tuple(labels), registry=registry))
        (gauge.labels(**labels) if labels else gauge).set(value)
    return generate_latest(registry)

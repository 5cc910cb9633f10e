"""Counters and a histogram in Prometheus' text form."""

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator

_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class Metrics:
    """What the service has done since it started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str, int], int] = defaultdict(int)
        self._times: dict[str, list[int]] = {}
        self._sums: dict[str, float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)

    def observe(self, method: str, route: str, *, status: int, seconds: float) -> None:
        """A request was answered; `route` is the template, never the path."""
        with self._lock:
            self._requests[method, route, status] += 1
            buckets = self._times.setdefault(route, [0] * (len(_BOUNDS_S) + 1))
            buckets[next((n for n, bound in enumerate(_BOUNDS_S) if seconds <= bound), len(_BOUNDS_S))] += 1
            self._sums[route] += seconds

    def count(self, name: str) -> None:
        """Something that has a name happened once more."""
        with self._lock:
            self._counts[name] += 1

    def render(self, gauges: Iterable[tuple[str, str, float]], *, more: Iterable[str] = ()) -> str:
        """Everything, `gauges` as (name, labels, value), and `more` lines."""
        with self._lock:
            lines = [*self._render_requests(), *self._render_times(), *self._render_counts()]
        named: dict[str, list[str]] = {}
        for name, labels, value in gauges:
            named.setdefault(name, [f"# TYPE {name} gauge"]).append(f"{name}{labels} {value:g}")
        return "\n".join([*lines, *(line for group in named.values() for line in group), *more]) + "\n"

    def _render_requests(self) -> Iterator[str]:
        yield "# TYPE pipeplan_requests_total counter"
        for (method, route, status), count in sorted(self._requests.items()):
            yield f'pipeplan_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}'

    def _render_times(self) -> Iterator[str]:
        yield "# TYPE pipeplan_request_seconds histogram"
        for route, buckets in sorted(self._times.items()):
            total = 0
            for bound, count in zip((*_BOUNDS_S, "+Inf"), buckets, strict=True):
                total += count
                yield f'pipeplan_request_seconds_bucket{{route="{route}",le="{bound}"}} {total}'
            yield f'pipeplan_request_seconds_sum{{route="{route}"}} {self._sums[route]:.6f}'
            yield f'pipeplan_request_seconds_count{{route="{route}"}} {total}'

    def _render_counts(self) -> Iterator[str]:
        for name, count in sorted(self._counts.items()):
            yield f"# TYPE pipeplan_{name}_total counter"
            yield f"pipeplan_{name}_total {count}"

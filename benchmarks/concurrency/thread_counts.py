"""How long an operation takes with 1, 2, 3 ... threads, from a few measurements.

It is run with 1, 1 + x, 1 + 2 x ... threads as long as it keeps getting faster; in between times are interpolated, and
beyond the last measurement there is no figure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from profiles.field_rules import require_integer


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadCurve:
    """Times of one operation by the number of threads."""

    samples: tuple[tuple[int, int], ...]
    """(threads, nanoseconds) as measured, threads ascending from 1."""

    def __post_init__(self) -> None:
        if not self.samples or self.samples[0][0] != 1:
            raise ValueError(f"thread curve: samples = {self.samples[:3]} must begin with one thread; measure it first")
        if any(b[0] <= a[0] for a, b in pairwise(self.samples)):
            raise ValueError("thread curve: the numbers of threads must ascend; sort the samples")

    def time_ns(self, threads: int) -> int | None:
        """As measured, or interpolated between the two neighbours; None beyond the last measurement."""
        for (low, before), (high, after) in pairwise(self.samples):
            if low <= threads <= high:
                return before + (after - before) * (threads - low) // (high - low)
        return self.samples[0][1] if threads == 1 else None

    def is_measured(self, threads: int) -> bool:
        """Whether this very number of threads was run."""
        return threads in dict(self.samples)

    @property
    def most_threads(self) -> int:
        """The largest number of threads that was run."""
        return self.samples[-1][0]

    @property
    def best_threads(self) -> int:
        """The fewest threads with the least time, interpolated ones included."""
        times = {threads: self.time_ns(threads) for threads in range(1, self.most_threads + 1)}
        return min(times, key=lambda threads: (times[threads] or 0, threads))


def sample_threads(measure_ns: Callable[[int], int], *, step: int, most: int) -> ThreadCurve:
    """Climb from one thread in steps of `step` until an operation gets no faster, or to `most` threads.

    `measure_ns` runs it with so many threads. The first slower measurement is kept: it closes the interval in which the
    best number lies.
    """
    require_integer("thread counts: step", step, least=1, most=4096)
    require_integer("thread counts: most", most, least=1, most=4096)
    samples = [(1, measure_ns(1))]
    for threads in range(1 + step, most + 1, step):
        samples.append((threads, measure_ns(threads)))
        if samples[-1][1] >= samples[-2][1]:
            break
    return ThreadCurve(samples=tuple(samples))


def mean_error(curve: ThreadCurve, truth: Callable[[int], int], *, most: int) -> float:
    """Mean of |interpolated - true| / true over 1 to `most` threads, where the curve has a figure."""
    errors = []
    for threads in range(1, most + 1):
        found = curve.time_ns(threads)
        if found is not None:
            errors.append(abs(found - truth(threads)) / truth(threads))
    return sum(errors) / len(errors)


def regret(curve: ThreadCurve, truth: Callable[[int], int], *, most: int) -> float:
    """How much slower the number of threads that the curve prefers is than the best one up to `most`."""
    best = min(truth(threads) for threads in range(1, most + 1))
    return truth(curve.best_threads) / best - 1

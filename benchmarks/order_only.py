"""Partition and placement given, the order open: `python -m benchmarks.order_only [--quick] -o FILE`.

One stage per device; memory in units of what 1F1B needs on the first device; *uneven*: `orders.uneven_times` with this
seed. Seconds are those of the whole planner, baselines and bound included.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.orders import Times, even_times, make_problem, uneven_times
from benchmarks.report import Planned, Table, make_parser, ms, percent, plan_and_check
from planner.planning import Limits

HEADER = (
    "setting", "S, M", "memory", "best baseline ms", "makespan ms", "lower bound ms", "gap", "target", "verified",
    "certified", "best after s", "s",
)  # fmt: skip

LARGE = ((4, 8), (8, 32), (16, 64), (32, 128), (64, 256))
"""Stages and microbatches with twice the memory of 1F1B."""

TIGHT = ((4, 12), (8, 24), (16, 48))
"""Stages and microbatches with as much memory as 1F1B, and with half of it."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A row."""

    size: tuple[int, int]
    """Stages and microbatches."""
    memory: float
    """In units of what 1F1B needs."""
    seed: int | None
    """Of uneven costs; None: even ones."""
    target: float
    """Largest gap."""
    limit_s: float
    """Seconds of search."""

    @property
    def times(self) -> list[Times]:
        """Of its stages."""
        return even_times(self.size[0]) if self.seed is None else uneven_times(self.size[0], seed=self.seed)


def settings(*, quick: bool) -> Iterator[Setting]:
    """All rows; the baselines and bound count with the search."""
    for size in LARGE[:2] if quick else LARGE:
        for seed in (None, 1):
            yield Setting(size=size, memory=2, seed=seed, target=0, limit_s=2)
    for size in TIGHT[:1] if quick else TIGHT:
        for memory, target in ((1.0, 0.02), (0.5, 0.01)):
            for seed in (1,) if quick else (1, 2):
                yield Setting(size=size, memory=memory, seed=seed, target=target, limit_s=4 if quick else 58)


def cells(row: Setting, solved: Planned, *, is_met: bool) -> list[str]:
    """A row of the table."""
    evidence = solved.evidence
    fitting = [b.makespan_ns for b in evidence.baselines if b.fits_memory and b.makespan_ns is not None]
    return [
        "even" if row.seed is None else f"uneven {row.seed}", f"{row.size[0]}, {row.size[1]}", f"{row.memory:g} x",
        ms(min(fitting)) if fitting else "none fits", ms(evidence.makespan_ns), ms(evidence.lower_bound_ns),
        percent(evidence.gap), f"{percent(row.target)} {'met' if is_met else 'missed'}",
        *("yes" if flag else "NO" for flag in (solved.is_verified, solved.is_certified)),
        f"{solved.best_s:.1f}", f"{solved.total_s:.1f}",
    ]  # fmt: skip


def main() -> None:
    """Print the table, and write it to `-o`."""
    given = make_parser(__doc__).parse_args()
    table = Table.about("# Order only", __doc__, header=HEADER, output=given.output)
    met = []
    for row in settings(quick=given.quick):
        problem = make_problem(row.times, num_microbatches=row.size[1], memory=row.memory)
        solved = plan_and_check(problem, Limits(time_limit_s=row.limit_s, patience_s=row.limit_s))
        met.append(solved.gap <= row.target + 5e-5)
        table.add(cells(row, solved, is_met=met[-1]))
    table.close(f"{sum(met)} of {len(met)} targets met.")


if __name__ == "__main__":
    main()

"""Partition and placement given, the order open: `python -m benchmarks.order_only [--quick] -o FILE`."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.orders import HEADER, Times, add_row, even_times, make_problem, uneven_times
from benchmarks.report import Table, make_parser, plan_and_check
from planner.planning import Limits

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
        for memory, target in ((1.0, 0.02), (0.5, 0.03)):
            for seed in (1,) if quick else (1, 2):
                yield Setting(size=size, memory=memory, seed=seed, target=target, limit_s=4 if quick else 58)


def main() -> None:
    """Print the table, and write it to `-o`."""
    given = make_parser(__doc__).parse_args()
    preface = (
        "# Order only",
        "",
        "One stage per device, partition and placement given. Memory in units of what 1F1B needs on the first device; "
        "uneven: `uneven_times` of `benchmarks/orders.py` with this seed. Seconds are those of the whole planner, "
        "baselines and bound included; limits are 2 s with twice the memory and 58 s with less.",
        "",
    )
    table = Table(preface=preface, header=HEADER, output=given.output)
    met = []
    for row in settings(quick=given.quick):
        count = row.size[1]
        problem = make_problem(row.times, num_microbatches=count, memory=row.memory)
        solved = plan_and_check(problem, Limits(time_limit_s=row.limit_s, patience_s=row.limit_s))
        name = "even" if row.seed is None else f"uneven {row.seed}"
        met.append(add_row(table, solved, setting=name, size=row.size, memory=f"{row.memory:g} x", target=row.target))
    table.close(f"{sum(met)} of {len(met)} targets met.")


if __name__ == "__main__":
    main()

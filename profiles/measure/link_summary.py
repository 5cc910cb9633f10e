"""What the link benchmark measured, by message size: latency, knee, plateau, and who shares a port."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from profiles.measure.links import SHARES, Contention, LinkTables, PairTable, worst_error

WITHIN, BETWEEN = "within a host", "between hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSummary:
    """All pairs of places of one kind together."""

    kind: str
    """`within a host` or `between hosts`."""
    num_pairs: int
    """Number of measured pairs."""
    by_size: tuple[tuple[int, int, int], ...]
    """Bytes, the median pair's nanoseconds, and its bytes per second, in rising order of bytes."""
    knee_bytes: int
    """The least size that reaches half of the plateau."""
    worst_error: float
    """Largest relative error of one latency and one bandwidth, which are what a cluster has, on any pair."""
    num_together: int
    """How many two transfers at once were measured, all within or all crossing."""
    slowdown: float | None
    """Their median time over that of one alone; None if there are none."""
    num_sharing: int
    """How many of them are slower together by so much that they share a link."""

    @property
    def latency_ns(self) -> int:
        """Time of the smallest message."""
        return self.by_size[0][1]

    @property
    def plateau_bytes_per_s(self) -> int:
        """The best rate of any size."""
        return max(rate for _, _, rate in self.by_size)


def summarise_links(tables: LinkTables) -> tuple[LinkSummary, ...]:
    """One summary per kind of pair that was measured."""
    found = []
    for kind in (WITHIN, BETWEEN):
        pairs = [pair for pair in tables.pairs if _kind(tables, (pair.a, pair.b)) == kind]
        if pairs:
            together = [
                one for one in tables.contention if {_kind(tables, one.first), _kind(tables, one.second)} == {kind}
            ]
            found.append(_summarise(kind, pairs, together=together))
    return tuple(found)


def _kind(tables: LinkTables, ends: Sequence[int]) -> str:
    return WITHIN if len({tables.places[end].host for end in ends}) == 1 else BETWEEN


def _summarise(kind: str, pairs: Sequence[PairTable], *, together: Sequence[Contention]) -> LinkSummary:
    sizes = sorted({size for pair in pairs for size, _ in pair.one_way})
    by_size = []
    for size in sizes:
        time = round(statistics.median(took for pair in pairs for at, took in pair.one_way if at == size))
        by_size.append((size, time, size * 10**9 // max(1, time)))
    plateau = max(rate for _, _, rate in by_size)
    slowdowns = [one.slowdown for one in together]
    return LinkSummary(
        kind=kind,
        num_pairs=len(pairs),
        by_size=tuple(by_size),
        knee_bytes=next(size for size, _, rate in by_size if 2 * rate >= plateau),
        worst_error=max(worst_error(pair.one_way) for pair in pairs),
        num_together=len(slowdowns),
        slowdown=statistics.median(slowdowns) if slowdowns else None,
        num_sharing=sum(slowdown >= SHARES for slowdown in slowdowns),
    )

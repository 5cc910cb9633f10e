"""What a round of the joint search may use: all that the options allow, or less of it.

Widths and recomputation multiply the candidates, most of which are worse than those without. Every scope has candidates
of its own, so that those of a wider one never crowd out those of a narrower one.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import product

from solver_models.instance import Instance
from solver_models.search import Candidate, Searcher

POOL_SIZE, PER_SHAPE = 12, 2
"""Candidates kept to start from, and how many of them may have the same numbers of replicas stage by stage."""


def narrowed(instance: Instance) -> list[Instance]:
    """The instance without widths or recomputation or both, where it is open, and last as it is: narrow ones first.

    Devices have the same numbers in all of them. A given mapping keeps its groups.
    """
    widths = (None, instance.wide) if instance.wide is not None and instance.given_groups is None else (instance.wide,)
    flags = (False, True) if instance.recompute else (False,)
    return [replace(instance, wide=wide, recompute=flag) for wide, flag in product(widths, flags)]


@dataclass(slots=True, kw_only=True, eq=False)
class Scope:
    """A search under some of the freedom that the options leave, and the candidates within it."""

    searcher: Searcher
    """The search, with rules that may be narrower than the options."""
    pool: list[Candidate] = field(default_factory=list)
    """Good candidates of different shapes, the best first."""
    polished: list[Candidate] = field(default_factory=list)
    """The best candidates with orders of their own."""
    round: int = 0
    """Rounds that were spent here."""

    def holds(self, candidate: Candidate) -> bool:
        """Whether the candidate uses only what is open here and keeps the rules."""
        num_holders = len(self.searcher.layers.capacity)
        return (
            all(holder < num_holders for group in candidate.groups for holder in group)
            and (self.searcher.instance.recompute or not candidate.recompute.any())
            and self.searcher.is_allowed(candidate)
        )

    @property
    def best(self) -> Candidate | None:
        """The best feasible candidate so far."""
        found = [c for c in (*self.pool[:1], *self.polished[:1]) if c.is_feasible]
        return min(found, key=lambda candidate: candidate.objective, default=None)

    def add(self, candidates: Iterable[Candidate]) -> None:
        """Offer candidates to the pool; those outside are dropped, the best of different shapes are kept."""
        best = {_signature(candidate): candidate for candidate in self.pool}
        for candidate in filter(self.holds, candidates):
            key = _signature(candidate)
            if key not in best or candidate.objective < best[key].objective:
                best[key] = candidate
        shapes: Counter[tuple[int, ...]] = Counter()
        kept = []
        for candidate in sorted(best.values(), key=lambda candidate: candidate.objective):
            shape = tuple(len(group) for group in candidate.groups)
            shapes[shape] += 1
            if shapes[shape] <= PER_SHAPE:
                kept.append(candidate)
        self.pool = kept[:POOL_SIZE]

    def keep(self, candidate: Candidate) -> None:
        """Offer a candidate that has orders of its own: the best three stay, at most one per partition and mapping."""
        if not candidate.is_feasible or not self.holds(candidate):
            return
        others = [c for c in self.polished if _signature(c) != _signature(candidate)]
        same = [c for c in self.polished if _signature(c) == _signature(candidate)]
        winner = min([*same, candidate], key=lambda c: c.objective)
        self.polished = sorted([*others, winner], key=lambda c: c.objective)[:3]


def _signature(candidate: Candidate) -> tuple[bytes, tuple[tuple[int, ...], ...], bytes]:
    return candidate.stage_of.tobytes(), candidate.groups, candidate.recompute.tobytes()

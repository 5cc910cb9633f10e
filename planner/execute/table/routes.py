"""Which ranks tell each other what where stages do not form plain chains, and in which order each lists its messages.

Stages may have different numbers of replicas: replica k of r works on the k-th of r equal parts of every microbatch, or
on as many samples as the plan says, so two replicas exchange the samples that they have in common. And a stage may talk
to any later one. Where a replica is a group of ranks, each of them makes the whole activation and the whole gradient,
and each needs the other's whole: every rank takes from itself, if it is in both groups, or from one member of the other
group, so that nothing is added twice.
"""

import itertools
import math
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from planner.actions import Action
from planner.execute.table.layout import Layout, StagePart
from planner.execute.table.wiring import StageEdge


class SampleRange(NamedTuple):
    """From `start` to `end` of `of` equal parts of a replica's samples."""

    start: int
    end: int
    of: int

    @property
    def is_whole(self) -> bool:
        """Whether the range covers the whole microbatch."""
        return self.end - self.start == self.of

    def rows(self, length: int) -> slice:
        """Where that is in a tensor of this many rows."""
        return slice(self.start * length // self.of, self.end * length // self.of)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleExchange:
    """The samples that a replica of one stage and a replica of a later one have in common."""

    producer: int
    """Number of the earlier stage."""
    consumer: int
    """Number of the later stage."""
    source: int
    """Rank of the earlier one's replica."""
    target: int
    """Rank of the later one's replica."""
    made: SampleRange
    """Which of the samples of the earlier one's replica."""
    used: SampleRange
    """Which of the samples of the later one's replica."""
    values: tuple[str, ...] = ()
    """What crosses, in the order in which the later stage takes it."""
    letters: str = "FB"
    """What travels: activations (F) from the earlier stage to the later one, their gradients (B) back, or both."""


def make_routes(layout: Layout, edges: Sequence[StageEdge]) -> tuple[SampleExchange, ...]:
    """All routes, those within one rank included, by stages and then by samples."""
    return tuple(route for edge in edges for route in _routes_of(layout, edge))


class _Holder(NamedTuple):
    """The ranks that work on the same samples of every microbatch, from `start` to `end` in parts of it."""

    ranks: tuple[int, ...]
    start: Fraction
    end: Fraction


def _routes_of(layout: Layout, edge: StageEdge) -> Iterator[SampleExchange]:
    ends = (edge.producer, edge.consumer)
    if layout.dealing:
        for ranks in zip(*map(layout.groups_of, ends), strict=True):
            maker, taker = (_Holder(each, Fraction(0), Fraction(1)) for each in ranks)
            yield from _between(edge, sources=[maker], targets=[taker], letters="FB")
        return
    forward = [_replicas(layout, stage) for stage in ends]
    if not any(map(layout.parts_of, ends)):
        yield from _between(edge, sources=forward[0], targets=forward[1], letters="FB")
        return
    yield from _between(edge, sources=forward[0], targets=forward[1], letters="F")
    sources, targets = (_sharing_input_grad(layout, stage) for stage in ends)
    yield from _between(edge, sources=sources, targets=targets, letters="B")


def _replicas(layout: Layout, stage: int) -> list[_Holder]:
    samples = layout.samples_of(stage)
    ends = [Fraction(end, sum(samples)) for end in itertools.accumulate(samples, initial=0)]
    return [_Holder(ranks, *ends[k : k + 2]) for k, ranks in enumerate(layout.groups_of(stage))]


def _sharing_input_grad(layout: Layout, stage: int) -> list[_Holder]:
    parts = layout.parts_of(stage)
    shares = [_Holder((part.rank,), part.start, part.end) for part in parts if part.has_share]
    return shares or _replicas(layout, stage)


def _between(
    edge: StageEdge, *, sources: Sequence[_Holder], targets: Sequence[_Holder], letters: str
) -> Iterator[SampleExchange]:
    unit = math.lcm(*(bound.denominator for holder in (*sources, *targets) for bound in holder[1:]))
    for makers in sources:
        for takers in targets:
            start, end = max(makers.start, takers.start), min(makers.end, takers.end)
            pairs = _pair(makers.ranks, takers.ranks).items() if start < end else ()
            for (source, target), carried in pairs:
                if wanted := "".join(letter for letter in carried if letter in letters):
                    yield SampleExchange(
                        producer=edge.producer,
                        consumer=edge.consumer,
                        source=source,
                        target=target,
                        made=_range(start, end, of=makers, unit=unit),
                        used=_range(start, end, of=takers, unit=unit),
                        values=edge.values,
                        letters=wanted,
                    )


def _range(start: Fraction, end: Fraction, *, of: _Holder, unit: int) -> SampleRange:
    return SampleRange(int((start - of.start) * unit), int((end - of.start) * unit), int((of.end - of.start) * unit))


def _pair(makers: Sequence[int], takers: Sequence[int]) -> dict[tuple[int, int], str]:
    """Which members of two groups talk to each other: every taker gets the activation once, every maker the gradient
    once.
    """
    found: dict[tuple[int, int], str] = {}
    for place, taker in enumerate(takers):
        found[_giver(taker, place * len(makers) // len(takers), others=makers), taker] = "F"
    for place, maker in enumerate(makers):
        pair = maker, _giver(maker, place * len(takers) // len(makers), others=takers)
        found[pair] = found.get(pair, "") + "B"
    return dict(sorted(found.items()))


def _giver(rank: int, place: int, *, others: Sequence[int]) -> int:
    """A rank that is in both groups takes from itself."""
    return rank if rank in others else others[place]


class Cell(NamedTuple):
    """What one rank does: a computation, a reduction, or its end of a message to or from `peer` on `rank`."""

    stage: int
    kind: str
    """F, I, W, B, REDUCE_GRAD, or SEND_ or RECV_ with what travels: activations (F) or gradients (B); within a stage
    whose I or W is elsewhere its weights (P), what F saved (S), what W needs (X) and finished gradients (G)."""
    microbatch: int = -1
    peer: int = -1
    """The stage at the other end of a message."""
    rank: int = -1
    """The rank at the other end of a message."""

    def __str__(self) -> str:
        number = "" if self.microbatch < 0 else str(self.microbatch)
        other = "" if self.peer < 0 else f"{'>' if self.kind.startswith('SEND') else '<'}{self.peer}@{self.rank}"
        return f"{self.stage}{self.kind}{number}{other}"


Row = list[Cell]
"""The cells of one rank in their order."""


def lower(
    layout: Layout, edges: Sequence[StageEdge], *, joint: Container[int] = (), alike: Container[int] = ()
) -> list[Row]:
    """The rows of all ranks with messages and reductions.

    The ranks run in step, an action each at a time. As an action ends, its messages are written down at once on both
    sides, so that both ranks of a pair list them in one order. Stages are reduced in the order in which their last
    replica ends, the same on all ranks: none waits in a circle. Raises ValueError if the actions themselves do.
    `joint`: stages whose replicas talk to each other in F, I and B, so that all have to come to each together; the
    ranks of a group always have to. `alike`: those that do so in W as well, and in another way in I than in B.
    """
    return _Lowering(layout, make_routes(layout, edges), joint=joint, alike=alike).run()


class _Lowering:
    def __init__(
        self, layout: Layout, routes: Sequence[SampleExchange], *, joint: Container[int], alike: Container[int]
    ) -> None:
        self.layout, self.routes, self.joint, self.alike = layout, routes, joint, alike
        self.rows: list[Row] = [[] for _ in layout.rows]
        self.waiting = [list(row) for row in layout.rows]
        self.done: set[tuple[int, Action]] = set()
        self.left = Counter(
            (rank, action.stage)
            for rank, row in enumerate(layout.rows)
            for action in row
            if action.kind in "WB" or layout.parts_of(action.stage)
        )
        self.ended: list[int] = []
        """Stages in the order in which their last replica ended."""

    def run(self) -> list[Row]:
        """Until nothing is left to do."""
        for stage in range(self.layout.num_stages):
            self._send_weights(stage)
        while any(self.waiting):
            ready = [rank for rank, row in enumerate(self.waiting) if row and self._is_ready(rank, row[0])]
            ready = [rank for rank in ready if self._has_company(rank, self.waiting[rank][0], ready=ready)]
            if not ready:
                stuck = ", ".join(f"rank {rank} in {row[0]}" for rank, row in enumerate(self.waiting) if row)
                raise ValueError(f"the ranks wait for each other: {stuck}")
            for rank in ready:
                self._take(rank, self.waiting[rank].pop(0))
        return [self._with_reductions(rank) for rank in range(len(self.rows))]

    def _with_reductions(self, rank: int) -> Row:
        """Each after the stage's last W or B, and after those of stages that end earlier."""
        row, after = self.rows[rank], -1
        places: dict[int, list[Cell]] = {}
        for stage in self.ended:
            if rank in self.layout.owners[stage]:
                work = [place for place, cell in enumerate(row) if cell.stage == stage and cell.kind in "WB"]
                after = max([after, *work])
                places.setdefault(after, []).append(Cell(stage, "REDUCE_GRAD"))
        return [cell for place, here in enumerate(row) for cell in (here, *places.get(place, ()))]

    def _has_company(self, rank: int, action: Action, *, ready: Container[int]) -> bool:
        """Whether the other ranks of a group, or the other replicas of a joint stage, can run the same now."""
        if action.stage in self.alike:
            company = self.layout.owners[action.stage]
            return all(owner in ready and self.waiting[owner][0] == action for owner in company)
        if action.kind == "W" or self.layout.parts_of(action.stage):
            return True
        company = self.layout.owners[action.stage]
        if action.stage not in self.joint:
            company = self.layout.team_of(action.stage, rank)
        same = [action, action._replace(kind="I"), action._replace(kind="B")] if action.kind != "F" else [action]
        return all(owner in ready and self.waiting[owner][0] in same for owner in company)

    def _is_ready(self, rank: int, action: Action) -> bool:
        return all(
            any((where, action._replace(stage=stage, kind=kind)) in self.done for kind in kinds)
            for where, stage, kinds in needs(self.layout, self.routes, rank=rank, action=action)
        )

    def _take(self, rank: int, action: Action) -> None:
        self.done.add((rank, action))
        self.rows[rank].append(Cell(action.stage, action.kind, action.microbatch))
        if action.kind in "FIB":
            for route in self.routes:
                self._tell(route, rank, action=action)
        parts = self.layout.parts_of(action.stage)
        for letter, target in _inner_messages(parts, rank, action=action):
            self._tell_part(letter, stage=action.stage, microbatch=action.microbatch, ends=(rank, target))
        if action.kind in "WB" or parts:
            self._count_down(rank, action.stage)

    def _count_down(self, rank: int, stage: int) -> None:
        """What follows the last action of a rank for a stage."""
        self.left[rank, stage] -= 1
        if parts := self.layout.parts_of(stage):
            if not self.left[rank, stage] and rank != parts[0].rank:
                self._tell_part("G", stage=stage, ends=(rank, parts[0].rank))
        elif not any(self.left[owner, stage] for owner in self.layout.owners[stage]):
            self.ended.append(stage)

    def _send_weights(self, stage: int) -> None:
        """Before anything else, to every other rank that runs some of a stage's I."""
        parts = self.layout.parts_of(stage)
        for part in parts[1:]:
            if part.has_share:
                self._tell_part("P", stage=stage, ends=(parts[0].rank, part.rank))

    def _tell_part(self, letter: str, *, stage: int, ends: tuple[int, int], microbatch: int = 0) -> None:
        source, target = ends
        self.rows[source].append(Cell(stage, f"SEND_{letter}", microbatch, stage, target))
        self.rows[target].append(Cell(stage, f"RECV_{letter}", microbatch, stage, source))

    def _tell(self, route: SampleExchange, rank: int, *, action: Action) -> None:
        """Both ends of the message that an action has, if it has one on this route."""
        ahead, back = (route.producer, route.source), (route.consumer, route.target)
        letter, mine, theirs = ("F", ahead, back) if action.kind == "F" else ("B", back, ahead)
        if letter in route.letters and mine == (action.stage, rank) and route.source != route.target:
            self.rows[rank].append(Cell(action.stage, f"SEND_{letter}", action.microbatch, *theirs))
            self.rows[theirs[1]].append(Cell(theirs[0], f"RECV_{letter}", action.microbatch, *mine))


def _inner_messages(parts: Sequence[StagePart], rank: int, *, action: Action) -> Iterator[tuple[str, int]]:
    """What an action of a stage whose I or W is elsewhere sends to other ranks of that stage, and to which."""
    if action.kind == "F":
        yield from (("S", part.rank) for part in parts if part.has_share and part.rank != rank)
    elif action.kind == "I":
        yield from (("X", part.rank) for part in parts if "W" in part.kinds and part.rank != rank)


def needs(
    layout: Layout, routes: Sequence[SampleExchange], *, rank: int, action: Action
) -> Iterator[tuple[int, int, tuple[Literal["F", "I", "W", "B"], ...]]]:
    """Rank, stage and kinds (one of which is enough) of what has to have run for the same microbatch."""
    parts = layout.parts_of(action.stage)
    if action.kind == "F":
        for route in routes:
            if "F" in route.letters and (route.consumer, route.target) == (action.stage, rank):
                yield route.source, route.producer, ("F",)
        return
    if action.kind == "W":
        for maker in [part.rank for part in parts if part.has_share] or [rank]:
            yield maker, action.stage, ("I",)
        return
    yield parts[0].rank if parts else rank, action.stage, ("F",)
    for route in routes:
        if "B" in route.letters and (route.producer, route.source) == (action.stage, rank):
            yield route.target, route.consumer, ("I", "B")


def make_inner_routes(layout: Layout) -> tuple[SampleExchange, ...]:
    """All pairs of ranks that work for one stage whose I or W is elsewhere; they send both ways."""
    whole = SampleRange(0, 1, 1)
    return tuple(
        SampleExchange(producer=stage, consumer=stage, source=a.rank, target=b.rank, made=whole, used=whole)
        for stage in range(layout.num_stages)
        for a, b in itertools.combinations(layout.parts_of(stage), 2)
    )

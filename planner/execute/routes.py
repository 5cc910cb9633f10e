"""Which ranks tell each other what where stages do not form plain chains, and in which order each lists its messages.

Stages may have different numbers of replicas: replica k of r works on the k-th of r equal parts of every microbatch, so
two replicas exchange the samples that they have in common. And a stage may talk to any later one. Where a replica is a
group of ranks, each of them makes the whole activation and the whole gradient, and each needs the other's whole: every
rank takes from itself, if it is in both groups, or from one member of the other group, so that nothing is added twice.
"""

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from planner.actions import Action
from planner.execute.layout import Layout
from planner.execute.wiring import StageEdge


class SampleRange(NamedTuple):
    """From `start` to `end` of `of` equal parts of a replica's samples."""

    start: int
    end: int
    of: int

    @property
    def is_whole(self) -> bool:
        """Whether it is all of them."""
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
    letters: str = "FB"
    """What travels: activations (F) from the earlier stage to the later one, their gradients (B) back, or both."""


def make_routes(layout: Layout, edges: Sequence[StageEdge]) -> tuple[SampleExchange, ...]:
    """All routes, those within one rank included, by stages and then by samples."""
    return tuple(route for edge in edges for route in _routes_of(layout, edge))


def _routes_of(layout: Layout, edge: StageEdge) -> Iterator[SampleExchange]:
    sources, targets = layout.groups_of(edge.producer), layout.groups_of(edge.consumer)
    parts = math.lcm(len(sources), len(targets))
    made, used = parts // len(sources), parts // len(targets)
    for i, makers in enumerate(sources):
        for j, takers in enumerate(targets):
            start, end = max(i * made, j * used), min((i + 1) * made, (j + 1) * used)
            for (source, target), letters in _pair(makers, takers).items() if start < end else ():
                yield SampleExchange(
                    producer=edge.producer,
                    consumer=edge.consumer,
                    source=source,
                    target=target,
                    made=SampleRange(start - i * made, end - i * made, made),
                    used=SampleRange(start - j * used, end - j * used, used),
                    letters=letters,
                )


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
    """F, I, W, B, REDUCE_GRAD, SEND_F, RECV_F, SEND_B or RECV_B."""
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


def lower(layout: Layout, edges: Sequence[StageEdge], *, joint: Container[int] = ()) -> list[Row]:
    """The rows of all ranks with messages and reductions.

    The ranks run in step, an action each at a time. As an action ends, its messages are written down at once on both
    sides, so that both ranks of a pair list them in one order. Stages are reduced in the order in which their last
    replica ends, the same on all ranks: none waits in a circle. Raises ValueError if the actions themselves do.
    `joint`: stages whose replicas talk to each other in F, I and B, so that all have to come to each together; the
    ranks of a group always have to.
    """
    return _Lowering(layout, make_routes(layout, edges), joint=joint).run()


class _Lowering:
    def __init__(self, layout: Layout, routes: Sequence[SampleExchange], *, joint: Container[int]) -> None:
        self.layout, self.routes, self.joint = layout, routes, joint
        self.rows: list[Row] = [[] for _ in layout.rows]
        self.waiting = [list(row) for row in layout.rows]
        self.done: set[tuple[int, Action]] = set()
        self.left = {
            (rank, stage): sum(action.stage == stage and action.kind in "WB" for action in row)
            for rank, row in enumerate(layout.rows)
            for stage in layout.stages_of(rank)
        }
        self.ended: list[int] = []
        """Stages in the order in which their last replica ended."""

    def run(self) -> list[Row]:
        """Until nothing is left to do."""
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
        if action.kind == "W":
            return True
        company = self.layout.owners[action.stage]
        if action.stage not in self.joint:
            company = self.layout.team_of(action.stage, rank)
        same = [action, action._replace(kind="I"), action._replace(kind="B")] if action.kind != "F" else [action]
        return all(owner in ready and self.waiting[owner][0] in same for owner in company)

    def _is_ready(self, rank: int, action: Action) -> bool:
        return all(
            any((where, action._replace(stage=stage, kind=kind)) in self.done for kind in kinds)
            for where, stage, kinds in needs(self.routes, rank, action=action)
        )

    def _take(self, rank: int, action: Action) -> None:
        self.done.add((rank, action))
        self.rows[rank].append(Cell(action.stage, action.kind, action.microbatch))
        if action.kind in "FIB":
            for route in self.routes:
                self._tell(route, rank, action=action)
        if action.kind in "WB":
            self.left[rank, action.stage] -= 1
            if not any(self.left[owner, action.stage] for owner in self.layout.owners[action.stage]):
                self.ended.append(action.stage)

    def _tell(self, route: SampleExchange, rank: int, *, action: Action) -> None:
        """Both ends of the message that an action has, if it has one on this route."""
        ahead, back = (route.producer, route.source), (route.consumer, route.target)
        letter, mine, theirs = ("F", ahead, back) if action.kind == "F" else ("B", back, ahead)
        if letter in route.letters and mine == (action.stage, rank) and route.source != route.target:
            self.rows[rank].append(Cell(action.stage, f"SEND_{letter}", action.microbatch, *theirs))
            self.rows[theirs[1]].append(Cell(theirs[0], f"RECV_{letter}", action.microbatch, *mine))


def needs(
    routes: Sequence[SampleExchange], rank: int, *, action: Action
) -> Iterator[tuple[int, int, tuple[Literal["F", "I", "W", "B"], ...]]]:
    """Rank, stage and kinds (one of which is enough) of what has to have run for the same microbatch."""
    if action.kind == "F":
        for route in routes:
            if "F" in route.letters and (route.consumer, route.target) == (action.stage, rank):
                yield route.source, route.producer, ("F",)
        return
    yield rank, action.stage, ("I",) if action.kind == "W" else ("F",)
    if action.kind != "W":
        for route in routes:
            if "B" in route.letters and (route.producer, route.source) == (action.stage, rank):
                yield route.target, route.consumer, ("I", "B")

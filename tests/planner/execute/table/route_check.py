"""A second reading of rows with messages between any two stages and any two of their replicas, to hold `lower` against.

It takes the figures of the layout and which stages talk to each other, and finds out by itself which replicas do: it
shares no code with what made the rows.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from planner.execute.table.layout import Layout, StagePart
from planner.execute.table.routes import Cell
from planner.execute.table.wiring import StageEdge

MAX_FAULTS = 20
"""No more than this many are listed."""

_Team = tuple[int, ...]
"""The ranks of one replica of a stage."""


class _Message(NamedTuple):
    """What a stage on one rank tells a stage on another of one microbatch."""

    sender: int
    source: int
    receiver: int
    target: int
    microbatch: int
    letter: str

    def __str__(self) -> str:
        what = _CONTENTS[self.letter]
        return (
            f"{what} of microbatch {self.microbatch} from stage {self.sender} on rank {self.source} "
            f"to stage {self.receiver} on rank {self.target}"
        )


_CONTENTS = {
    "F": "the activation",
    "B": "the gradient",
    "P": "the weights",
    "S": "what the forward saved",
    "X": "what the weight gradient needs",
    "G": "the finished gradient",
}
"""By the letter of a message."""


def check_routed_rows(rows: Sequence[Sequence[Cell]], layout: Layout, *, edges: Sequence[StageEdge]) -> tuple[str, ...]:
    """Every fault of the rows, a sentence each; none means that they run to their end and add up what they should.

    `edges`: everything that crosses stages. Each rank pair is one first-in-first-out channel for both directions.
    """
    return tuple(_RouteChecker(rows, layout, edges=edges).faults())[:MAX_FAULTS]


class _RouteChecker:
    """The rules, one method each, in the order in which they make sense."""

    def __init__(self, rows: Sequence[Sequence[Cell]], layout: Layout, *, edges: Sequence[StageEdge]) -> None:
        self.rows, self.owners, self.dealing = rows, layout.owners, layout.dealing
        self.num_microbatches = sum(map(len, layout.dealing)) if layout.dealing else layout.num_microbatches
        widths = layout.widths or [1] * len(self.owners)
        self.parts: Sequence[Sequence[StagePart]] = layout.parts or [()] * len(self.owners)
        """Per stage who works for it, if I or W is elsewhere, its owner first."""
        self.teams = [_cut(ranks, size=width) for ranks, width in zip(self.owners, widths, strict=True)]
        """Per stage and replica the ranks that run its actions together."""
        samples = layout.samples or [()] * len(self.owners)
        self.samples = [own or [1] * len(teams) for own, teams in zip(samples, self.teams, strict=True)]
        pairs = [(edge.producer, edge.consumer) for edge in edges]
        meetings = [(a, b, source, target) for a, b in pairs for source, target in self._find_meetings(a, b)]
        self.ahead = [(a, b, _teller(rank, to=two, of=one), rank) for a, b, one, two in meetings for rank in two]
        """Producer, consumer, and the ranks between which activations pass."""
        self.back = [
            (a, b, rank, _teller(rank, to=one, of=two))
            for a, b, one, two in meetings
            for rank in one
            if not (self.parts[a] or self.parts[b])
        ] + [pair for a, b in pairs if self.parts[a] or self.parts[b] for pair in self._with_common_shares(a, b)]
        """Producer, consumer, and the ranks between which gradients pass, from the latter to the former."""
        self.position = [{cell: place for place, cell in reversed(list(enumerate(row)))} for row in rows]

    def _find_meetings(self, a: int, b: int) -> Iterable[tuple[_Team, _Team]]:
        """The replicas of two stages that have samples in common."""
        if self.dealing:
            return zip(self.teams[a], self.teams[b], strict=False)
        taken = [
            [team for team, count in zip(self.teams[stage], self.samples[stage], strict=True) for _ in range(count)]
            for stage in (a, b)
        ]
        return _with_common_samples(*taken)

    def _assignment(self, stage: int, rank: int) -> Sequence[int]:
        """The microbatches that a rank's replica of a stage takes."""
        replica = next((k for k, team in enumerate(self.teams[stage]) if rank in team), 0)
        return self.dealing[replica] if self.dealing else range(self.num_microbatches)

    def faults(self) -> Iterator[str]:
        """Later rules say nothing while earlier ones are broken."""
        if found := [*self._is_assigned_once()]:
            yield from found
            return
        found = [*self._computations(), *self._messages()]
        yield from found
        yield from self._reductions()
        if found:
            return
        found = [*self._order(), *self._pairs()]
        yield from found
        yield from self._order_of_reductions()
        if not found:
            yield from self._deadlock()

    def _is_assigned_once(self) -> Iterator[str]:
        """Where whole microbatches are dealt, each is dealt once, and every replica of every stage has its own."""
        if not self.dealing:
            return
        for stage, teams in enumerate(self.teams):
            if len(teams) != len(self.dealing):
                yield f"stage {stage} has {len(teams)} replicas, and microbatches are dealt to {len(self.dealing)}"
        count = Counter(microbatch for assignment in self.dealing for microbatch in assignment)
        for microbatch in sorted({*count, *range(self.num_microbatches)}):
            if count[microbatch] != 1 or microbatch >= self.num_microbatches:
                yield f"microbatch {microbatch} is dealt {count[microbatch]} times"

    def _computations(self) -> Iterator[str]:
        """Every replica of a stage runs F, and I and W or B, once for every microbatch of its own, and no others."""
        for rank, row in enumerate(self.rows):
            count = Counter(cell for cell in row if cell.kind in "FIWB")
            kinds_of = self._kinds_of(rank)
            wanted = {(stage, microbatch) for stage in kinds_of for microbatch in self._assignment(stage, rank)}
            for cell, times in count.items():
                if times > 1:
                    yield f"rank {rank} runs {cell} {times} times"
                if (cell.stage, cell.microbatch) not in wanted:
                    yield f"rank {rank} runs {cell}, which is not its own"
            for stage, microbatch in sorted(wanted):
                kinds = "".join(kind for kind in "FIWB" if Cell(stage, kind, microbatch) in count)
                if kinds not in kinds_of[stage]:
                    allowed = " or ".join(" ".join(each) for each in kinds_of[stage])
                    yield (
                        f"rank {rank} runs {kinds or 'nothing'} of stage {stage} for microbatch {microbatch}, "
                        f"not {allowed}"
                    )

    def _kinds_of(self, rank: int) -> dict[int, tuple[str, ...]]:
        """Per stage that a rank works for, what it may run of every microbatch."""
        found: dict[int, tuple[str, ...]] = {}
        for stage, ranks in enumerate(self.owners):
            if rank in ranks:
                found[stage] = ("FIW", "FB")
            for part in self.parts[stage]:
                if part.rank == rank:
                    found[stage] = (part.kinds,)
        return found

    def _with_common_shares(self, a: int, b: int) -> Iterator[tuple[int, int, int, int]]:
        """Producer, consumer, and the ranks that run I of them for some sample that both have."""
        for one in self._shares(a):
            for two in self._shares(b):
                if max(one.start, two.start) < min(one.end, two.end):
                    yield a, b, one.rank, two.rank

    def _shares(self, stage: int) -> list[StagePart]:
        if self.parts[stage]:
            return [part for part in self.parts[stage] if part.start < part.end]
        own, found = self.samples[stage], list[StagePart]()
        for number, team in enumerate(self.teams[stage]):
            start, end = sum(own[:number]), sum(own[: number + 1])
            found.append(StagePart(team[0], "I", Fraction(start, sum(own)), Fraction(end, sum(own))))
        return found

    def _expected(self) -> Iterator[_Message]:
        for a, b, source, target in self.ahead:
            for microbatch in self._assignment(a, source) if source != target else ():
                yield _Message(a, source, b, target, microbatch, "F")
        for a, b, source, target in self.back:
            for microbatch in self._assignment(a, source) if source != target else ():
                yield _Message(b, target, a, source, microbatch, "B")
        for microbatch in range(self.num_microbatches):
            for stage in range(len(self.owners)):
                for letter, source, target in self._inner(stage):
                    if microbatch == 0 or letter in "SX":
                        yield _Message(stage, source, stage, target, microbatch, letter)

    def _inner(self, stage: int) -> Iterator[tuple[str, int, int]]:
        """Letter, sender and receiver of what the ranks of one stage tell each other."""
        for part in self.parts[stage]:
            owner = self.parts[stage][0].rank
            weight = next((other.rank for other in self.parts[stage] if "W" in other.kinds), part.rank)
            if part.rank != owner:
                yield "G", part.rank, owner
            if part.start < part.end:
                if part.rank != owner:
                    yield "P", owner, part.rank
                    yield "S", owner, part.rank
                if part.rank != weight:
                    yield "X", part.rank, weight

    def _messages(self) -> Iterator[str]:
        """Replicas with common samples on two ranks send and receive once, and no others do."""
        expected = {end for message in self._expected() for end in (_sending(message), _receiving(message))}
        count = Counter((rank, cell) for rank, row in enumerate(self.rows) for cell in row if cell.peer >= 0)
        for rank, cell in sorted(expected | set(count)):
            times = count[rank, cell]
            if (rank, cell) not in expected:
                yield f"rank {rank} has {cell}, which is not a message between replicas with common samples"
            elif times != 1:
                yield f"{cell} is missing on rank {rank}" if not times else f"rank {rank} has {cell} {times} times"

    def _reductions(self) -> Iterator[str]:
        """Every replica of a stage is reduced once, after its last W or B."""
        for stage, ranks in enumerate(self.owners):
            for rank in () if self.parts[stage] else ranks:
                places = [place for place, cell in enumerate(self.rows[rank]) if cell == Cell(stage, "REDUCE_GRAD")]
                work = [
                    place for place, cell in enumerate(self.rows[rank]) if cell.stage == stage and cell.kind in "WB"
                ]
                if len(places) != 1:
                    yield f"stage {stage} is reduced {len(places)} times on rank {rank}, not once"
                elif work and places[0] < work[-1]:
                    yield f"stage {stage} is reduced before {self.rows[rank][work[-1]]} on rank {rank}"

    def _order(self) -> Iterator[str]:
        """F before I and B, I before W; whatever is sent has been made, whatever is used has been received."""
        for rank, row in enumerate(self.rows):
            for cell in row:
                for first, second in self._sequence(rank, cell):
                    if self.position[rank][first] > self.position[rank][second]:
                        yield f"rank {rank} has {second} before {first}"

    def _sequence(self, rank: int, cell: Cell) -> Iterator[tuple[Cell, Cell]]:
        alone = Cell(cell.stage, "F", cell.microbatch)
        back = self._backward(rank, alone)
        if cell.kind in ("I", "B"):
            yield from [(alone, cell)] if alone in self.position[rank] else []
        elif cell.kind == "W":
            yield from [(back, cell)] if back in self.position[rank] else []
        elif cell.kind.endswith("_F"):
            yield (alone, cell) if cell.kind == "SEND_F" else (cell, alone)
        elif cell.kind.endswith("_B"):
            yield (back, cell) if cell.kind == "SEND_B" else (cell, back)
        elif cell.kind in ("SEND_S", "RECV_S"):
            yield (alone, cell) if cell.kind == "SEND_S" else (cell, back)
        elif cell.kind in ("SEND_X", "RECV_X"):
            yield (back, cell) if cell.kind == "SEND_X" else (cell, alone._replace(kind="W"))
        elif cell.kind in ("SEND_G", "RECV_P"):
            work = [each for each in self.rows[rank] if each.stage == cell.stage and each.kind in "FIWB"]
            yield from ((each, cell) if cell.kind == "SEND_G" else (cell, each) for each in work)

    def _backward(self, rank: int, forward: Cell) -> Cell:
        """Whichever of I and B the rank runs."""
        whole = forward._replace(kind="B")
        return whole if whole in self.position[rank] else forward._replace(kind="I")

    def _channels(self) -> dict[tuple[int, int], list[_Message]]:
        """Per rank, and its peer, the messages between them as this rank lists them."""
        channels = defaultdict(list)
        for rank, row in enumerate(self.rows):
            for cell in row:
                if cell.peer >= 0:
                    channels[rank, cell.rank].append(_message_of(rank, cell))
        return channels

    def _pairs(self) -> Iterator[str]:
        """Both ranks of a pair list their messages, of both directions, in the same order."""
        channels = self._channels()
        for (a, b), mine in sorted(channels.items()):
            for place, (one, other) in enumerate(zip(mine, channels[b, a], strict=True)):
                if a < b and one != other:
                    yield f"ranks {a} and {b} disagree on message {place} between them: {one}, or {other}"
                    break

    def _order_of_reductions(self) -> Iterator[str]:
        """Ranks that share several stages reduce them in an order in which nobody waits for the others."""
        rows = [
            [cell.stage for cell in row if cell.kind == "REDUCE_GRAD" and len(self.owners[cell.stage]) > 1]
            for row in self.rows
        ]
        while any(rows):
            heads = Counter(row[0] for row in rows if row)
            ready = [stage for stage, count in heads.items() if count == len(self.owners[stage])]
            if not ready:
                stuck = ", ".join(f"rank {rank} at stage {row[0]}" for rank, row in enumerate(rows) if row)
                yield (
                    f"the replicas would wait for each other to reduce their gradients: {stuck}; give the replicas of "
                    "a device's stages the same order of last weight gradients"
                )
                return
            rows = [row[1:] if row and row[0] in ready else row for row in rows]

    def _deadlock(self) -> Iterator[str]:
        """Every rank gets to its end: sends never block, a computation waits until what it needs has come through."""
        queues = {pair: list(messages) for pair, messages in self._channels().items() if pair[0] < pair[1]}
        at, posted, done = [0] * len(self.rows), Counter[_Message](), set[_Message | tuple[int, Cell]]()
        moves = True
        while moves:
            moves = False
            for rank, row in enumerate(self.rows):
                while at[rank] < len(row) and (team := self._ready_team(rank, at=at, done=done)):
                    moves = True
                    for member in team:
                        cell = self.rows[member][at[member]]
                        done.add((member, cell))
                        posted.update([_message_of(member, cell)] if cell.peer >= 0 else [])
                        at[member] += 1
            for queue in queues.values():
                while queue and posted[queue[0]] == 2:
                    done.add(queue.pop(0))
                    moves = True
        stuck = [f"rank {rank} in {row[at[rank]]}" for rank, row in enumerate(self.rows) if at[rank] < len(row)]
        if stuck:
            yield f"the ranks wait for each other: {', '.join(stuck)}"

    def _ready_team(self, rank: int, *, at: Sequence[int], done: set[_Message | tuple[int, Cell]]) -> Sequence[int]:
        """The ranks that can take their next cell together with this one; empty if it has to wait."""
        cell = self.rows[rank][at[rank]]
        team: Sequence[int] = [rank]
        if cell.kind in ("F", "I", "B") and not self.parts[cell.stage]:
            team = next(members for members in self.teams[cell.stage] if rank in members)
        for member in team:
            head = next(iter(self.rows[member][at[member] : at[member] + 1]), None)
            if head is None or not _is_same(head, cell) or not self._needs(member, head) <= done:
                return []
        return team

    def _needs(self, rank: int, cell: Cell) -> set[_Message | tuple[int, Cell]]:
        """Messages, and computations of other stages on the same rank."""
        found: set[_Message | tuple[int, Cell]] = set()
        for letter, source, target in self._inner(cell.stage) if cell.kind in ("I", "W") else ():
            if target == rank and letter in {"I": "PS", "W": "X"}[cell.kind]:
                microbatch = 0 if letter == "P" else cell.microbatch
                found.add(_Message(cell.stage, source, cell.stage, rank, microbatch, letter))
        for a, b, source, target in self.ahead if cell.kind == "F" else ():
            if (b, target) == (cell.stage, rank):
                local = rank, Cell(a, "F", cell.microbatch)
                found.add(local if source == rank else _Message(a, source, b, rank, cell.microbatch, "F"))
        for a, b, source, target in self.back if cell.kind in ("I", "B") else ():
            if (a, source) == (cell.stage, rank):
                local = rank, self._backward(rank, Cell(b, "F", cell.microbatch))
                found.add(local if target == rank else _Message(b, target, a, rank, cell.microbatch, "B"))
        return found


def _is_same(one: Cell, other: Cell) -> bool:
    """Two ranks may split a backward or not: what they tell each other in it is the same."""
    kinds = [cell._replace(kind="B") if cell.kind == "I" else cell for cell in (one, other)]
    return kinds[0] == kinds[1]


def _cut(ranks: Sequence[int], *, size: int) -> list[_Team]:
    return [tuple(ranks[start : start + size]) for start in range(0, len(ranks), size)]


def _teller(rank: int, *, to: _Team, of: _Team) -> int:
    """Who of a team tells a rank of another: itself, if it is in both; otherwise they are dealt out in order."""
    return rank if rank in of else of[to.index(rank) * len(of) // len(to)]


def _with_common_samples(sources: Sequence[_Team], targets: Sequence[_Team]) -> set[tuple[_Team, _Team]]:
    """Sample by sample, of as few as can be cut for both."""
    samples = math.lcm(len(sources), len(targets))
    return {
        (sources[number * len(sources) // samples], targets[number * len(targets) // samples])
        for number in range(samples)
    }


def _sending(message: _Message) -> tuple[int, Cell]:
    kind = f"SEND_{message.letter}"
    return message.source, Cell(message.sender, kind, message.microbatch, message.receiver, message.target)


def _receiving(message: _Message) -> tuple[int, Cell]:
    kind = f"RECV_{message.letter}"
    return message.target, Cell(message.receiver, kind, message.microbatch, message.sender, message.source)


def _message_of(rank: int, cell: Cell) -> _Message:
    letter = cell.kind[-1]
    if cell.kind.startswith("SEND"):
        return _Message(cell.stage, rank, cell.peer, cell.rank, cell.microbatch, letter)
    return _Message(cell.peer, cell.rank, cell.stage, rank, cell.microbatch, letter)

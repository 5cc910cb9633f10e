"""Checks rows with messages between any two stages and any two of their replicas, before anything runs.

It knows the ranks of every stage and which stages talk to each other, and finds out by itself which replicas do: it
shares no code with what made the rows. No torch here.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from planner.execute.routes import Cell
from planner.execute.table_check import MAX_FAULTS

Owners = Sequence[Sequence[int]]
"""Per stage the ranks that hold it, replica after replica."""

_Team = tuple[int, ...]
"""The ranks of one replica of a stage."""


class _Message(NamedTuple):
    """What a stage on one rank tells a stage on another of one microbatch."""

    sender: int
    source: int
    receiver: int
    target: int
    microbatch: int

    def __str__(self) -> str:
        what = "the activation" if self.receiver > self.sender else "the gradient"
        return (
            f"{what} of microbatch {self.microbatch} from stage {self.sender} on rank {self.source} "
            f"to stage {self.receiver} on rank {self.target}"
        )


def check_routed_rows(
    rows: Sequence[Sequence[Cell]],
    *,
    owners: Owners,
    edges: Sequence[tuple[int, int]],
    num_microbatches: int,
    widths: Sequence[int] = (),
) -> tuple[str, ...]:
    """Every fault of the rows, a sentence each; none means that they run to their end and add up what they should.

    `edges`: producer and consumer of everything that crosses stages; `widths`: per stage the ranks of each replica,
    empty: one. As in `table_check`, each rank pair is one first-in-first-out channel for both directions.
    """
    checker = _RouteChecker(
        rows, owners=owners, edges=edges, num_microbatches=num_microbatches, widths=widths or [1] * len(owners)
    )
    return tuple(checker.faults())[:MAX_FAULTS]


class _RouteChecker:
    """The rules, one method each, in the order in which they make sense."""

    def __init__(
        self,
        rows: Sequence[Sequence[Cell]],
        *,
        owners: Owners,
        edges: Sequence[tuple[int, int]],
        num_microbatches: int,
        widths: Sequence[int],
    ) -> None:
        self.rows, self.owners, self.num_microbatches = rows, owners, num_microbatches
        self.teams = [_cut(ranks, size=width) for ranks, width in zip(owners, widths, strict=True)]
        """Per stage and replica the ranks that run its actions together."""
        meetings = [
            (a, b, source, target)
            for a, b in edges
            for source, target in _with_common_samples(self.teams[a], self.teams[b])
        ]
        self.ahead = [(a, b, _teller(rank, to=two, of=one), rank) for a, b, one, two in meetings for rank in two]
        """Producer, consumer, and the ranks between which activations pass."""
        self.back = [(a, b, rank, _teller(rank, to=one, of=two)) for a, b, one, two in meetings for rank in one]
        """Producer, consumer, and the ranks between which gradients pass, from the latter to the former."""
        self.position = [{cell: place for place, cell in reversed(list(enumerate(row)))} for row in rows]

    def faults(self) -> Iterator[str]:
        """Later rules say nothing while earlier ones are broken."""
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

    def _computations(self) -> Iterator[str]:
        """Every replica of a stage runs F, and I and W or B, once for every microbatch, and no rank runs others."""
        for rank, row in enumerate(self.rows):
            count = Counter(cell for cell in row if cell.kind in "FIWB")
            held = {stage for stage, ranks in enumerate(self.owners) if rank in ranks}
            wanted = {(stage, microbatch) for stage in held for microbatch in range(self.num_microbatches)}
            for cell, times in count.items():
                if times > 1:
                    yield f"rank {rank} runs {cell} {times} times"
                if (cell.stage, cell.microbatch) not in wanted:
                    yield f"rank {rank} runs {cell}, which is not its own"
            for stage, microbatch in sorted(wanted):
                kinds = "".join(kind for kind in "FIWB" if Cell(stage, kind, microbatch) in count)
                if kinds not in ("FIW", "FB"):
                    yield (
                        f"rank {rank} runs {kinds or 'nothing'} of stage {stage} for microbatch {microbatch}, "
                        "not F I W or F B"
                    )

    def _expected(self) -> Iterator[_Message]:
        for microbatch in range(self.num_microbatches):
            for a, b, source, target in self.ahead:
                if source != target:
                    yield _Message(a, source, b, target, microbatch)
            for a, b, source, target in self.back:
                if source != target:
                    yield _Message(b, target, a, source, microbatch)

    def _messages(self) -> Iterator[str]:
        """Replicas with common samples on two ranks send and receive once, and no others do."""
        expected = {end for message in self._expected() for end in (_sending(message), _receiving(message))}
        count = Counter((rank, cell) for rank, row in enumerate(self.rows) for cell in row if cell.peer >= 0)
        for rank, cell in sorted(expected | set(count)):
            times = count[rank, cell]
            if (rank, cell) not in expected:
                yield f"rank {rank} has {cell}, which is no message between replicas with common samples"
            elif times != 1:
                yield f"{cell} is missing on rank {rank}" if not times else f"rank {rank} has {cell} {times} times"

    def _reductions(self) -> Iterator[str]:
        """Every replica of a stage is reduced once, after its last W or B."""
        for stage, ranks in enumerate(self.owners):
            for rank in ranks:
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
        if cell.kind in ("I", "B"):
            yield alone, cell
        elif cell.kind == "W":
            yield alone._replace(kind="I"), cell
        elif cell.kind.endswith("_F"):
            yield (alone, cell) if cell.kind == "SEND_F" else (cell, alone)
        elif cell.kind.endswith("_B"):
            back = self._backward(rank, alone)
            yield (back, cell) if cell.kind == "SEND_B" else (cell, back)

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
        if cell.kind in ("F", "I", "B"):
            team = next(members for members in self.teams[cell.stage] if rank in members)
        for member in team:
            head = next(iter(self.rows[member][at[member] : at[member] + 1]), None)
            if head is None or not _is_same(head, cell) or not self._needs(member, head) <= done:
                return []
        return team

    def _needs(self, rank: int, cell: Cell) -> set[_Message | tuple[int, Cell]]:
        """Messages, and computations of other stages on the same rank."""
        found: set[_Message | tuple[int, Cell]] = set()
        for a, b, source, target in self.ahead if cell.kind == "F" else ():
            if (b, target) == (cell.stage, rank):
                local = rank, Cell(a, "F", cell.microbatch)
                found.add(local if source == rank else _Message(a, source, b, rank, cell.microbatch))
        for a, b, source, target in self.back if cell.kind in ("I", "B") else ():
            if (a, source) == (cell.stage, rank):
                local = rank, self._backward(rank, Cell(b, "F", cell.microbatch))
                found.add(local if target == rank else _Message(b, target, a, rank, cell.microbatch))
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
    kind = "SEND_F" if message.receiver > message.sender else "SEND_B"
    return message.source, Cell(message.sender, kind, message.microbatch, message.receiver, message.target)


def _receiving(message: _Message) -> tuple[int, Cell]:
    kind = "RECV_F" if message.receiver > message.sender else "RECV_B"
    return message.target, Cell(message.receiver, kind, message.microbatch, message.sender, message.source)


def _message_of(rank: int, cell: Cell) -> _Message:
    if cell.kind.startswith("SEND"):
        return _Message(cell.stage, rank, cell.peer, cell.rank, cell.microbatch)
    return _Message(cell.peer, cell.rank, cell.stage, rank, cell.microbatch)

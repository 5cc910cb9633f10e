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
"""Per stage the ranks that hold it, one per replica."""


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
    rows: Sequence[Sequence[Cell]], *, owners: Owners, edges: Sequence[tuple[int, int]], num_microbatches: int
) -> tuple[str, ...]:
    """Every fault of the rows, a sentence each; none means that they run to their end and add up what they should.

    `edges`: producer and consumer of everything that crosses stages. As in `table_check`, each rank pair is one
    first-in-first-out channel for both directions.
    """
    return tuple(_RouteChecker(rows, owners=owners, edges=edges, num_microbatches=num_microbatches).faults())[
        :MAX_FAULTS
    ]


class _RouteChecker:
    """The rules, one method each, in the order in which they make sense."""

    def __init__(
        self,
        rows: Sequence[Sequence[Cell]],
        *,
        owners: Owners,
        edges: Sequence[tuple[int, int]],
        num_microbatches: int,
    ) -> None:
        self.rows, self.owners, self.num_microbatches = rows, owners, num_microbatches
        self.meetings = [
            (a, b, source, target) for a, b in edges for source, target in _with_common_samples(owners[a], owners[b])
        ]
        """Producer, consumer, and ranks of two replicas that have samples in common."""
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
        for a, b, source, target in self.meetings:
            if source != target:
                for microbatch in range(self.num_microbatches):
                    yield _Message(a, source, b, target, microbatch)
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
                while at[rank] < len(row) and self._needs(rank, row[at[rank]]) <= done:
                    cell, moves = row[at[rank]], True
                    done.add((rank, cell))
                    posted.update([_message_of(rank, cell)] if cell.peer >= 0 else [])
                    at[rank] += 1
            for queue in queues.values():
                while queue and posted[queue[0]] == 2:
                    done.add(queue.pop(0))
                    moves = True
        stuck = [f"rank {rank} in {row[at[rank]]}" for rank, row in enumerate(self.rows) if at[rank] < len(row)]
        if stuck:
            yield f"the ranks wait for each other: {', '.join(stuck)}"

    def _needs(self, rank: int, cell: Cell) -> set[_Message | tuple[int, Cell]]:
        """Messages, and computations of other stages on the same rank."""
        found: set[_Message | tuple[int, Cell]] = set()
        for a, b, source, target in self.meetings:
            if cell.kind == "F" and (b, target) == (cell.stage, rank):
                local = rank, Cell(a, "F", cell.microbatch)
                found.add(local if source == rank else _Message(a, source, b, rank, cell.microbatch))
            elif cell.kind in ("I", "B") and (a, source) == (cell.stage, rank):
                local = rank, self._backward(rank, Cell(b, "F", cell.microbatch))
                found.add(local if target == rank else _Message(b, target, a, rank, cell.microbatch))
        return found


def _with_common_samples(sources: Sequence[int], targets: Sequence[int]) -> set[tuple[int, int]]:
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

"""Checks a lowered table, the list of computations and messages of every rank, before anything runs.

A cell is a stage, what is done and, apart from REDUCE_GRAD, UNSHARD and RESHARD, a microbatch: `2F0`, `1SEND_F0`
(stage 1 sends an activation to stage 2), `2RECV_F0`, `2SEND_B0` (stage 2 sends a gradient to stage 1), `1RECV_B0`.
No torch here: what is checked is text.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_FAULTS = 20
"""No more than this many are listed."""

_CELL = re.compile(r"(0|[1-9][0-9]{0,8})(SEND_[FB]|RECV_[FB]|[FIWB])(0|[1-9][0-9]{0,8})")
_WHOLE = re.compile(r"(0|[1-9][0-9]{0,8})(REDUCE_GRAD|UNSHARD|RESHARD)")

Table = Sequence[Sequence[str]]
"""The cells of every rank in their order."""


class _TableCell(NamedTuple):
    """`kind` of `stage` for `microbatch` (-1 where there is none)."""

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{'' if self.microbatch < 0 else self.microbatch}"


class Message(NamedTuple):
    """What a stage tells its neighbour: an activation upwards or a gradient downwards."""

    sender: int
    receiver: int
    microbatch: int

    @property
    def letter(self) -> str:
        """F or B, as in the cells that send and receive it."""
        return "F" if self.receiver > self.sender else "B"


def parse_cell(text: str) -> _TableCell:
    """Read one cell; raises ValueError for anything else, trailing text included."""
    if match := _CELL.fullmatch(text):
        return _TableCell(int(match[1]), match[2], int(match[3]))
    if match := _WHOLE.fullmatch(text):
        return _TableCell(int(match[1]), match[2], -1)
    raise ValueError(
        f"{text[:40]!r} is not a cell of a lowered table; write e.g. 2F0, 1SEND_F0, 2RECV_F0 or 2REDUCE_GRAD"
    )


def check_lowered_table(table: Table, *, num_stages: int, num_microbatches: int) -> tuple[str, ...]:
    """Every fault of the table, a sentence each; none means that it runs to its end and adds up what it should.

    Each rank pair is taken as one first-in-first-out channel for both directions, and receives are posted where they
    stand: a table that passes needs nothing more of the transport.
    """
    try:
        rows = [[parse_cell(text) for text in row] for row in table]
    except ValueError as error:
        return (str(error),)
    checker = _TableChecker(rows, num_stages=num_stages, num_microbatches=num_microbatches)
    return tuple(checker.faults())[:MAX_FAULTS]


def check_compute_table(table: Table, *, num_stages: int, num_microbatches: int) -> tuple[str, ...]:
    """Every fault of a table that holds computations only; none means that it can be lowered for a chain of stages."""
    try:
        rows = [[parse_cell(text) for text in row] for row in table]
    except ValueError as error:
        return (str(error),)
    checker = _TableChecker(rows, num_stages=num_stages, num_microbatches=num_microbatches, is_lowered=False)
    return tuple(checker.compute_faults())[:MAX_FAULTS]


def check_replicas(tables: Sequence[Table]) -> tuple[str, ...]:
    """Every fault between the lowered tables of replicas: rank r of each reduces the same stages in the same order."""
    faults = []
    for rank, rows in enumerate(zip(*tables, strict=True)):
        orders = [[text for text in row if text.endswith("REDUCE_GRAD")] for row in rows]
        for replica, order in enumerate(orders):
            if order != orders[0]:
                faults.append(
                    f"rank {rank} reduces {' '.join(orders[0])} in replica 0, {' '.join(order)} in replica {replica}; "
                    "give all replicas of a device's stages the same order of last weight gradients"
                )
    return tuple(faults)[:MAX_FAULTS]


class _TableChecker:
    """The rules, one method each, in the order in which they make sense."""

    def __init__(
        self, rows: list[list[_TableCell]], *, num_stages: int, num_microbatches: int, is_lowered: bool = True
    ) -> None:
        self.rows, self.num_stages, self.num_microbatches = rows, num_stages, num_microbatches
        self.is_lowered = is_lowered
        self.owner: dict[int, int] = {}
        self.position: list[dict[_TableCell, int]] = []
        for rank, row in enumerate(rows):
            self.position.append({cell: place for place, cell in reversed(list(enumerate(row)))})
            for cell in row:
                self.owner.setdefault(cell.stage, rank)

    def faults(self) -> Iterator[str]:
        """The owners come first: without them the other rules say nothing."""
        found = list(self._owners())
        yield from found
        if found:
            return
        found = [*self._computations(), *self._order_of_computations(), *self._messages()]
        yield from found
        yield from self._reductions()
        if found:
            return
        yield from self._order_of_messages()
        yield from self._pairs()
        yield from self._deadlock()

    def compute_faults(self) -> Iterator[str]:
        """The rules that say something about a table without messages."""
        found = list(self._owners()) or [*self._computations(), *self._order_of_computations()]
        yield from found or self._deadlock()

    def _owners(self) -> Iterator[str]:
        """Every stage is on exactly one rank, and there are no others."""
        for number in range(self.num_stages):
            if number not in self.owner:
                yield f"stage {number} is on no rank"
        for rank, row in enumerate(self.rows):
            for number in sorted({cell.stage for cell in row}):
                if number >= self.num_stages:
                    yield f"rank {rank} runs stage {number}, but there are {self.num_stages} stages"
                elif self.owner[number] != rank:
                    yield f"stage {number} is on rank {self.owner[number]} and on rank {rank}"

    def _computations(self) -> Iterator[str]:
        """Every stage runs F, and I and W or B, once for every microbatch."""
        count = Counter(cell for row in self.rows for cell in row if cell.kind in "FIWB")
        for cell, times in count.items():
            if times > 1:
                yield f"{cell} occurs {times} times"
            if not 0 <= cell.microbatch < self.num_microbatches:
                yield f"{cell} is of microbatch {cell.microbatch}, but there are {self.num_microbatches}"
        for number in range(self.num_stages):
            for microbatch in range(self.num_microbatches):
                kinds = "".join(kind for kind in "FIWB" if _TableCell(number, kind, microbatch) in count)
                if kinds not in ("FIW", "FB"):
                    yield f"stage {number} runs {kinds or 'nothing'} for microbatch {microbatch}, not F I W or F B"

    def _order_of_computations(self) -> Iterator[str]:
        """F comes before I and B, and I before W."""
        for rank, row in enumerate(self.rows):
            for cell in row:
                before = {"I": "F", "B": "F", "W": "I"}.get(cell.kind)
                if before and not self._is_before(rank, first=cell._replace(kind=before), second=cell):
                    yield f"rank {rank} runs {cell} before {cell._replace(kind=before)}"

    def _is_before(self, rank: int, *, first: _TableCell, second: _TableCell) -> bool:
        places = self.position[rank]
        return first in places and second in places and places[first] < places[second]

    def _expected(self) -> Iterator[Message]:
        for number in range(self.num_stages - 1):
            if self.owner[number] != self.owner[number + 1]:
                for microbatch in range(self.num_microbatches):
                    yield Message(number, number + 1, microbatch)
                    yield Message(number + 1, number, microbatch)

    def _messages(self) -> Iterator[str]:
        """Between stages on two ranks there is one send and one receive per microbatch and direction, and no other."""
        expected = {end for message in self._expected() for end in (sending(message), receiving(message))}
        count = Counter(cell for row in self.rows for cell in row if cell.kind.startswith(("SEND", "RECV")))
        for cell in sorted(expected | set(count)):
            if cell not in expected:
                yield f"{cell} is not a message between neighbours on two ranks"
            elif count[cell] != 1:
                yield f"{cell} is missing" if count[cell] == 0 else f"{cell} occurs {count[cell]} times"

    def _reductions(self) -> Iterator[str]:
        """Every stage is reduced once, after its last W or B."""
        for rank, row in enumerate(self.rows):
            times = Counter(cell.stage for cell in row if cell.kind == "REDUCE_GRAD")
            last = {cell.stage: place for place, cell in enumerate(row) if cell.kind in "WB"}
            for number in sorted({cell.stage for cell in row}):
                reduction = _TableCell(number, "REDUCE_GRAD", -1)
                if times[number] != 1:
                    yield f"stage {number} is reduced {times[number]} times, not once"
                elif self.position[rank][reduction] < last.get(number, -1):
                    yield f"stage {number} is reduced before {row[last[number]]}"

    def _order_of_messages(self) -> Iterator[str]:
        """Whatever is sent has been made, and whatever is used has been received."""
        for message in self._expected():
            send, receive = sending(message), receiving(message)
            maker, user = self._maker(message), self._user(message)
            if not self._is_before(self.owner[message.sender], first=maker, second=send):
                yield f"{send} comes before {maker}, which makes what it sends"
            if not self._is_before(self.owner[message.receiver], first=receive, second=user):
                yield f"{receive} comes after {user}, which needs it"

    def _maker(self, message: Message) -> _TableCell:
        forward = message.letter == "F"
        return self._run(message.sender, message.microbatch, is_forward=forward)

    def _user(self, message: Message) -> _TableCell:
        forward = message.letter == "F"
        return self._run(message.receiver, message.microbatch, is_forward=forward)

    def _run(self, stage: int, microbatch: int, *, is_forward: bool) -> _TableCell:
        """F, or whichever of I and B the stage runs."""
        whole = _TableCell(stage, "B", microbatch)
        if is_forward:
            return whole._replace(kind="F")
        return whole if whole in self.position[self.owner[stage]] else whole._replace(kind="I")

    def _channels(self) -> dict[tuple[int, int], list[Message]]:
        """Per rank, and its peer, the messages between them as this rank lists them."""
        channels = defaultdict(list)
        for rank, row in enumerate(self.rows):
            for cell in row:
                if message := _message_of(cell):
                    other = message.receiver if cell.kind.startswith("SEND") else message.sender
                    channels[rank, self.owner[other]].append(message)
        return channels

    def _pairs(self) -> Iterator[str]:
        """Both ranks of a pair list their messages, of both directions, in the same order."""
        channels = self._channels()
        for (a, b), mine in channels.items():
            theirs = channels.get((b, a), [])
            for place, (one, other) in enumerate(zip(mine, theirs, strict=True)):
                if a < b and one != other:
                    yield (
                        f"ranks {a} and {b} disagree on message {place} between them: "
                        f"{_name(one)} on rank {a}, {_name(other)} on rank {b}"
                    )
                    break

    def _deadlock(self) -> Iterator[str]:
        """Every rank gets to its end: sends never block, a computation waits until what it needs has come through."""
        simulation = _MessageSimulation(self.rows, self._channels() if self.is_lowered else {})
        simulation.play({rank: self._needs(row) for rank, row in enumerate(self.rows)})
        stuck = [
            f"rank {rank} in {row[simulation.at[rank]]}"
            for rank, row in enumerate(self.rows)
            if simulation.at[rank] < len(row)
        ]
        if stuck:
            yield f"the ranks wait for each other: {', '.join(stuck)}"

    def _needs(self, row: list[_TableCell]) -> list[Message | _TableCell | None]:
        """What each cell of a row waits for: a message, a computation on the same rank, or nothing."""
        return [self._need(cell) for cell in row]

    def _need(self, cell: _TableCell) -> Message | _TableCell | None:
        number, kind, microbatch = cell
        if kind not in ("F", "I", "B"):
            return None
        source = number - 1 if kind == "F" else number + 1
        if not 0 <= source < self.num_stages:
            return None
        if self.is_lowered and self.owner[source] != self.owner[number]:
            return Message(source, number, microbatch)
        return self._run(source, microbatch, is_forward=kind == "F")


class _MessageSimulation:
    """Plays the rows against each other, a message at a time per rank pair."""

    def __init__(self, rows: list[list[_TableCell]], channels: dict[tuple[int, int], list[Message]]) -> None:
        self.rows = rows
        self.queues = {pair: list(messages) for pair, messages in channels.items() if pair[0] < pair[1]}
        self.at = [0] * len(rows)
        self.done: set[Message | _TableCell] = set()
        self.posted: Counter[Message] = Counter()

    def play(self, needs: dict[int, list[Message | _TableCell | None]]) -> None:
        """As far as it goes."""
        moves = True
        while moves:
            advanced = [self._advance(rank, needs[rank]) for rank in range(len(self.rows))]
            moves = any(advanced) or self._deliver()

    def _advance(self, rank: int, needs: list[Message | _TableCell | None]) -> bool:
        row, start = self.rows[rank], self.at[rank]
        while self.at[rank] < len(row):
            need, cell = needs[self.at[rank]], row[self.at[rank]]
            if need is not None and need not in self.done:
                break
            if message := _message_of(cell):
                self.posted[message] += 1
            self.done.add(cell)
            self.at[rank] += 1
        return self.at[rank] > start

    def _deliver(self) -> bool:
        delivered = False
        for queue in self.queues.values():
            while queue and self.posted[queue[0]] == 2:
                self.done.add(queue.pop(0))
                delivered = True
        return delivered


def sending(message: Message) -> _TableCell:
    """`SEND_F` or `SEND_B` of the message's sender."""
    return _TableCell(message.sender, f"SEND_{message.letter}", message.microbatch)


def receiving(message: Message) -> _TableCell:
    """`RECV_F` or `RECV_B` of the message's receiver."""
    return _TableCell(message.receiver, f"RECV_{message.letter}", message.microbatch)


def _message_of(cell: _TableCell) -> Message | None:
    """What a cell sends or receives."""
    step = 1 if cell.kind.endswith("_F") else -1
    if cell.kind.startswith("SEND"):
        return Message(cell.stage, cell.stage + step, cell.microbatch)
    if cell.kind.startswith("RECV"):
        return Message(cell.stage - step, cell.stage, cell.microbatch)
    return None


def _name(message: Message) -> str:
    what = "the activation" if message.letter == "F" else "the gradient"
    return f"{what} of microbatch {message.microbatch} from stage {message.sender} to {message.receiver}"

"""Actions of a pipeline in traces of torch's profiler that nobody marked: what autograd and the messages tell of them.

Every backward names the operators of the forward that it belongs to (sequence numbers), so that forwards, backwards
and microbatches are known; who sends what to whom after a forward tells the stages.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from profiles.importers.chakra_nodes import BACKWARD
from profiles.importers.rank_messages import MessageEnd

REMEDY = (
    'wrap every forward and backward in torch.profiler.record_function("PP:0F3") with stage, kind (F, B, I, W) and '
    "microbatch"
)
"""Remedy for traces whose actions cannot be recognised."""

_MESSAGES = {"c10d::send": ("S", "Dst Rank"), "c10d::recv_": ("R", "Src Rank")}
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_NONE = -1
_CODES = "FBSR"
_BACKWARDS = ([False], [False, True])
"""Of a forward: whole, or first through all of it and then once more for the weights."""


class Post(NamedTuple):
    """A message, as one end of it saw it."""

    number: int
    """Which one of its rank it is, in the order of their begins."""
    peer: int
    """The other end's rank, of the job or of a group; -1: not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAction:
    """A forward or a backward of a microbatch, whole or a half."""

    kind: str
    """F, B, or I and W."""
    microbatch: int
    """Counted from the iteration's first forward on."""
    start_ns: int
    """On the trace's clock."""
    end_ns: int
    """On the trace's clock."""
    got: tuple[Post, ...] = ()
    """Messages that came for it."""
    gave: tuple[Post, ...] = ()
    """Messages that were sent for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmarkedRank:
    """What one rank's trace tells without marks."""

    source: str
    iterations: tuple[tuple[FoundAction, ...], ...]
    """Actions in the order as run."""
    before: frozenset[int]
    """Ranks that its forwards got something from; -1: some rank."""
    behind: frozenset[int]
    """Ranks that its forwards gave something to; -1: some rank."""


@dataclass(slots=True, kw_only=True)
class _Span:
    """A forward or backward under way."""

    start: int
    end: int
    tid: int
    kind: str
    forward: int
    """Number of the forward, for a backward that of its forward."""
    is_again: bool = False
    """Whether it goes through a part of the forward for the second time: gradients of weights."""
    got: list[Post] = field(default_factory=list)
    gave: list[Post] = field(default_factory=list)


@dataclass(slots=True)
class EventColumns:
    """What is kept of events until all are read: whole numbers, 48 bytes for each operator that counts."""

    rows: "tuple[array[int], ...]" = field(default_factory=lambda: tuple(array("q") for _ in range(6)))
    """Start, end, thread, what it is (an index of FBSR), sequence number, and the other rank of a message."""
    steps: list[tuple[int, int]] = field(default_factory=list)
    """Begins and ends of the profiler's steps."""
    optimizer: list[tuple[int, int]] = field(default_factory=list)
    """Begins and ends of the optimizer's."""
    launches: "tuple[array[int], ...]" = field(default_factory=lambda: tuple(array("q") for _ in range(3)))
    """Thread, begin and correlation of what was started on a GPU."""
    on_gpu: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Begin and end there, by correlation."""

    def take(self, event: Mapping[str, Any]) -> None:
        """Keep what counts of an event; whatever has no times counts for nothing."""
        category, name, told = event.get("cat"), str(event.get("name", "")), event.get("args")
        told = told if isinstance(told, dict) else {}
        if event.get("ph") != "X" or category not in ("cpu_op", "user_annotation", *_LAUNCHES, *_ON_GPU):
            return
        try:
            start = round(float(event["ts"]) * 1000)
            end = start + round(float(event["dur"]) * 1000)
        except (KeyError, TypeError, ValueError, OverflowError):
            return
        if category == "cpu_op":
            self._take_operator(name, told, span=(start, end), thread=event.get("tid"))
        elif category == "user_annotation":
            if name.startswith("ProfilerStep#"):
                self.steps.append((start, end))
            elif name.startswith("Optimizer.step#"):
                self.optimizer.append((start, end))
        elif isinstance(number := told.get("correlation"), int):
            if category in _LAUNCHES:
                for column, value in zip(self.launches, (thread_number(event.get("tid")), start, number), strict=True):
                    column.append(value)
            elif "nccl" not in name:
                low, high = self.on_gpu.get(number, (start, end))
                self.on_gpu[number] = min(low, start), max(high, end)

    def _take_operator(self, name: str, told: Mapping[str, Any], *, span: tuple[int, int], thread: object) -> None:
        number, peer = told.get("Sequence number", _NONE), _NONE
        number = number if isinstance(number, int) and number >= 0 else _NONE
        if name in _MESSAGES:
            code, key = _MESSAGES[name]
            peer = _peer(told, key=key)
        elif name.startswith(BACKWARD):
            code = "B"
        elif number != _NONE and not told.get("Fwd thread id"):
            code = "F"
        else:
            return
        row = (*span, thread_number(thread), _CODES.index(code), number, peer)
        for column, value in zip(self.rows, row, strict=True):
            column.append(value)


def thread_number(name: object) -> int:
    """Of an event, whose thread may have a name."""
    return name if isinstance(name, int) else hash(str(name)) >> 1


def _peer(told: Mapping[str, Any], *, key: str) -> int:
    """The other end of a message, from NCCL's record or from what the operator was given."""
    if isinstance(told.get(key), int):
        return int(told[key])
    given = told.get("Concrete Inputs")
    if isinstance(given, list) and len(given) > 2 and str(given[2]).isdecimal():
        return int(given[2])
    return _NONE


def find_actions(columns: EventColumns, *, messages: Sequence[MessageEnd], source: Path) -> UnmarkedRank:
    """Forwards and backwards by iteration, and who is before and behind this rank.

    Raises ValueError with one message where they cannot be told: no backward, no steps, a backward in pieces.
    """
    rows = _Rows(columns)
    firsts = _first_numbers(rows)
    if not any(code == "B" for _, _, _, code, _, _ in rows) or not firsts:
        raise ValueError(f"{source}: has no sequence numbers that link backwards; {REMEDY}")
    spans, posted = _cut(rows, firsts=firsts)
    windows = sorted(columns.steps) or _between(sorted(columns.optimizer))
    if not windows:
        raise ValueError(f"{source}: shows no iteration; call the profiler's step() after every iteration, or {REMEDY}")
    waited = [(each.start_ns, "S", each.peer) if each.is_send else (each.end_ns, "R", each.peer) for each in messages]
    on_host = bool(messages) and not any(each.on_gpu for each in messages)
    before, behind = _ends(spans, waited if on_host else posted)
    starts = [span.start for span in spans]
    begun = [spans[bisect_left(starts, low) : bisect_left(starts, high)] for low, high in windows]
    if columns.on_gpu:
        _move_to_gpu(spans, columns, source=source)
    iterations = [_iteration(mine, source=source) for mine in begun]
    if len(counts := {sum(each.kind == "F" for each in row) for row in iterations if row}) > 1:
        raise ValueError(
            f"{source}: iterations with {min(counts)} to {max(counts)} forwards that have a backward; give whole "
            f"iterations, or {REMEDY}"
        )
    return UnmarkedRank(
        source=str(source),
        iterations=tuple(row for row in iterations if row),
        before=frozenset(before),
        behind=frozenset(behind),
    )


_Row = tuple[int, int, int, str, int, int]


class _Rows:
    """In the order of their begins, without what runs inside another of its thread; made when asked for."""

    def __init__(self, columns: EventColumns) -> None:
        self._columns, self._places = columns.rows, array("q")
        starts, ends, threads, *_ = columns.rows
        until: dict[int, int] = {}
        in_order = numpy.lexsort((numpy.negative(ends), numpy.asarray(starts)))  # as objects: 140 bytes each
        for place in array("q", in_order.tobytes()):
            if starts[place] >= until.get(threads[place], starts[place]):
                until[threads[place]] = ends[place]
                self._places.append(place)

    def __iter__(self) -> Iterator[_Row]:
        starts, ends, threads, codes, numbers, peers = self._columns
        for place in self._places:
            yield starts[place], ends[place], threads[place], _CODES[codes[place]], numbers[place], peers[place]


def _first_numbers(rows: Iterable[_Row]) -> list[int]:
    """The first sequence number of every run of forward operators that no message or backward interrupts."""
    firsts, is_open = [], False
    for _, _, _, code, number, _ in rows:
        if code == "F" and not is_open:
            firsts.append(number)
        is_open = code == "F"
    return firsts


def _cut(rows: Iterable[_Row], *, firsts: list[int]) -> tuple[list[_Span], list[tuple[int, str, int]]]:
    """Forwards as far as backwards need them, backwards by the forward that they belong to; and messages."""
    wanted: dict[int, list[int]] = defaultdict(list)
    for _, _, _, code, number, _ in rows:
        if code == "B" and number != _NONE:
            wanted[bisect_right(firsts, number) - 1].append(number)
    spans: list[_Span] = []
    messages: list[tuple[int, str, int]] = []
    run, is_open = _NONE, False
    gone: dict[int, set[int]] = defaultdict(set)
    operators: dict[int, tuple[array[int], ...]] = defaultdict(lambda: tuple(array("q") for _ in range(4)))
    for row in rows:
        start, end, tid, code, number, peer = row
        if code in "SR":
            messages.append((start, code, peer))
        if code == "F":
            run += not is_open
            for column, value in zip(operators[run], (start, end, tid, number), strict=True):
                column.append(value)
        is_open = code == "F"
        if code == "B":
            last = spans[-1] if spans else None
            place = last.forward if number == _NONE and last else bisect_right(firsts, number) - 1
            again = number != _NONE and number in gone[place]
            if (
                last is not None
                and (last.forward, last.is_again) == (place, again or last.is_again)
                and not _is_separate(messages, before=last.end, after=start)
            ):
                last.end = max(last.end, end)
            elif number != _NONE:
                spans.append(_Span(start=start, end=end, tid=tid, kind="B", forward=place, is_again=again))
            gone[place].add(number)
    for place, numbers in wanted.items():
        if place in operators:
            starts, ends, threads, told = operators[place]
            first = max(0, bisect_right(told, min(numbers)) - 1)
            last_one = max(0, bisect_right(told, max(numbers)) - 1)
            spans.append(_Span(start=starts[first], end=ends[last_one], tid=threads[first], kind="F", forward=place))
    return sorted(spans, key=lambda span: span.start), messages


def _is_separate(messages: list[tuple[int, str, int]], *, before: int, after: int) -> bool:
    """Whether a message began between two times, of which the later one is the present."""
    return bool(messages) and before <= messages[-1][0] <= after


def _between(optimizer: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What ends with every step of the optimizer."""
    if not optimizer:
        return []
    return [(-(2**62), optimizer[0][1]), *((a, b) for (_, a), (_, b) in pairwise(optimizer))]


def _move_to_gpu(spans: list[_Span], columns: EventColumns, *, source: Path) -> None:
    """Times of what was launched within each action, messages aside, in place of the host's."""
    threads: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for tid, start, number in zip(*columns.launches, strict=True):
        threads[tid].append((start, number))
    for row in threads.values():
        row.sort()
    for span in spans:
        row = threads[span.tid]
        inside = row[bisect_left(row, (span.start, _NONE)) : bisect_left(row, (span.end, _NONE))]
        found = [columns.on_gpu[number] for _, number in inside if number in columns.on_gpu]
        if not found:
            raise ValueError(
                f"{source}: a {'forward' if span.kind == 'F' else 'backward'} without a kernel of the GPU; profile "
                f"with ProfilerActivity.CUDA and whole iterations, or {REMEDY}"
            )
        span.start, span.end = min(low for low, _ in found), max(high for _, high in found)


def _ends(spans: list[_Span], messages: list[tuple[int, str, int]]) -> tuple[set[int], set[int]]:
    """Ranks before and behind: a message is sent for the action before it, and received for the one after it.

    Gradients of weights send and receive nothing.
    """
    spans = [span for span in spans if not span.is_again]
    starts = [span.start for span in spans]
    before, behind = set[int](), set[int]()
    for number, (start, code, peer) in enumerate(messages):
        place = bisect_right(starts, start) - (1 if code == "S" else 0)
        if 0 <= place < len(spans):
            is_forward = spans[place].kind == "F"
            (spans[place].gave if code == "S" else spans[place].got).append(Post(number, peer))
            (behind if is_forward == (code == "S") else before).add(peer)
    return before, behind


def _iteration(mine: list[_Span], *, source: Path) -> tuple[FoundAction, ...]:
    """The actions of an iteration; ValueError where a forward has neither one backward nor its two halves."""
    forwards = [span.forward for span in mine if span.kind == "F"]
    backwards: dict[int, list[bool]] = defaultdict(list)
    for span in mine:
        if span.kind == "B":
            backwards[span.forward].append(span.is_again)
    if sorted(forwards) != sorted(backwards) or any(each not in _BACKWARDS for each in backwards.values()):
        whole = [forward for forward in forwards if backwards.get(forward) in _BACKWARDS]
        raise ValueError(
            f"{source}: of {len(forwards)} forwards in an iteration {len(whole)} have one backward or its two halves "
            f"({sum(map(len, backwards.values()))} pieces), cut off or with messages inside a stage; {REMEDY}"
        )
    numbers = {forward: number for number, forward in enumerate(forwards)}
    return tuple(
        FoundAction(
            kind=span.kind if len(backwards[span.forward]) == 1 or span.kind == "F" else "IW"[span.is_again],
            microbatch=numbers[span.forward],
            start_ns=span.start,
            end_ns=span.end,
            got=tuple(span.got),
            gave=tuple(span.gave),
        )
        for span in mine
    )


def find_stages(ranks: Mapping[int, UnmarkedRank]) -> dict[int, int]:
    """The stage of every rank, from who is before and behind it.

    Peers are ranks of the job, or of the rank's own pipeline; where the traces have none, first, middle and last.
    Raises ValueError with one message where the ranks make no plain pipelines of one stage per device.
    """
    for rank, told in sorted(ranks.items()):
        if len(told.before) > 1 or len(told.behind) > 1:
            raise ValueError(
                f"{told.source}: rank {rank} gets inputs from ranks {sorted(told.before)} and sends outputs to "
                f"{sorted(told.behind)}, and without marks messages within a stage look like others; {REMEDY}"
            )
    before = {rank: min(told.before, default=None) for rank, told in ranks.items()}
    behind = {rank: min(told.behind, default=None) for rank, told in ranks.items()}
    peers = {each for each in (*before.values(), *behind.values()) if each is not None}
    source = next(iter(ranks.values())).source
    if not peers:
        raise ValueError(f"{source}: shows no message between stages; give the traces of all ranks, or {REMEDY}")
    if _NONE in peers:
        stages = _by_position(before, behind)
    else:
        stages = _along(before, behind) or _within_groups(before, behind)
    counts = [list(stages.values()).count(stage) for stage in range(max(stages.values(), default=0) + 1)]
    is_whole = all((behind[rank] is None) == (stage == len(counts) - 1) for rank, stage in stages.items())
    if len(stages) != len(ranks) or len(set(counts)) != 1 or len(counts) < 2 or not is_whole:
        raise ValueError(
            f"{source}: the messages of {len(ranks)} ranks do not form whole pipelines; give the traces of all ranks, "
            f"with record_shapes=True, or {REMEDY}"
        )
    return stages


_Peers = Mapping[int, int | None]


def _by_position(before: _Peers, behind: _Peers) -> dict[int, int]:
    """Without peers: the first, the last, and at most one between them."""
    has_middle = any(before[rank] is not None and behind[rank] is not None for rank in before)
    return {rank: 0 if before[rank] is None else 1 + (has_middle and behind[rank] is None) for rank in before}


def _along(before: _Peers, behind: _Peers) -> dict[int, int]:
    """Peers are ranks of the job: the way from a rank that has none before it; empty if they are not."""
    if any(each is not None and behind.get(each) != rank for rank, each in before.items()):
        return {}
    if any(each is not None and before.get(each) != rank for rank, each in behind.items()):
        return {}
    stages: dict[int, int] = {}
    for rank, each in before.items():
        here, stage = (rank if each is None else None), 0
        while here is not None:
            stages[here] = stage
            here, stage = behind[here], stage + 1
    return stages


def _within_groups(before: _Peers, behind: _Peers) -> dict[int, int]:
    """Peers are ranks of a pipeline's group, which are its stages; empty if they are not."""
    stages = {}
    for rank in before:
        low, high = before[rank], behind[rank]
        told = {*([] if low is None else [low + 1]), *([] if high is None else [high - 1])}
        if len(told) != 1 or (low is None and told != {0}):
            return {}
        stages[rank] = told.pop()
    return stages

"""Messages between stages in traces of torch's profiler: who sent how much to whom, and how long it took.

NCCL's kernels name their peer and size and last from when their end was ready until all had gone over, so that the
end that was ready later took as long as the transfer. Gloo's records last from the post until somebody waited for it.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

_NONE = -1

_ITEM_BYTES = {
    name: size
    for size, names in {
        8: "double long int64",
        4: "float int int32",
        2: "half bfloat16 short c10::half c10::bfloat16",
        1: "char byte bool signed_char unsigned_char float8_e4m3fn float8_e5m2",
    }.items()
    for name in names.split()
}
"""By the types' names in NCCL's records and in operators' inputs, in small letters."""

_KERNEL, _RECORD, _POST = range(3)
_POSTS = {"c10d::send": (True, 2), "c10d::recv_": (False, 2), "c10d::recv_any_source_": (False, None)}
_RECORDS = {"gloo:send": True, "gloo:recv": False}
_KERNELS = {"send": (True, "Dst Rank"), "recv": (False, "Src Rank")}


class MessageEnd(NamedTuple):
    """A send or a receive, as the rank that ran it recorded it."""

    start_ns: int
    """When it was posted, or its kernel began."""
    end_ns: int
    """When its kernel ended, or when it was there and waited for."""
    is_send: bool
    peer: int
    """The other end's rank; -1: not told."""
    num_bytes: int
    """-1: not told."""
    on_gpu: bool
    """Whether these are a kernel's times."""


class Transfer(NamedTuple):
    """One message of which both ends are known."""

    source: str
    target: str
    duration_ns: int
    num_bytes: int
    """-1: not told."""
    iteration: int
    """-1: iterations have not equally many of them."""
    number: int
    """Which one of its iteration it is, of this pair of ranks; -1: not told."""
    num_in_iteration: int
    """So many this pair of ranks has in an iteration, from source to target; 0: not told."""


@dataclass(slots=True)
class MessageColumns:
    """What is kept of messages until all events are read: whole numbers, 56 bytes for each."""

    rows: "tuple[array[int], ...]" = field(default_factory=lambda: tuple(array("q") for _ in range(7)))
    """Start, end, thread, what it is, whether it is a send, peer and bytes."""

    def take(self, event: Mapping[str, Any], *, thread: int) -> None:
        """Keep it if it is an end of a message and has times."""
        name, told = str(event.get("name", "")), event.get("args")
        if not isinstance(told, dict):
            return
        kind, peer, size = _NONE, _NONE, _NONE
        if name in _RECORDS:
            kind, is_send, size = _RECORD, _RECORDS[name], _tensor_bytes(told)
        elif name in _POSTS:
            kind, (is_send, place) = _POST, _POSTS[name]
            peer = _whole(_at(told.get("Concrete Inputs"), place))
        elif name.startswith("nccl") and event.get("cat") == "kernel" and told.get("Collective name") in _KERNELS:
            kind, (is_send, key) = _KERNEL, _KERNELS[told["Collective name"]]
            peer, item = _whole(told.get(key)), _ITEM_BYTES.get(str(told.get("dtype")).lower())
            count = _whole(told.get("In msg nelems" if is_send else "Out msg nelems"))
            size = _NONE if item is None or count == _NONE else count * item
        if kind == _NONE:
            return
        try:
            start = round(float(event["ts"]) * 1000)
            row = (start, start + round(float(event["dur"]) * 1000), thread, kind, int(is_send), peer, size)
            for column, value in zip(self.rows, row, strict=True):
                column.append(value)
        except (KeyError, TypeError, ValueError, OverflowError):
            return

    def finish(self) -> list[MessageEnd]:
        """In the order of their begins: NCCL's kernels where there are any, else gloo's records."""
        rows = sorted(zip(*self.rows, strict=True))
        posts: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for start, _, thread, kind, is_send, peer, _ in rows:
            if kind == _POST:
                posts[thread, is_send].append((start, peer))
        wanted = _KERNEL if any(row[3] == _KERNEL for row in rows) else _RECORD
        found = []
        for start, end, thread, kind, is_send, peer, size in rows:
            if kind == wanted:
                mine = posts[thread, is_send]
                if kind == _RECORD and (place := bisect_right(mine, (start, 2**62))):
                    peer = mine[place - 1][1]
                found.append(MessageEnd(start, end, bool(is_send), peer, size, kind == _KERNEL))
        return found


def _at(given: object, place: int | None) -> object:
    return given[place] if isinstance(given, list) and place is not None and len(given) > place else None


def _whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value >= 0 else _NONE
    return int(str(value)) if str(value).isdecimal() else _NONE


def _tensor_bytes(told: Mapping[str, Any]) -> int:
    """Of the tensors that a record was given."""
    dims, types = told.get("Input Dims"), told.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list) or len(dims) != len(types) or not dims:
        return _NONE
    try:
        return sum(prod(shape) * _ITEM_BYTES[str(name).lower()] for shape, name in zip(dims, types, strict=True))
    except (KeyError, TypeError):
        return _NONE


def begin_with_input(start: int, end: int, *, arrivals: Sequence[int]) -> int:
    """When an action of a host began to compute: after the last message that it waited for; `arrivals` are sorted."""
    place = bisect_left(arrivals, end)
    return max(start, arrivals[place - 1]) if place else start


def pair_messages(
    ranks: Mapping[int, tuple[str, Sequence[MessageEnd]]],
    *,
    offsets: Mapping[str, int],
    busy: Mapping[str, Sequence[tuple[int, int]]],
    num_iterations: int,
) -> Iterator[Transfer]:
    """Of every pair of ranks the n-th send with the n-th receive, without the first iteration's.

    `ranks`: device and messages by rank; `offsets`: what is added to a device's times; `busy`: spans of its actions,
    sorted. Of gloo's those count whose receiver computed nothing meanwhile: others end when somebody asked for them.
    Pairs whose ends differ in number are left out.
    """
    ends: dict[tuple[int, int], tuple[list[MessageEnd], list[MessageEnd]]] = defaultdict(lambda: ([], []))
    for rank, (_, messages) in ranks.items():
        others = [other for other in ranks if other != rank]
        for one in messages:
            peer = others[0] if one.peer == _NONE and len(others) == 1 else one.peer
            if peer in ranks and peer != rank:
                ends[(rank, peer) if one.is_send else (peer, rank)][not one.is_send].append(one)
    for (source, target), (sends, receives) in sorted(ends.items()):
        if len(sends) != len(receives):
            continue
        each = len(sends) // num_iterations if len(sends) % num_iterations == 0 else 0
        first = each if num_iterations > 1 else 0
        a, b = ranks[source][0], ranks[target][0]
        for place, (sent, got) in enumerate(zip(sends[first:], receives[first:], strict=True), start=first):
            where = divmod(place, each) if each else (_NONE, _NONE)
            size = max(sent.num_bytes, got.num_bytes)
            if sent.on_gpu and got.on_gpu:
                yield Transfer(a, b, min(sent.end_ns - sent.start_ns, got.end_ns - got.start_ns), size, *where, each)
                continue
            ready = max(sent.start_ns + offsets.get(a, 0), got.start_ns + offsets.get(b, 0))
            there = got.end_ns + offsets.get(b, 0)
            if there > ready and not _overlaps(busy.get(b, ()), low=ready, high=there):
                yield Transfer(a, b, there - ready, size, *where, each)


def _overlaps(spans: Sequence[tuple[int, int]], *, low: int, high: int) -> bool:
    place = bisect_right(spans, (high, _NONE))
    return any(end > low for _, end in spans[max(0, place - 2) : place])

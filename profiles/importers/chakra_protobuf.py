"""Chakra's execution traces in protobuf (`.et`, what `chakra_converter` writes), as the nodes of its linked JSON.

The converter states how long operators took, without what they called and in whole microseconds, but not when they
began. Begins are rebuilt: operators one after another by their numbers, which are those of their begins, and kernels on
their streams as they were launched. So durations and order are told, and neither gaps nor waiting.
The schema is MLCommons' (et_def.proto); the fields that are read here are declared anew.
"""

import ast
import gzip
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

_MAX_MESSAGE_BYTES = 2**26
"""Longest single node."""

_FIELDS = {
    "Inputs": {"values": (1, "STRING"), "shapes": (2, "STRING"), "types": (3, "STRING")},
    "Attribute": {
        "name": (1, "STRING"),
        "int32_val": (7, "INT32"),
        "int64_val": (9, "INT64"),
        "uint32_val": (11, "UINT32"),
        "uint64_val": (13, "UINT64"),
        "bool_val": (27, "BOOL"),
        "string_val": (29, "STRING"),
    },
    "Node": {
        "id": (1, "UINT64"),
        "name": (2, "STRING"),
        "ctrl_deps": (4, "UINT64"),
        "start_time_micros": (6, "UINT64"),
        "duration_micros": (7, "UINT64"),
        "inputs": (8, "Inputs"),
        "attr": (10, "Attribute"),
    },
}
"""By message: numbers and types of the fields that are read."""

_REPEATED = ("ctrl_deps", "attr")
_NONE = -1


@dataclass(slots=True)
class _Columns:
    """What is kept of nodes until all are read, 41 bytes for each; sorted by their numbers."""

    ids: "array[int]" = field(default_factory=lambda: array("q"))
    parents: "array[int]" = field(default_factory=lambda: array("q"))
    """Numbers of the operators that called them, or launched them."""
    streams: "array[int]" = field(default_factory=lambda: array("q"))
    """Of kernels; -1: operators."""
    starts: "array[int]" = field(default_factory=lambda: array("q"))
    ends: "array[int]" = field(default_factory=lambda: array("q"))
    """Microseconds; before they are rebuilt durations."""
    messages: "array[int]" = field(default_factory=lambda: array("b"))
    """Whether it is a message: what stands below it may have run after it."""

    def append(self, node: Any) -> None:
        told = _attributes(node)
        parent = node.ctrl_deps[0] if node.ctrl_deps else _NONE
        is_operator = told.get("is_cpu_op", True)
        is_record = node.name.startswith("gloo:")  # lasts until somebody waits for the message, beside all else
        row = (node.id, parent, _NONE if is_operator else told.get("stream", 0), node.start_time_micros)
        for column, value in zip((self.ids, self.parents, self.streams, self.starts), row, strict=True):
            column.append(value)
        self.messages.append(node.name.startswith(("c10d::", "gloo:")))
        self.ends.append(0 if is_record and not node.start_time_micros else node.duration_micros)

    def sort(self) -> None:
        order = sorted(range(len(self.ids)), key=self.ids.__getitem__)
        for name in ("ids", "parents", "streams", "starts", "ends", "messages"):
            column = getattr(self, name)
            setattr(self, name, array(column.typecode, (column[place] for place in order)))

    def place(self, number: int) -> int:
        """Of the node with that number; -1 if there is none."""
        place = bisect_left(self.ids, number)
        return place if place < len(self.ids) and self.ids[place] == number else _NONE

    def rebuild(self) -> None:
        """Begins and ends, of operators with all that they called."""
        clock, kernels = 0, []
        for place, stream in enumerate(self.streams):
            if stream != _NONE:
                kernels.append(place)
                continue
            self.starts[place], clock = clock, clock + self.ends[place]
            self.ends[place] = clock
        for place in reversed(range(len(self.ids))):
            above = self.place(self.parents[place])
            if self.streams[place] == _NONE and _NONE < above < place and not self.messages[above]:
                self.ends[above] = max(self.ends[above], self.ends[place])
        free: dict[int, int] = defaultdict(int)
        for place in sorted(kernels, key=lambda place: (self.parents[place], place)):
            above, stream = self.place(self.parents[place]), self.streams[place]
            self.starts[place] = max(free[stream], self.starts[above] if above != _NONE else 0)
            free[stream] = self.ends[place] = self.starts[place] + self.ends[place]


def read_protobuf(path: Path) -> tuple[bool, Iterator[dict[str, Any]]]:
    """Whether begins are rebuilt, and the nodes as the linked JSON has them.

    Raises ValueError with one message if the file is cut off or no such trace, or if protobuf is missing.
    """
    columns = _Columns()
    try:
        for node in _nodes(path):
            columns.append(node)
        columns.sort()
        has_times = any(columns.starts)
        if not has_times:
            columns.rebuild()
    except (OverflowError, TypeError):  # numbers beyond 63 bits, or a stream that is none
        raise ValueError(f"{path}: holds numbers that are not times or nodes; convert the trace again") from None
    return not has_times, _as_linked(path, columns, has_times=has_times)


def _as_linked(path: Path, columns: _Columns, *, has_times: bool) -> Iterator[dict[str, Any]]:
    for node in _nodes(path):
        place, told = columns.place(node.id), _attributes(node)
        start, end = columns.starts[place], columns.ends[place]
        linked = {
            "id": node.id,
            "name": node.name,
            "ctrl_deps": columns.parents[place],
            "inputs": {name: _listed(getattr(node.inputs, name)) for name in _FIELDS["Inputs"]},
            "attrs": [{"name": name, "value": value} for name, value in told.items()],
            "ts": start,
            "inclusive_dur": end if has_times else end - start,
        }
        is_kernel = columns.streams[place] != _NONE
        yield linked | ({"cat": "kernel", "stream": columns.streams[place]} if is_kernel else {})


def _listed(text: str) -> object:
    """The list that stands in a node as Python writes it; None where it is none."""
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        return ast.literal_eval(text)
    return None


def _attributes(node: Any) -> dict[str, Any]:
    found = {}
    for each in node.attr:
        told = each.ListFields()
        if len(told) == 2:
            found[each.name] = told[1][1]
    return found


def _nodes(path: Path) -> Iterator[Any]:
    """Node by node, behind the metadata."""
    node_class, broken = _message_classes()
    with path.open("rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        with gzip.open(raw) if is_packed else raw as file:
            is_first = True
            while (length := _read_length(file, path=path)) is not None:
                body = file.read(length)
                try:
                    if len(body) < length:
                        raise broken("its end is missing")
                    node = None if is_first else node_class.FromString(body)
                except broken as error:
                    raise ValueError(f"{path}: is cut off or broken ({error}); convert the trace again") from None
                if node is not None:
                    yield node
                is_first = False
            if is_first:
                raise ValueError(f"{path}: is empty; convert the trace again")


def _read_length(file: "IO[bytes] | gzip.GzipFile", *, path: Path) -> int | None:
    """How long the next message is; None at the end of the file."""
    length = 0
    for shift in range(0, 35, 7):
        byte = file.read(1)
        if not byte:
            if shift == 0:
                return None
            break
        length |= (byte[0] & 0x7F) << shift
        if not byte[0] & 0x80:
            if length > _MAX_MESSAGE_BYTES:
                break
            return length
    raise ValueError(f"{path}: is cut off or broken (no length of a message); convert the trace again")


@cache
def _message_classes() -> tuple[Any, type[Exception]]:
    """The class of nodes, and what it raises for what is none."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
    except ImportError:
        raise ValueError("reading .et requires protobuf; install pipeline-planner[traces]") from None
    package = "pipeplan.chakra"
    # proto2 tells a value of 0 or False from none, as the schema's `oneof` does
    file = descriptor_pb2.FileDescriptorProto(name="pipeplan_chakra.proto", package=package, syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _FIELDS.items():
        described = file.message_type.add(name=name)
        for each, (number, kind) in fields.items():
            is_message = kind in _FIELDS
            described.field.add(
                name=each,
                number=number,
                type=kinds.TYPE_MESSAGE if is_message else getattr(kinds, f"TYPE_{kind}"),
                type_name=f".{package}.{kind}" if is_message else None,
                label=kinds.LABEL_REPEATED if each in _REPEATED else kinds.LABEL_OPTIONAL,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    node = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Node"))
    return node, message.DecodeError

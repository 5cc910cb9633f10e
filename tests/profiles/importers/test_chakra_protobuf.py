"""Chakra's traces in protobuf: durations and order of the linked traces from which they were converted."""

import gzip
import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from profiles.importers.rank_steps import read_run_steps
from profiles.importers.trace_summary import make_traced_workload, summarise_traces
from tests.profiles.importers.test_chakra_nodes import link
from tests.profiles.importers.test_unmarked_actions import require_figures


def varint(value: int) -> bytes:
    head = bytes([value & 0x7F | (0x80 if value > 0x7F else 0)])
    return head if value <= 0x7F else head + varint(value >> 7)


def part(number: int, value: int | bytes) -> bytes:
    """A field of a message: of wire type 0 or 2."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def attribute(name: str, value: bool | int) -> bytes:
    number, plain = (27, int(value)) if isinstance(value, bool) else (9, value % 2**64)
    return part(10, part(1, name.encode()) + part(number, plain))


def converted(node: Mapping[str, Any], *, called_us: float, states_begin: bool) -> bytes:
    """A node as `chakra_converter` writes it: durations without what it called, cut to whole microseconds."""
    inputs = node.get("inputs", {})
    told = {each["name"]: each["value"] for each in node.get("attrs", ())} | {"is_cpu_op": "cat" not in node}
    duration = node.get("inclusive_dur", 0) - (0 if states_begin else called_us)
    body = part(1, node["id"]) + part(2, node["name"].encode()) + part(3, 4)
    body += part(4, varint(node["ctrl_deps"]))  # packed, as proto3 does
    body += part(6, int(node.get("ts", 0))) if states_begin else b""
    body += part(7, int(duration))
    body += part(
        8, b"".join(part(n, repr(inputs.get(name, [])).encode()) for n, name in ((1, "values"), (2, "shapes")))
    )
    told |= {"stream": node["stream"]} if "stream" in node else {}
    return body + b"".join(attribute(name, value) for name, value in told.items())


def convert(folder: Path, *, states_begin: bool = False, has_kernels: bool = False, packed: bool = False) -> Path:
    """The linked documents of a folder as files of messages, each behind its length."""
    (folder / "et").mkdir()
    for path in sorted(link(folder, has_kernels=has_kernels).glob("linked_*.json")):
        nodes = numbered_by_begin(json.loads(path.read_text())["nodes"])
        called = parents_of(nodes)
        messages = [
            part(1, b"0.0.4"),
            *(converted(node, called_us=called.get(node["id"], 0), states_begin=states_begin) for node in nodes),
        ]
        body = b"".join(varint(len(each)) + each for each in messages)
        name = f"{path.stem}.et" + (".gz" if packed else "")
        (folder / "et" / name).write_bytes(gzip.compress(body) if packed else body)
    return folder / "et"


def numbered_by_begin(nodes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """As torch's observer numbers operators; `link` keeps the order of the profiler's events."""
    ordered = sorted(nodes, key=lambda node: ("cat" in node, node.get("ts", 0), -node.get("inclusive_dur", 0)))
    numbers = {node["id"]: number for number, node in enumerate(ordered, start=1)}
    return [node | {"id": numbers[node["id"]], "ctrl_deps": numbers[node["ctrl_deps"]]} for node in ordered]


def parents_of(nodes: Iterable[dict[str, Any]]) -> dict[int, float]:
    """Give operators the ones that called them, which `link` leaves out; the answer is how long theirs took."""
    called: dict[int, float] = {}
    last: dict[str, Any] = {}
    for node in nodes:
        if "cat" in node or "ts" not in node:
            continue
        if (
            last
            and last["ts"] < node["ts"]
            and node["ts"] + node["inclusive_dur"] <= last["ts"] + last["inclusive_dur"]
        ):
            node["ctrl_deps"] = last["id"]
            called[last["id"]] = called.get(last["id"], 0) + node["inclusive_dur"]
        else:
            last = node
    return called


def test_what_chakras_own_tools_wrote():
    """Tests that a job's real files say the same in all three forms: linked traces the very figures of the profiler's,
    converted ones the same orders, and durations of operators without what passes between them.
    """
    folder = Path(__file__).parents[1] / "chakra"
    profiled, linked, converted = (
        summarise_traces(sorted(folder.glob(f"{name}_*"))) for name in ("kineto", "linked", "converted")
    )
    for name in ("cells", "transfers"):
        ours, theirs = getattr(linked, name), getattr(profiled, name)
        assert {key: each.kept for key, each in ours.items()} == {key: each.kept for key, each in theirs.items()}
    assert (linked.orders, linked.iterations_ns) == (profiled.orders, profiled.iterations_ns)
    assert converted.orders == profiled.orders
    assert converted.num_untimed == len(profiled.iterations_ns) == 2
    for cell, each in profiled.cells.items():
        assert 0.7 * each.mean_ns < converted.cells[cell].mean_ns < each.mean_ns


@pytest.mark.parametrize("packed", [False, True])
def test_durations_and_order_are_told(tmp_path: Path, packed: bool):
    """Tests that stages, microbatches, order and durations are those of the linked traces, and that no time is told."""
    summary = summarise_traces([convert(tmp_path, packed=packed)])
    assert summary.num_untimed == 2
    assert (summary.iterations_ns, dict(summary.transfers)) == ([], {})
    summary.iterations_ns = [1, 1]
    require_figures(summary)
    assert summary.form == "Chakra's traces (protobuf), actions not marked"
    assert [layer.costs[0].forward_ns for layer in make_traced_workload(summary).profile.layers] == [10_000] * 2


def test_begins_that_are_stated_are_taken(tmp_path: Path):
    """Tests that a producer that states begins is read like the linked traces, with times of iterations."""
    summary = summarise_traces([convert(tmp_path, states_begin=True)])
    require_figures(summary)
    assert summary.num_untimed == 0


def test_advice_wants_times(tmp_path: Path):
    """Tests that no replay is made of traces without times; the message says what to give."""
    with pytest.raises(ValueError, match=r"linked_0\.et: is a Chakra protobuf without start times .* linked"):
        read_run_steps([convert(tmp_path)])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "is empty"),
        (b"\x80", "no length of a message"),
        (b"\xff\xff\xff\xff\x7f", "no length of a message"),
        (b"\x00" + b"\x02\x0a", "its end is missing"),
        (b"\x00" + b"\x02\x0f\x01", "is cut off or broken"),
        (b"\x00\x0b\x08" + b"\xff" * 9 + b"\x01", "holds numbers that are not times or nodes"),
        (b"\x00", "is a host's execution trace without times|has no sequence numbers that link backwards"),
        (struct.pack("<2sH", b"\x1f\x8b", 8), "cannot be read"),
    ],
)
def test_what_is_broken_is_refused(tmp_path: Path, body: bytes, message: str):
    """Tests that what is empty, cut off or no such file is refused by name, with one message."""
    path = tmp_path / "rank0.et"
    path.write_bytes(body)
    with pytest.raises(ValueError, match=message) as caught:
        summarise_traces([path])
    assert str(path) in str(caught.value)

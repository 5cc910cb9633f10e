"""Chakra's linked traces: the same figures as the profiler's traces from which they were linked, or one message."""

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.importers.chakra_nodes import read_nodes
from profiles.importers.trace_summary import summarise_traces
from tests.profiles.importers.test_unmarked_actions import require_figures, trace


def linked(event: dict[str, Any], number: int, *, parent: int = 1) -> dict[str, Any]:
    """A node as `chakra_trace_link` writes it: kernels have a category, operators do not."""
    told = event["args"]
    attributes = {
        "seq_id": told.get("Sequence number", -1),
        "fw_tid": told.get("Fwd thread id", 0),
        "tid": event["tid"],
    }
    is_kernel = event["cat"] == "kernel"
    return {
        "id": number,
        "name": event["name"],
        "ctrl_deps": parent,
        "inputs": {"values": told.get("Concrete Inputs", []), "shapes": [], "types": []},
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": [{"name": name, "type": "int64", "value": value} for name, value in attributes.items()],
        "inclusive_dur": event["dur"],
        "exclusive_dur": event["dur"],
        "ts": event["ts"],
    } | ({"cat": "kernel", "ph": "X", "stream": 7} if is_kernel else {})


def link(folder: Path, *, has_kernels: bool = False, with_times: bool = True) -> Path:
    """The documents of `trace`, linked: launches go, each kernel hangs on the operator that launched it.

    Chakra's linker leaves out the profiler's steps; the optimizer's end iterations.
    """
    (folder / "kineto").mkdir()
    for path in sorted(trace(folder / "kineto", has_kernels=has_kernels).iterdir()):
        nodes: list[dict[str, Any]] = [{"id": 1, "name": "[pytorch|profiler|execution_trace|process]", "ctrl_deps": 1}]
        parents: dict[int, int] = {}
        for number, event in enumerate(json.loads(path.read_text())["traceEvents"], start=2):
            if event["name"].startswith("ProfilerStep"):
                event |= {"name": "Optimizer.step#SGD.step", "ts": event["ts"] + 990, "dur": 5}
            if event["cat"] == "cuda_runtime":
                parents[event["args"]["correlation"]] = number - 1
            else:
                parent = parents.get(event["args"].get("correlation"), 1)
                nodes.append(linked(event, number, parent=parent))
        if not with_times:
            nodes = [{key: value for key, value in node.items() if key != "ts"} for node in nodes]
        head = {"schema": "1.1.1-chakra.0.0.4", "pid": 7, "time": "2026", "start_ts": 0}
        (folder / f"linked_{path.stem}.json").write_text(json.dumps(head | {"nodes": nodes}, indent=4))
    return folder


@pytest.mark.parametrize("has_kernels", [False, True])
def test_linked_traces_are_read(tmp_path: Path, has_kernels: bool):
    """Tests that order, stages, microbatches and durations are those of the profiler's traces, kernels' times too."""
    summary = summarise_traces([link(tmp_path, has_kernels=has_kernels)])
    require_figures(summary, **({"forward": 9_000, "backward": 14_000} if has_kernels else {}))
    assert summary.form == "Chakra's linked traces, actions not marked"


def test_a_host_trace_alone_is_refused(tmp_path: Path):
    """Tests that an execution trace without times is refused with how to link it, and a file without a rank by name."""
    with pytest.raises(ValueError, match=r"linked_0\.json: is a host's execution trace without times; link it"):
        summarise_traces([link(tmp_path, with_times=False)])
    (tmp_path / "other").mkdir()
    link(tmp_path / "other")
    nameless = (tmp_path / "other" / "linked_0.json").rename(tmp_path / "first.json")
    with pytest.raises(ValueError, match=r"first\.json: is Chakra's, whose traces state no rank; name the file by it"):
        summarise_traces([nameless])


def test_a_linked_trace_that_is_cut_off_is_refused(tmp_path: Path):
    """Tests that half a document is none."""
    path = link(tmp_path) / "linked_1.json"
    path.write_text(path.read_text()[:-200])
    with pytest.raises(ValueError, match=r"linked_1\.json: is cut off or broken"):
        summarise_traces([tmp_path])


def test_a_linked_trace_is_known_by_how_its_name_ends(tmp_path: Path):
    """Tests that JSON named after the protobuf that was made of it is read as JSON."""
    folder = link(tmp_path)
    for path in sorted(folder.glob("linked_*.json")):
        path.rename(path.with_name(path.name.replace("linked_", "job.et.")))
    require_figures(summarise_traces([folder]))


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("Tensor(float)", "float"),
        ("Int", "Int"),
        ("Tensor(c10::List<int>(x))", "x)"),
        ("List[" + "Tensor(" * 50_000, ""),
    ],
    ids=["tensor", "number", "nested", "long"],
)
def test_types_of_inputs(kind: str, told: str):
    """Tests that the type within a tensor's is told, and that a long list of types takes one pass over it."""
    node = {"id": 2, "name": "aten::mul", "ts": 1, "inclusive_dur": 1, "inputs": {"types": [kind]}, "attrs": []}
    (event,) = read_nodes([node], path=Path("a.json"))
    assert event["args"]["Input type"] == [told or kind]

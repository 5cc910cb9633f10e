"""Tests of profiles/importers/profiler_events.py."""

import json
from pathlib import Path

import pytest

from profiles.importers import profiler_events
from profiles.importers.profiler_events import read_profiled_rank
from profiles.importers.trace_summary import make_traced_workload, summarise_traces
from tests.profiles.importers.test_trace_summary import FIRST, SECOND, kineto


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_traces_of_the_profiler_are_read(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that marked actions of two ranks are found however the file is cut into chunks, without the first run."""
    monkeypatch.setattr(profiler_events, "CHUNK_CHARACTERS", 37)
    files = [kineto(tmp_path / f"{r}{ending}", *row, rank=r) for r, row in enumerate((FIRST, SECOND))]
    summary = summarise_traces(files)
    assert {cell: each.mean_ns for cell, each in summary.cells.items()} == {
        ("rank0", 0, "F"): 12_000,
        ("rank0", 0, "B"): 20_000,
        ("rank1", 1, "F"): 10_000,
        ("rank1", 1, "B"): 20_000,
    }
    assert (summary.iterations_ns, summary.orders["rank1"]) == ([60_000], ("1F0", "1B0"))
    assert "no transfers" in make_traced_workload(summary).profile.provenance


def test_traces_of_several_processes_in_one_file_are_refused(tmp_path: Path):
    """Tests that a merged trace, or a plan's own timeline, is not taken for one rank that does everything."""
    trace = tmp_path / "merged.json"
    event = {"ph": "X", "cat": "forward", "ts": 0.0, "dur": 4.0, "tid": 1}
    events = [{**event, "name": f"{number}F0", "pid": number} for number in (1, 2)]
    trace.write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(ValueError, match="has actions of processes 1 and 2; give a file per rank"):
        read_profiled_rank(trace)
    planned = {"otherData": {"makespan_ns": 4000}, "traceEvents": events[:1]}
    trace.write_text(json.dumps(planned))
    with pytest.raises(ValueError, match="is a plan's timeline, which was not measured; give traces of its run"):
        read_profiled_rank(trace)


def test_an_event_that_is_nested_too_deeply_is_refused(tmp_path: Path):
    """Tests that brackets without end are no fault of ours."""
    trace = tmp_path / "deep.json"
    trace.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply; export"):
        read_profiled_rank(trace)


@pytest.mark.parametrize("length", [float("inf"), float("nan"), -1.0, 1e300])
def test_an_action_of_no_possible_length_is_refused(tmp_path: Path, length: float):
    """Tests that a length that no clock measures is refused by name."""
    trace = tmp_path / "long.json"
    trace.write_text(json.dumps([{"ph": "X", "name": "PP:0F0", "ts": 0.0, "dur": length}]))
    with pytest.raises(ValueError, match=r"long.json: action PP:0F0 takes .* us from 0.0; export the trace again"):
        read_profiled_rank(trace)


def test_an_action_on_several_streams_is_one(tmp_path: Path):
    """Tests that the profiler's event for every stream of an action does not make iterations; the computing one counts.

    Collectives run on streams of their own (FSDP), and an action may compute on a stream that others have not.
    """
    trace = tmp_path / "streams.json"
    events = []
    for begin in (0, 1000):
        for name, start, stream in (("PP:0F0", begin, 7), ("PP:0B0", begin + 200, 9)):
            for tid, kernel, shift, length in ((stream, "gemm", 0, 100), (20, "ncclDevKernel_AllGather", -50, 140)):
                told = {"ph": "X", "pid": 0, "tid": tid, "ts": start + shift, "dur": length}
                events += [{**told, "cat": "gpu_user_annotation", "name": name}]
                events += [{**told, "cat": "kernel", "name": kernel}]
    for order in (events, events[::-1]):
        trace.write_text(json.dumps(order))
        rows = read_profiled_rank(trace).rows
        assert [[entry[:3] for entry in row] for row in rows] == [
            [(begin * 1000, (begin + 100) * 1000, "F"), ((begin + 200) * 1000, (begin + 300) * 1000, "B")]
            for begin in (0, 1000)
        ]


@pytest.mark.parametrize(
    ("category", "told"),
    [
        ("kernel", "t.json: shows a GPU's kernels, but marks actions of the host"),
        ("cpu_op", "t.json: is of GPUs .NCCL., but has no kernel; profile with ProfilerActivity.CUDA"),
    ],
)
def test_what_the_host_launches_is_not_what_the_gpu_runs(tmp_path: Path, category: str, told: str):
    """Tests that marks of the host are not taken for times of a GPU, whether its kernels are shown or not."""
    events = [{"ph": "X", "cat": "user_annotation", "name": "PP:0F0", "ts": 0.0, "dur": 1.0}]
    events += [{"ph": "X", "cat": category, "name": "gemm", "tid": 7, "ts": 2.0, "dur": 90.0}]
    trace = tmp_path / "t.json"
    trace.write_text(json.dumps({"distributedInfo": {"backend": "nccl", "rank": 0}, "traceEvents": events}))
    with pytest.raises(ValueError, match=told):
        read_profiled_rank(trace)
    trace.write_text(json.dumps({"distributedInfo": {"backend": "gloo", "rank": 0}, "traceEvents": events[:1]}))
    assert read_profiled_rank(trace).rows == [[(0, 1000, "F", 0, 0)]]

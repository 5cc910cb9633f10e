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

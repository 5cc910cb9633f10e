"""Traces of a job as people and programs read them: tests of api/reporting/traces.py."""

from pathlib import Path

from api.reporting.traces import describe_trace
from profiles.importers.trace_summary import summarise_traces
from tests.profiles.importers.test_chakra_protobuf import convert


def test_kernels_follow_on_their_streams(tmp_path: Path):
    """Tests that on a GPU an action takes what its kernels take, and the first screen says that times are not told."""
    summary = summarise_traces([convert(tmp_path, has_kernels=True)])
    assert {cell: each.mean_ns for cell, each in summary.cells.items()} == {
        ("rank0", 0, "F"): 9_000,
        ("rank0", 0, "B"): 14_000,
        ("rank1", 1, "F"): 9_000,
        ("rank1", 1, "B"): 14_000,
    }
    assert "2 iterations; the trace states durations and order, but no times" in describe_trace(summary)[1]

"""Tests of planner/execute/torch_versions/kept_outputs.py."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
from planner.execute.torch_versions.kept_outputs import (
    kept_microbatches,
    kept_outputs,
    replace_outputs,
)


@dataclass
class State:
    """What torch 2.15 keeps of a microbatch."""

    live_outputs: list[object]
    output_grad_edges: tuple[object, ...]
    input_values: str


def test_outputs_are_found_where_each_version_keeps_them():
    """Tests that outputs are read and let go of in both places, and that what else is kept stays."""
    old = SimpleNamespace(fwd_cache={3: (("y",), "inputs")})
    new = SimpleNamespace(_forward_chunk_states={3: State(["y"], ("edge",), "inputs")})
    for stage in (old, new):
        assert kept_microbatches(stage) == (3,)
        assert kept_outputs(stage, 3) == ("y",)
        replace_outputs(stage, 3, roots=["root"])
        assert kept_outputs(stage, 3) == ("root",)
    assert old.fwd_cache[3][1] == "inputs"
    assert new._forward_chunk_states[3] == State(["root"], (None,), "inputs")

"""What torch's stages want to know of tensors: tests of planner/execute/torch_versions/stage_metadata.py."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from planner.execute.torch_versions.stage_metadata import settle_metadata  # noqa: E402


def test_both_versions_are_settled():
    """Tests that a stage with metadata of the user's takes these over, and that one of 2.11 looks into no buffers."""
    newer = SimpleNamespace(
        _user_meta=SimpleNamespace(inputs=("i",), outputs=("o",)),
        _stage_meta=SimpleNamespace(inputs=None, outputs=None),
    )
    settle_metadata(newer, 3)
    assert (newer.chunks, newer._stage_meta.inputs, newer._stage_meta.outputs) == (3, ("i",), ("o",))
    older = SimpleNamespace()
    settle_metadata(older, 2)
    assert older.chunks == 2
    assert older._validate_fwd_input("anything", 1) is None
    assert older._validate_fwd_outputs() is None

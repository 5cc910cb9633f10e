"""Which torch the executor takes, and how it finds its way in each."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from planner.execute.torch_versions.collectives import all_gather_single
from planner.execute.torch_versions.kept_outputs import (
    kept_microbatches,
    kept_outputs,
    replace_outputs,
)
from planner.execute.torch_versions.supported import require_supported, sends_itself


@pytest.mark.parametrize("version", ["2.11.0", "2.12.1+cu130", "2.13.0+cpu", "2.14.1", "2.15.0"])
def test_tested_versions_are_taken(version: str):
    """Tests that what the table of versions lists is taken, and that torch sends by itself in 2.13 and 2.14 alone."""
    require_supported(version)
    assert sends_itself(version) == version.startswith(("2.13", "2.14"))


@pytest.mark.parametrize("version", ["2.10.0", "2.9.1", "2.16.0", "3.0.0", "unknown"])
def test_other_versions_are_refused_with_the_range(version: str):
    """Tests that an older or newer torch is named, with what is tested instead of it."""
    with pytest.raises(ValueError, match=rf"torch {version} is installed, but the executor is tested on 2.11 to 2.15"):
        require_supported(version)


@dataclass
class State:
    """What torch 2.15 keeps of a microbatch."""

    live_outputs: list[object]
    output_grad_edges: tuple[object, ...]
    input_values: str


@pytest.mark.parametrize("name", ["all_gather_single", "all_gather_into_tensor"])
def test_all_gather_has_the_name_of_the_version(monkeypatch: pytest.MonkeyPatch, name: str):
    """Tests that the newer name is used where it is known, and the older one where it is not."""
    import torch

    calls = list[tuple[object, ...]]()
    monkeypatch.delattr(torch.distributed, "all_gather_single", raising=False)
    monkeypatch.setattr(torch.distributed, name, lambda *given, group: calls.append((*given, group)), raising=False)
    every, mine = torch.zeros(2), torch.ones(1)
    all_gather_single(every, mine, group=None)
    assert calls == [(every, mine, None)]


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

"""Collectives by the name of the version: tests of planner/execute/torch_versions/collectives.py."""

import pytest

pytest.importorskip("torch")
from planner.execute.torch_versions.collectives import all_gather_single


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

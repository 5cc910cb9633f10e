"""Processes that time layers beside others: what the model's factory sees."""

import json
import os
from dataclasses import asdict, fields
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from profiles.measure import background_load  # noqa: E402


def test_a_factory_sees_no_launch(monkeypatch: pytest.MonkeyPatch):
    """Tests that a Trainer's script is not taken for one process of a launch, which accelerate 1.12 would look for."""
    seen: dict[str, str] = {}

    def load(*_: Any, **__: Any) -> Any:
        seen.update(os.environ)
        raise EOFError

    for name, value in (("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2"), (background_load.COMPARES, "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(background_load, "load_model", load)
    about = dict.fromkeys(each.name for each in fields(background_load.BusyWork)) | {"cut": "os:getpid"}
    with pytest.raises(EOFError):
        background_load.main(json.dumps(asdict(background_load.BusyWork(**about))))
    assert not {"LOCAL_RANK", "LOCAL_WORLD_SIZE"} & seen.keys()
    assert seen[background_load.COMPARES] == "0"

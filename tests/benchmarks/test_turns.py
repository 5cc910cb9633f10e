"""Contenders in turns: how a process of their launch ends."""

import json
import weakref

from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import turns


class _Wrapped:
    """A contender whose reducer holds the process group."""

    def __init__(self):
        self.module = DistributedDataParallel(nn.Linear(2, 2))
        self.circle = self

    def step(self, number):
        pass


def test_no_reducer_outlives_the_process_group(tmp_path, monkeypatch):
    """Tests that a wrapped model is gone before its group ends: with Python's lock it would wait for gloo's threads."""
    held = []

    def made(*_):
        contender = _Wrapped()
        held.append(weakref.ref(contender.module))
        return contender

    end, alive = distributed.destroy_process_group, list[bool]()
    monkeypatch.setattr(distributed, "destroy_process_group", lambda: (alive.append(held[0]() is not None), end()))
    monkeypatch.setattr(turns, "make_contender", made)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    about = {"model": "any", "contenders": {"loop": {}}, "rounds": 1}
    (tmp_path / "about.json").write_text(json.dumps(about))
    turns.main(str(tmp_path / "about.json"))
    assert alive == [False]
    assert set(json.loads((tmp_path / "rank0.json").read_text())["times"]) == {"loop"}

"""Tests of planner/execute/torch_versions/bare_step.py."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn, optim  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_pre_hook  # noqa: E402

from planner.execute.torch_versions.bare_step import find_bare_step, is_step_watched  # noqa: E402


class Own(optim.SGD):
    """Has a step of its own, which calls the one that has something around it."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def make_optimizer() -> Any:
    return optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)


def test_only_what_is_known_is_taken_off():
    """Tests that torch's own steps are found as they are written, and none behind another's decorator."""
    for kind in (optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop):
        kind([nn.Parameter(torch.ones(2))])  # the first of a class puts a range around its step
        step: Any = find_bare_step(kind)
        assert (step.__name__, hasattr(step, "__wrapped__")) == ("step", False)
    optim.Muon([nn.Parameter(torch.ones(2, 2))])
    assert find_bare_step(optim.Muon) is None
    assert find_bare_step(object) is None


def test_whoever_watches_a_step_is_noticed():
    """Tests that hooks of one and of all optimizers, schedules and profilers each count, and only while there."""
    assert not is_step_watched(make_optimizer())
    hooked = make_optimizer()
    handle = hooked.register_step_post_hook(lambda *_: None)
    assert is_step_watched(hooked)
    handle.remove()
    assert not is_step_watched(hooked)
    everyone = register_optimizer_step_pre_hook(lambda *_: None)
    assert is_step_watched(hooked)
    everyone.remove()
    scheduled = make_optimizer()
    optim.lr_scheduler.StepLR(scheduled, 1)
    assert is_step_watched(scheduled)
    with torch.profiler.profile():
        assert is_step_watched(hooked)
    assert not is_step_watched(hooked)

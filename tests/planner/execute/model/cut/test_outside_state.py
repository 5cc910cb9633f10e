"""What the code of a layer reaches outside of its modules."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from planner.execute.model.cut.held_state import HeldState
from planner.execute.model.cut.outside_state import NOTHING, find_outside

CALLS = {"all": 0}
FACTOR = 2.0
RATE = 1.0


def slower(x: torch.Tensor) -> torch.Tensor:
    global RATE
    RATE *= 0.5
    return x * RATE


class Counting(nn.Module):
    """A global dictionary; the constant beside it never changes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CALLS["all"] += 1
        return x * FACTOR


class Calling(nn.Module):
    """A global number that a function changes, called by another method."""

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return slower(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(x)


class OfClass(nn.Module):
    seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).seen += 1
        return x


class Defaulting(nn.Module):
    def forward(self, x: torch.Tensor, kept: dict[str, int] = {}) -> torch.Tensor:  # noqa: B006
        kept["n"] = kept.get("n", 0) + 1
        return x


def closing() -> nn.Module:
    count = 0

    class Closing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += 1
            return x

    return Closing()


def hooked() -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_forward_hook(lambda *_: CALLS.update(hook=CALLS.get("hook", 0) + 1))
    return module


@pytest.mark.parametrize(
    ("make", "named", "line"),
    [
        (Counting, "global variable 'CALLS'", 'CALLS["all"] += 1'),
        (Calling, "global variable 'RATE'", "RATE *= 0.5"),
        (OfClass, "class attribute 'seen' of OfClass", "type(self).seen += 1"),
        (Defaulting, "a default value of Defaulting.forward", "def forward(self, x: torch.Tensor, kept"),
        (closing, "variable 'count' around closing.<locals>.Closing.forward", "count += 1"),
        (hooked, "global variable 'CALLS'", "register_forward_hook"),
    ],
)
def test_what_changes_outside_is_found_and_comes_back(make: Callable[[], nn.Module], named: str, line: str):
    """Tests that a variable outside has its name and line, is noticed to change, and can be what it was."""
    module = nn.Sequential(nn.Linear(2, 2), make())
    (variable,) = find_outside(module)
    name, place = variable.text.removesuffix(")").split(" (test_outside_state.py, line ")
    assert name == named
    assert line in Path(__file__).read_text(encoding="utf-8").splitlines()[int(place) - 1]
    before = HeldState(variable.held)
    module(torch.ones(1, 2))
    assert not before.is_like(variable.held)
    variable.hold(before.make_again())
    assert before.is_like(variable.held)
    assert variable.held is not NOTHING


def test_libraries_have_no_state_of_the_users():
    """Tests that modules of torch alone reach nothing."""
    assert find_outside(nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2), nn.BatchNorm1d(2))) == []

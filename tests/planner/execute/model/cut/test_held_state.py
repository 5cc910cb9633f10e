"""What a value holds comes back whatever befalls it, and is told from what it became."""

import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from planner.execute.model.cut.held_state import HeldState
from planner.execute.model.cut.module_state import ModuleState


class Cache:
    """A user's object: keys by layer, and how many there are."""

    def __init__(self) -> None:
        self.keys, self.count = {"k": [torch.zeros(2)]}, 0

    def add(self) -> None:
        """One more key, and the first one changes in place."""
        self.keys["k"].append(torch.ones(2))
        self.keys["k"][0] += 1
        self.count += 1


def draw_first(pair: tuple[random.Random, Any]) -> None:
    pair[0].random()


CHANGES: list[tuple[Any, Callable[[Any], Any]]] = [
    ([1, 2], lambda held: held.append(3)),
    ({"a": 1}, lambda held: held.update(a=2)),
    ({"a": {"b": [1]}}, lambda held: held["a"]["b"].append(2)),
    (OrderedDict(a=1, b=2), lambda held: held.move_to_end("a")),
    (defaultdict(list), lambda held: held["new"].append(1)),
    (deque([1, 2], maxlen=2), lambda held: held.append(3)),
    ({1, 2}, lambda held: held.add(3)),
    (torch.zeros(3), lambda held: held.add_(1)),
    ((torch.zeros(3), [torch.ones(1)]), lambda held: held[1][0].mul_(2)),
    (Cache(), Cache.add),
    (SimpleNamespace(seen=0), lambda held: setattr(held, "seen", 1)),
    (random.Random(0), random.Random.random),
    ((random.Random(1), None), draw_first),
    (numpy.random.default_rng(0), lambda held: held.random()),
    (numpy.random.RandomState(0), lambda held: held.rand()),
    (numpy.zeros(3), lambda held: held.fill(1)),
    (torch.Generator(), lambda held: torch.rand(1, generator=held)),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_what_was_changed_comes_back(number: int):
    """Tests that a change is noticed, undone as often as wanted, and that copies of tensors leave the tensors alone."""
    value, change = CHANGES[number]
    state = HeldState(value)
    assert state.is_like(value)
    for _ in range(2):
        change(value)
        assert not state.is_like(value)
        now = HeldState(value, has_copies=False)
        assert state.is_like(state.make_again())
        change(state.make_again())
        assert state.is_like(state.make_again())
        now.restore()
        assert not state.is_like(value)
        state.restore()
        assert state.is_like(value)


ATOMS = st.one_of(st.integers(), st.booleans(), st.text(max_size=3), st.none(), st.just(0.5))
VALUES = st.recursive(
    ATOMS, lambda each: st.one_of(st.lists(each), st.dictionaries(st.text(max_size=2), each), st.tuples(each, each))
)


@given(first=st.lists(VALUES), second=st.lists(VALUES))
def test_any_other_items_are_noticed(first: list[Any], second: list[Any]):
    """Tests that a list is like another exactly if it was equal to it then, types included, and that it is so again."""
    held, text = list(first), repr(first)
    state = HeldState(held)
    assert state.is_like(second) == (repr(second) == text)
    held[:] = second
    state.restore()
    assert repr(held) == text


def test_circles_and_strangers():
    """Tests that what holds itself is gone through once, and that modules, weights and functions stay as they are."""
    held: list[Any] = [nn.Linear(2, 2), nn.Parameter(torch.zeros(1)), len]
    held.append(held)
    state = HeldState(held)
    held[1].data += 1
    assert state.is_like(held)
    held.pop()
    assert not state.is_like(held)
    assert state.make_again() is held
    assert held[3] is held


def test_a_module_is_what_it_was():
    """Tests that a forward's changes of what attributes lead to, however deep, are undone, and buffers are detached."""

    class Noting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cache, self.deep = Cache(), {"a": [{"b": deque([1])}]}
            self.register_buffer("mean", torch.zeros(2))
            self.mask = torch.ones(1).expand(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.cache.add()
            self.deep["a"][0]["b"].append(2)
            self.mean += x
            self.last = x
            return x + self.mean

    module = Noting()
    state, before = ModuleState(module), HeldState([module.cache, module.deep, module.mean])
    module(torch.ones(2, requires_grad=True))
    state.restore()
    assert before.is_like([module.cache, module.deep, module.mean])
    assert module.mean.grad_fn is None
    assert not hasattr(module, "last")


def test_tensors_without_data_are_like_others_of_their_shape():
    """Tests that what a run without data left in a container is compared, and put back, by shapes."""
    held = {"seen": torch.ones(2, device="meta")}
    state = HeldState(held)
    assert state.is_like(held)
    assert state.is_like({"seen": torch.zeros(2, device="meta")})
    assert not state.is_like({"seen": torch.zeros(3, device="meta")})
    held["seen"] = torch.ones(2)
    state.restore()
    assert held["seen"].is_meta

"""Steps of an optimizer in parts: the same weights with less memory."""

import copy
from typing import Any

import pytest
import torch
from torch import nn, optim

from planner.execute.parallel.partial_steps import PARTS, step_in_parts
from profiles.measure.memory import LiveBytes


def make_weights() -> list[nn.Parameter]:
    """Sixteen matrices of different shapes, a vector behind each, with gradients."""
    noise = torch.Generator().manual_seed(3)
    shapes = [shape for number in range(16) for shape in ((20 + number, 30), (20 + number,))]
    weights = [nn.Parameter(torch.randn(shape, generator=noise)) for shape in shapes]
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=noise)
    return weights


def make_pair(kind: type[optim.Optimizer], **settings: Any) -> list[optim.Optimizer]:
    """Two optimizers of equal weights in two groups."""
    made = []
    for weights in (make_weights(), make_weights()):
        groups = [{"params": weights[::2], "lr": 0.01}, {"params": weights[1::2], "lr": 0.1}]
        made.append(kind(groups, **settings))  # type: ignore[arg-type]
    return made


def weights_of(optimizer: optim.Optimizer) -> list[torch.Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


KINDS = [
    optim.Adadelta, optim.Adagrad, optim.Adam, optim.AdamW, optim.Adamax, optim.ASGD, optim.NAdam, optim.RAdam,
    optim.RMSprop, optim.Rprop, optim.SGD,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_parts_make_the_same_step(kind: type[optim.Optimizer]):
    """Tests that three steps in parts give the weights and the states of three whole ones, bit by bit."""
    parts, whole = make_pair(kind, foreach=True)
    for _ in range(3):
        step_in_parts(parts, is_accelerated=False)
        whole.step()
    assert all(torch.equal(a, b) for a, b in zip(weights_of(parts), weights_of(whole), strict=True))
    states = [[each.state[weight] for weight in weights_of(each)] for each in (parts, whole)]
    for mine, other in zip(*states, strict=True):
        assert mine.keys() == other.keys()
        assert all(torch.equal(torch.as_tensor(mine[key]), torch.as_tensor(other[key])) for key in mine)
    assert [len(group["params"]) for group in parts.param_groups] == [16, 16]


def test_a_part_takes_a_part_of_the_memory():
    """Tests that a step of AdamW holds about as much again as all weights, and in parts an eighth, or one matrix."""
    peaks = []
    for optimizer, step in zip(
        make_pair(optim.AdamW, foreach=True),
        (lambda each: each.step(), lambda each: step_in_parts(each, is_accelerated=False)),
        strict=True,
    ):
        optimizer.step()
        with LiveBytes() as live:
            step(optimizer)
        peaks.append(live.peak)
    total = sum(weight.nbytes for weight in make_weights())
    assert peaks[0] > 0.9 * total
    assert peaks[1] < 2 * total / PARTS


class Counting(optim.SGD):
    """Somebody's own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1, foreach=True)
        self.calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        return super().step(closure)


def count_calls(optimizer: optim.Optimizer, *, is_accelerated: bool) -> int:
    """How often `step` is called for one step."""
    calls, plain = [0], optimizer.step

    def step() -> None:
        calls[0] += 1
        plain()

    optimizer.step = step  # type: ignore[method-assign]
    step_in_parts(optimizer, is_accelerated=is_accelerated)
    return calls[0]


def test_only_what_steps_all_at_once_is_divided():
    """Tests that on a host, with fused kernels, with hooks and for optimizers of one's own a step is one call."""
    assert PARTS <= count_calls(optim.SGD(make_weights(), lr=0.1), is_accelerated=True) <= 2 * PARTS
    assert count_calls(optim.SGD(make_weights(), lr=0.1), is_accelerated=False) == 1
    assert count_calls(optim.SGD(make_weights(), lr=0.1, foreach=False), is_accelerated=True) == 1
    assert count_calls(optim.SGD(make_weights(), lr=0.1, fused=True), is_accelerated=True) == 1
    hooked = optim.SGD(make_weights(), lr=0.1)
    hooked.register_step_post_hook(lambda *_: None)
    assert count_calls(hooked, is_accelerated=True) == 1
    own = Counting(make_weights())
    step_in_parts(own, is_accelerated=True)
    assert own.calls == 1


def test_copies_of_an_optimizer_are_divided_too():
    """Tests that nothing is kept beside the optimizer: a copy steps as it does."""
    parts, _ = make_pair(optim.AdamW, foreach=True)
    other = copy.deepcopy(parts)
    for each in (parts, other):
        for weight in weights_of(each):
            weight.grad = torch.ones_like(weight)
        step_in_parts(each, is_accelerated=False)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(parts), weights_of(other), strict=True))

"""Steps of an optimizer in parts: the same weights with less memory."""

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn, optim

from planner.execute.parallel.partial_steps import PARTS, SMALL_BYTES, OptimizerStep


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
        OptimizerStep(parts, is_accelerated=False).take()
        whole.step()
    assert all(torch.equal(a, b) for a, b in zip(weights_of(parts), weights_of(whole), strict=True))
    states = [[each.state[weight] for weight in weights_of(each)] for each in (parts, whole)]
    for mine, other in zip(*states, strict=True):
        assert mine.keys() == other.keys()
        assert all(torch.equal(torch.as_tensor(mine[key]), torch.as_tensor(other[key])) for key in mine)
    assert [len(group["params"]) for group in parts.param_groups] == [16, 16]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_small_weights_of_a_host_make_the_same_steps_together(kind: type[optim.Optimizer], dtype: torch.dtype):
    """Tests that on a host every optimizer ends with its own bits, and with the settings that it was given."""
    together, apart = make_pair(kind, weight_decay=0.1) if kind is not optim.Rprop else make_pair(kind)
    for optimizer in (together, apart):
        for weight in weights_of(optimizer):
            weight.data, weight.grad = weight.data.to(dtype), None
    step = OptimizerStep(together, is_accelerated=False)
    noise = torch.Generator().manual_seed(5)
    for number in range(6):
        for mine, other in zip(weights_of(together), weights_of(apart), strict=True):
            is_used = number != 3 or mine.dim() > 1  # once the vectors are without
            grad = torch.randn(mine.shape, generator=noise, dtype=dtype) * 10.0 ** (number - 3)
            mine.grad, other.grad = (grad.clone(), grad.clone()) if is_used else (None, None)
        step.take()
        apart.step()
    assert all(torch.equal(a, b) for a, b in zip(weights_of(together), weights_of(apart), strict=True))
    assert all(group["foreach"] is None for group in together.param_groups)


def calls_together(optimizer: optim.Optimizer) -> list[Any]:
    """What the groups said of `foreach` while a step was taken on a host."""
    seen, plain = [], optimizer.step

    def step() -> None:
        seen.extend(group["foreach"] for group in optimizer.param_groups)
        plain()

    optimizer.step = step  # type: ignore[method-assign]
    OptimizerStep(optimizer, is_accelerated=False).take()
    return seen


def test_few_weights_of_a_host_are_stepped_together_unless_somebody_asked_otherwise():
    """Tests that weights of few bytes are, but not large ones, one alone, those of optimizers that give other bits, nor
    where a group says how.
    """
    large = nn.Parameter(torch.zeros(SMALL_BYTES // 4)), nn.Parameter(torch.zeros(1))
    assert calls_together(optim.AdamW(make_weights())) == [True]
    assert calls_together(optim.NAdam(make_weights())) == [None]
    assert calls_together(optim.AdamW(make_weights(), foreach=False)) == [False]
    assert calls_together(optim.AdamW(make_weights(), lr=torch.tensor(0.1))) == [None]
    assert calls_together(optim.AdamW(make_weights()[:1])) == [None]
    assert calls_together(optim.AdamW([{"params": make_weights()}, {"params": large}])) == [True, None]


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
    OptimizerStep(optimizer, is_accelerated=is_accelerated).take()
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
    OptimizerStep(own, is_accelerated=True).take()
    assert own.calls == 1


def test_copies_of_an_optimizer_are_divided_too():
    """Tests that nothing is kept beside the optimizer: a copy steps as it does."""
    parts, _ = make_pair(optim.AdamW, foreach=True)
    other = copy.deepcopy(parts)
    for each in (parts, other):
        for weight in weights_of(each):
            weight.grad = torch.ones_like(weight)
        OptimizerStep(each, is_accelerated=False).take()
    assert all(torch.equal(a, b) for a, b in zip(weights_of(parts), weights_of(other), strict=True))


class OfAllWeights(optim.SGD):
    """Wants some weights in every group, and may fail."""

    is_failing = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            torch._foreach_mul_(group["params"], 0.5)
            assert group["params"][-1].shape
        if self.is_failing:
            raise ArithmeticError


@pytest.mark.parametrize("is_failing", [False, True])
def test_groups_without_weights_are_not_there_in_a_step(is_failing: bool):
    """Tests that an optimizer meets none that are empty here, and has them again afterwards, whatever happens."""
    weights = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    made = OfAllWeights([{"params": [each], "lr": 0.1} for each in weights])
    made.is_failing = is_failing
    made.param_groups[0]["params"] = []
    groups = list(made.param_groups)
    with pytest.raises(ArithmeticError) if is_failing else nullcontext():
        OptimizerStep(made, is_accelerated=False).take()
    assert [each.tolist() for each in weights] == [[1.0] * 3, [0.5] * 3]
    assert made.param_groups == groups
    assert made.param_groups[0]["params"] == []

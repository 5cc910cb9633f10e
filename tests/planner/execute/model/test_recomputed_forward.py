"""Layers that are recomputed give what they give otherwise, bit by bit, and save only what they were given."""

import random
from collections import deque
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from planner.execute.model.cut.held_state import HeldState
from planner.execute.model.layer_run import LayerRun
from planner.execute.model.layer_state import ChangingBuffers
from planner.execute.model.recomputed_forward import run_recomputed


class Residual(nn.Module):
    """Saves inputs, outputs, masks, views and weights, and ends with what nothing saves."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.BatchNorm1d(6), nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Two tensors of two."""
        h = self.down(torch.relu(self.up(self.norm(x))).view(-1, 12))
        return x + h, (y * h).tanh()


def gradients(run, *, layer: nn.Module, times: int = 1) -> list[torch.Tensor]:
    """Outputs, and gradients of inputs and weights, of runs whose backwards come in the other order."""
    layer.zero_grad()
    x, y = (torch.linspace(-1, 1, 24).reshape(4, 6).roll(k).requires_grad_() for k in range(2))
    given = [run(layer, x, (k + 1) * y) for k in range(times)]
    for a, b in reversed(given):
        (a.square().sum() + b.sum()).backward()
    return [*(each.detach() for pair in given for each in pair), x.grad, y.grad, *(p.grad for p in layer.parameters())]


def plainly(layer: nn.Module, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return layer(*tensors)


@pytest.mark.parametrize("times", [1, 3])
def test_gradients_are_the_same_bit_by_bit(times: int):
    """Tests that one microbatch, and several that are pending at once, give what plain runs and torch's own give."""
    torch.manual_seed(0)
    layer = Residual()
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    expected = gradients(plainly, layer=layer, times=times)
    averages = {name: value.clone() for name, value in layer.state_dict().items()}
    changing = ChangingBuffers()

    def recompute(module: nn.Module, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return run_recomputed(LayerRun(module, changing=changing, exchange=None, store=None, seed=None), *tensors)

    for _ in range(2):
        layer.load_state_dict(state)
        assert all(map(torch.equal, gradients(recompute, layer=layer, times=times), expected))
        assert all(torch.equal(averages[name], value) for name, value in layer.state_dict().items())
    torches = gradients(lambda m, *ts: checkpoint(m, *ts, use_reentrant=False), layer=layer, times=times)
    assert all(map(torch.equal, torches[2 * times :], expected[2 * times :]))


def test_buffers_that_matter_are_as_they_were():
    """Tests that a layer whose result depends on a buffer that it changes is given the buffer of before."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            return x * self.seen * x

    layer, changing = Counting(), ChangingBuffers()
    x = torch.ones(2, requires_grad=True)
    for number in range(2, 5):
        run = LayerRun(layer, changing=changing, exchange=None, store=None, seed=None)
        x.grad = None
        run_recomputed(run, x).sum().backward()
        assert torch.equal(x.grad, torch.full((2,), 2.0 * number))
        assert layer.seen == number


def test_numbers_that_matter_are_as_they_were():
    """Tests that a recomputation sees the numbers that its forward saw, one that was not yet there among them, and that
    each forward counts once.
    """

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.is_odd, self.rate = 1, True, 0.5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen, self.is_odd = self.seen + 1, not self.is_odd
            self.later = getattr(self, "later", 0) + 3
            return x * (self.seen + 10 * self.is_odd + 100 * self.later) * x

    layer, plain, changing = Counting(), Counting(), ChangingBuffers()
    x = torch.ones(2, requires_grad=True)
    for _ in range(2):  # two that are pending at once
        given, grads = [], []
        for _ in range(2):
            given.append(run_recomputed(LayerRun(layer, changing=changing, exchange=None, store=None, seed=None), x))
            grads.append(torch.autograd.grad(plain(x).sum(), x)[0])
        for y, expected in reversed(list(zip(given, grads, strict=True))):
            assert torch.equal(torch.autograd.grad(y.sum(), x)[0], expected)
        numbers = ("seen", "is_odd", "later", "rate")
        assert [getattr(layer, name) for name in numbers] == [getattr(plain, name) for name in numbers]


class Remembering(nn.Module):
    """Everything that it has seen matters, wherever it is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.last, self.by_name = [1.0], deque([1.0, 2.0], maxlen=2), {"all": {"sum": 0.0}}
        self.cache: tuple[torch.Tensor, ...] = ()
        self.slots, self.state = torch.zeros(8), None
        self.notes, self.own = SimpleNamespace(count=0), random.Random(3)
        self.noise = torch.Generator().manual_seed(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Something else each time."""
        factor = self.own.random() + float(torch.rand(1, generator=self.noise)) + sum(self.last) + self.notes.count
        self.seen.append(factor)
        self.last.append(len(self.seen))
        self.by_name["all"]["sum"] += factor
        self.notes.count += 1
        self.slots[self.notes.count] = self.by_name["all"]["sum"]
        self.cache = (*self.cache, x.detach() * factor)
        y = x * x * (factor + self.slots.sum() + sum(self.seen) + torch.stack(self.cache).sum())
        y = y if self.state is None else y * self.state
        self.state = y.detach()
        return y


def test_whatever_a_layer_remembers_is_as_it_was():
    """Tests that lists, deques, dictionaries, objects, tensors and generators that a layer keeps are to a recomputation
    what they were to its forward, and that each forward is remembered once.
    """
    layer, plain, changing = Remembering(), Remembering(), ChangingBuffers()
    x = torch.linspace(0.1, 0.2, 3).requires_grad_()
    for _ in range(2):  # two that are pending at once
        given = [run_recomputed(LayerRun(layer, changing=changing, exchange=None, store=None, seed=None), x)
                 for _ in range(2)]  # fmt: skip
        expected = [torch.autograd.grad(plain(x).sum(), x)[0] for _ in range(2)]
        for y, wanted in reversed(list(zip(given, expected, strict=True))):
            assert torch.equal(torch.autograd.grad(y.sum(), x)[0], wanted)
        assert HeldState(vars(plain)).is_like(vars(layer))


def test_what_changes_outside_of_a_layer_is_refused():
    """Tests that a recomputed layer which reads what is not its own is named before any weight has changed."""
    counts = [1.0]

    def layer(x: torch.Tensor) -> torch.Tensor:
        counts[0] += 1
        return x * x * counts[0]

    x = torch.ones(3, requires_grad=True)
    y = run_recomputed(layer, x, name="layer 'mix'", is_compared=True)
    with pytest.raises(RuntimeError, match=r"layer 'mix' gives 6 instead of 4 .*; keep that in its buffers or"):
        y.sum().backward()
    y = run_recomputed(lambda t: t.sin().relu(), x, is_compared=True)
    y.sum().backward()


def test_numbers_that_are_not_torchs_are_drawn_again():
    """Tests that a recomputation is given the numbers of Python and numpy that its forward was given, and that what
    comes after it is what would have come.
    """

    class Drawing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (random.random() + 10 * float(numpy.random.rand())) * x

    layer, changing, x = Drawing(), ChangingBuffers(), torch.ones(2, requires_grad=True)
    for _ in range(2):
        runs = [LayerRun(layer, changing=changing, exchange=None, store=None, seed=None) for _ in range(2)]
        given = [run_recomputed(run, x) for run in runs]
        after = random.getstate(), numpy.random.get_state()[2]
        for y in reversed(given):
            assert torch.equal(torch.autograd.grad(y.sum(), x)[0], 2 * y.detach())
        assert (random.getstate(), numpy.random.get_state()[2]) == after


def test_little_is_saved_and_the_end_is_not_run_again():
    """Tests that nothing of a forward lives on but its inputs, and that a recomputation stops at the last saved one."""
    calls = []

    def run(x: torch.Tensor) -> torch.Tensor:
        calls.append("begin")
        y = x.sin().exp()
        calls.append("end")
        return y + 1

    x = torch.ones(1000, requires_grad=True)
    y = run_recomputed(run, x)
    assert calls == ["begin", "end"]
    y.sum().backward()
    assert calls == ["begin", "end", "begin"]
    with pytest.raises(RuntimeError):
        y.sum().backward()


def test_backward_twice_computes_twice():
    """Tests that a graph that is kept can be asked twice, as torch's split of a backward asks it."""
    x = torch.linspace(0, 1, 5).requires_grad_()
    y = run_recomputed(lambda t: t.exp().sin(), x).sum()
    first, second = (torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("again", [lambda x: x[:2].exp().sin(), lambda x: x.double().exp().sin(), lambda x: x.exp()])
def test_another_forward_is_refused(again):
    """Tests that a layer which saves less or others the second time is named, with a remedy."""
    runs = iter([lambda x: x.exp().sin(), again])
    y = run_recomputed(lambda x: next(runs)(x), torch.ones(4, requires_grad=True))
    with pytest.raises(RuntimeError, match=r"saves .*; let it compute the same each time"):
        y.sum().backward()


def test_a_backward_inside_the_forward():
    """Tests that a layer that differentiates inside itself gives what it gives plainly, and its averages once."""
    torch.manual_seed(0)
    norm, x = nn.BatchNorm1d(3), torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()

    def layer(t: torch.Tensor) -> torch.Tensor:
        y = norm(t).sin()
        (slope,) = torch.autograd.grad(y.square().sum(), t, create_graph=True)
        return (y * slope).tanh()

    layer(x).sum().backward()
    expected = [x.grad.clone(), *(p.grad.clone() for p in norm.parameters())]
    average, x.grad = norm.running_mean.clone(), None
    norm.reset_running_stats()
    norm.zero_grad()
    module, changing = nn.Module(), ChangingBuffers()
    module.norm, module.forward = norm, layer
    run_recomputed(LayerRun(module, changing=changing, exchange=None, store=None, seed=None), x).sum().backward()
    assert all(map(torch.equal, [x.grad, *(p.grad for p in norm.parameters())], expected))
    assert torch.equal(norm.running_mean, average)


def test_autocast_is_as_it_was():
    """Tests that a layer that ran in a shorter type is recomputed in it."""
    layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    x = torch.ones(2, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = run_recomputed(layer, x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert x.grad is not None


def test_a_hook_on_what_a_layer_is_given_acts_once():
    """Tests that a forward that hooks something to its input's gradient does so for its own graph alone."""

    class Doubling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.register_hook(lambda grad: 2 * grad)
            return x.sin() * x

    x = torch.ones(3, requires_grad=True)
    run = LayerRun(Doubling(), changing=ChangingBuffers(), exchange=None, store=None, seed=None)
    wanted, found = (torch.autograd.grad(y.sum(), x)[0] for y in (Doubling()(x * 1), run_recomputed(run, x * 1)))
    assert torch.equal(wanted, found)


class Stopping(nn.BatchNorm1d):
    """Ends its own training in its forward, as people freeze norms."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.training = False
        return super().forward(x)


@pytest.mark.parametrize("norm", [Stopping(3), nn.BatchNorm1d(3, track_running_stats=False), nn.BatchNorm1d(3).eval()])
def test_norms_without_averages_of_their_own(norm: nn.Module):
    """Tests that norms which keep no averages, or change none, are recomputed as they are."""
    norm, x = nn.Sequential(norm), torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()
    norm(x).square().sum().backward()
    expected, x.grad = x.grad.clone(), None
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    changing = ChangingBuffers()
    for part in norm:
        part.training = part.training or isinstance(part, Stopping)
    for _ in range(2):
        run_recomputed(
            LayerRun(norm, changing=changing, exchange=None, store=None, seed=None), x
        ).square().sum().backward()
        assert torch.equal(x.grad, expected)
        x.grad = None
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())

"""Which microbatches a stage recomputes."""

import queue
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from planner.errors import ExecutionError
from planner.execute.model.layer_run import Moment
from planner.execute.model.layer_state import is_memory
from planner.execute.stage.stage_module import MemoryTrial, SamplePlaces, StageModule
from planner.execute.table.wiring import BATCH, StageWiring
from planner.execute.training import as_tuple

CALLS: "queue.SimpleQueue[int]" = queue.SimpleQueue()


TRIAL = MemoryTrial(is_memory, "each replica sees others; plan without replicas (pipeplan plan --max-replicas 1)")


class Counted(torch.nn.Linear):
    """Notes its forwards where nobody looks, since what it has and reaches is put back after a recomputation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CALLS.put(len(x))
        return super().forward(x)


class Remembering(torch.nn.Linear):
    """Keeps its last result, which the next one is made of or not."""

    def __init__(self, *sizes: int, is_used: bool, is_random: bool = False) -> None:
        super().__init__(*sizes)
        self.last, self.is_used, self.is_random = torch.zeros(1), is_used, is_random

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x) + self.last.mean() * self.is_used
        y = torch.nn.functional.dropout(y) if self.is_random else y
        self.last = y.detach()
        return y


WIRING = StageWiring(layers=("l",), takes={"l": (BATCH,)}, arrives=(BATCH,), leaves=("l",))


def test_kept_microbatches_are_run_once():
    """Tests that the backward of a microbatch runs the layer again, unless it is one that keeps everything."""
    layer = Counted(2, 2)
    stage = StageModule(WIRING, {"l": layer}, counts={BATCH: 1}, recompute=["l"], kept=[1])
    counts, gradients = [], []
    for microbatch in range(3):
        stage.microbatch, before = microbatch, CALLS.qsize()
        stage(torch.ones(1, 2)).sum().backward()
        counts.append(CALLS.qsize() - before)
        gradients.append(layer.weight.grad.clone())
        layer.weight.grad = None
    assert counts == [2, 1, 2]
    assert all(torch.equal(each, gradients[0]) for each in gradients)


@pytest.mark.parametrize("recompute", [[], ["l"]])
def test_replicas_that_remember_are_refused(recompute: list[str]):
    """Tests that a layer whose results depend on microbatches before is named where other replicas see others, that one
    which only keeps something is not, and that both are afterwards what one run makes of them.
    """
    moment = Moment(0, 0, 0)
    for is_random in (False, True):
        layer = Remembering(2, 2, is_used=False, is_random=is_random)
        stage = StageModule(WIRING, {"l": layer}, counts={BATCH: 1}, recompute=recompute)
        stage.trial, stage.moment = TRIAL, moment
        given = stage(torch.ones(1, 2))
        assert torch.equal(layer.last, given)
        assert stage.trial is None
    stage = StageModule(WIRING, {"l": Remembering(2, 2, is_used=True)}, counts={BATCH: 1}, recompute=recompute)
    stage(torch.ones(1, 2)).sum().backward()
    stage.trial = TRIAL
    with torch.no_grad():
        stage(torch.ones(1, 2))
    with pytest.raises(ExecutionError, match=r"layer 'l' gives .* attribute 'last' keeps, .* \(pipeplan plan --max"):
        stage(torch.ones(1, 2))


class Averaging(nn.Module):
    """A buffer that follows what it sees: the last microbatches most, or all alike."""

    def __init__(self, *, is_sum: bool) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.is_sum = is_sum

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.seen.mul_(1 if self.is_sum else 0.9).add_(x.mean(0))
        return x * 2


KEPT: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "the last count most": (partial(Averaging, is_sum=False), "buffer 'seen'", "buffer 'seen'"),
    "all count alike": (partial(Averaging, is_sum=True), "", "buffer 'seen'"),
    "running averages": (lambda: nn.BatchNorm1d(3), "running averages", ""),
    "the mean of all": (lambda: nn.BatchNorm1d(3, momentum=None), "", ""),
    "in evaluation mode": (lambda: nn.BatchNorm1d(3).eval(), "", ""),
    "no averages": (lambda: nn.BatchNorm1d(3, track_running_stats=False), "", ""),
}


@pytest.mark.parametrize("name", KEPT)
def test_buffers_that_would_be_others_are_refused(name: str):
    """Tests that a buffer is named which depends on the order of microbatches, where the plan has another one, or on
    each of them, where replicas are dealt some; that averages of norms are, and that all is left as it was.
    """
    make, in_order, of_each = KEPT[name]
    for kept, named in (("in order", in_order), ("of each", of_each)):
        layer, plain, x = make(), make(), torch.linspace(-1, 2, 12).reshape(4, 3)
        stage = StageModule(WIRING, {"l": layer}, counts={BATCH: 1})
        stage.trial = MemoryTrial(is_memory, "the plan runs microbatch 1 before 0", kept)  # type: ignore[arg-type]
        if named:
            with pytest.raises(ExecutionError, match=f"keeps something of each microbatch in its {named}, but"):
                stage(x)
            continue
        assert torch.equal(stage(x), plain(x))
        assert all(map(torch.equal, layer.buffers(), plain.buffers()))


def centred(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()


def with_mean(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A mean over samples beside them, as an auxiliary loss is."""
    return x * 2, x.square().mean()


def with_square_of_mean(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * 2, x.mean(0).square().sum()


def with_noise(x: torch.Tensor) -> torch.Tensor:
    """It draws, whether it is in training or not."""
    return x + torch.rand_like(x)


class Function(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function, self.drop = function, nn.Dropout()

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.drop(x))


def against_each_other(x: torch.Tensor) -> torch.Tensor:
    return x @ x.T


COUPLED = {
    against_each_other: True,
    centred: True,
    with_square_of_mean: True,
    with_mean: False,
    torch.tanh: False,
    with_noise: False,
}


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("function", COUPLED)
def test_layers_that_couple_samples_are_refused_on_replicas(function: Callable[[torch.Tensor], Any], count: int):
    """Tests that a layer is named which gives other results once a microbatch has other samples, too, whatever it
    draws; means over samples and what treats them apart are let be.
    """
    torch.manual_seed(0)
    stage = StageModule(WIRING, {"l": Function(function)}, counts={BATCH: 1})
    stage.trial, stage.moment = TRIAL, Moment(0, 0, 0)
    stage.places = SamplePlaces(
        {BATCH: (0,), "l": (0, None)[: len(as_tuple(function(torch.ones(2, 3))))]}, count, False
    )
    if not COUPLED[function]:
        stage(torch.randn(count, 3))
        return
    with pytest.raises(ExecutionError, match=r"layer 'l' gives results .* each replica has a part of it; let"):
        stage(torch.randn(count, 3))


class Biased(nn.Module):
    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return x + bias


@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_belongs_to_no_sample_stays_as_it_is_beside_others(count: int):
    """Tests that a bias over positions, which all samples share, couples none of them."""
    stage = StageModule(WIRING, {"l": Biased()}, counts={BATCH: 2})
    stage.trial, stage.moment = TRIAL, Moment(0, 0, 0)
    stage.places = SamplePlaces({BATCH: (0, None), "l": (0,)}, count, False)
    stage(torch.randn(count, 3), torch.arange(3.0)[None])


class CountingSamples(nn.Module):
    """Adds up in a buffer, or in an attribute of its own, how many samples it was given, and keeps a row of zeros."""

    def __init__(self, *, is_buffer: bool) -> None:
        super().__init__()
        self.is_buffer, self.own = is_buffer, 0
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("zeros", torch.zeros(0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_buffer:
            self.seen += len(x)
        self.own += len(x)
        self.zeros = torch.zeros(len(x), 1)
        return x * 2 + self.zeros


@pytest.mark.parametrize("is_buffer", [True, False])
def test_buffers_that_hang_on_the_number_of_samples_are_refused_on_replicas(is_buffer: bool):
    """Tests that a buffer is named that a replica's part of a microbatch leaves otherwise than all of it; one that has
    as many rows as there are samples is no matter.
    """
    stage = StageModule(WIRING, {"l": CountingSamples(is_buffer=is_buffer)}, counts={BATCH: 1})
    stage.trial, stage.moment, stage.places = TRIAL, Moment(0, 0, 0), SamplePlaces({BATCH: (0,), "l": (0,)}, 4, False)
    if not is_buffer:
        stage(torch.randn(4, 3))
        return
    with pytest.raises(ExecutionError, match="layer 'l' gives other values to its buffer 'seen' for some samples"):
        stage(torch.randn(4, 3))


def test_lengths_that_do_not_add_up_are_named():
    """Tests that results of samples together which are shorter than theirs one by one are told by their lengths."""
    stage = StageModule(WIRING, {"l": Function(lambda x: x[: (len(x) + 1) // 2])}, counts={BATCH: 1}).eval()
    stage.trial, stage.moment, stage.places = TRIAL, Moment(0, 0, 0), SamplePlaces({BATCH: (0,), "l": (0,)}, 3, False)
    with pytest.raises(ExecutionError, match="layer 'l' gives results of length 1, not 2, for some samples"):
        stage(torch.randn(3, 3))


def by_its_sign(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.is_meta or x.sum() > 0 else x


def test_layers_that_decide_by_values_are_tried_on_every_microbatch():
    """Tests that a branch which the first microbatch does not show is found in a later one; others are tried once."""
    one_way, both_ways = torch.ones(4, 3), torch.tensor([[1.0], [1.0], [-9.0], [1.0]]).expand(4, 3)
    for function, is_deciding in {by_its_sign: True, torch.tanh: False}.items():
        stage = StageModule(WIRING, {"l": Function(function)}, counts={BATCH: 1}).eval()
        stage.trial, stage.moment, stage.places = (
            TRIAL, Moment(0, 0, 0), SamplePlaces({BATCH: (0,), "l": (0,)}, 4, False)
        )  # fmt: skip
        stage(one_way)
        assert (stage.trial is TRIAL) is is_deciding
        with pytest.raises(ExecutionError, match="layer 'l' gives results") if is_deciding else nullcontext():
            stage(both_ways)


class Moving(nn.Linear):
    """Does something to its weight before it computes."""

    def __init__(self, move: Callable[["Moving"], Any]) -> None:
        super().__init__(2, 2)
        self.move = move

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.move(self)
        return super().forward(x)


def set_data(layer: Moving) -> None:
    layer.weight.data = layer.weight.data * 0.5


def replace_bias(layer: Moving) -> None:
    layer.bias = nn.Parameter(layer.bias.detach() * 0.5)


def move_both(layer: Moving) -> None:
    for each in layer.parameters():
        each.detach().mul_(0.5)


MOVES: dict[Callable[[Moving], Any], tuple[str, ...]] = {
    set_data: ("weight",),
    replace_bias: ("bias",),
    move_both: ("weight", "bias"),
    lambda layer: layer.weight.data.clamp_(-1, 1): ("weight",),
    lambda layer: layer.weight[0].data.clamp_(-1, 1): ("weight",),
    lambda layer: layer.weight.data[0].clamp_(-1, 1): ("weight",),
    lambda layer: layer.weight.data.clone().clamp_(-1, 1): (),
    lambda layer: layer.bias.data.dtype: (),
}


def test_weights_that_a_forward_changes_are_known_without_data():
    """Tests that an embedding that keeps its rows short is one, and a layer that writes through `data`, to it or puts
    another weight in its place; others are not.
    """
    layers: list[tuple[nn.Module, tuple[str, ...]]] = [(Moving(move), moved) for move, moved in MOVES.items()]
    layers += [(nn.Embedding(3, 2, max_norm=1.0), ("weight",)), (nn.Embedding(3, 2), ())]
    for layer, moved in layers:
        stage = StageModule(WIRING, {"l": layer.to("meta")}, counts={BATCH: 1})
        dtype = torch.long if isinstance(layer, nn.Embedding) else None
        stage(torch.zeros(2, dtype=dtype, device="meta"))
        assert stage.traits["l"].moved_weights == moved


def test_a_trial_compiles_nothing_anew():
    """Tests that samples beside others are run as the layer is written, which is then compiled as before."""
    layer, calls = Function(torch.tanh), list[int]()

    def compiled(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        return layer.forward(x)

    layer._compiled_call_impl = compiled
    stage = StageModule(WIRING, {"l": layer}, counts={BATCH: 1})
    stage.trial, stage.moment, stage.places = TRIAL, Moment(0, 0, 0), SamplePlaces({BATCH: (0,), "l": (0,)}, 5, False)
    stage(torch.randn(5, 3))
    assert calls == [5]
    assert layer._compiled_call_impl is compiled

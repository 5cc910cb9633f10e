"""Bytes of one layer: tests of profiles/measure/memory.py."""

import gc
from contextlib import nullcontext

import pytest
import torch
from torch import nested, nn, optim
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.execute.model.layer_alone import make_deferring
from planner.execute.parallel.partial_steps import PARTS, OptimizerStep
from planner.execute.training import Training
from profiles.measure.memory import (
    CLEAR_REFS,
    LayerMemory,
    LiveBytes,
    OperationMemory,
    SavedBytes,
    count_bytes,
    storage_bytes,
)
from profiles.measure.segment import Segment
from tests.planner.execute.parallel.test_partial_steps import make_pair, make_weights


def test_a_part_takes_a_part_of_the_memory():
    """Tests that a step of AdamW holds about as much again as all weights, and in parts an eighth, or one matrix."""
    peaks = []
    for optimizer, step in zip(
        make_pair(optim.AdamW, foreach=True),
        (lambda each: each.step(), lambda each: OptimizerStep(each, is_accelerated=False).take()),
        strict=True,
    ):
        optimizer.step()
        with LiveBytes() as live:
            step(optimizer)
        peaks.append(live.peak)
    total = sum(weight.nbytes for weight in make_weights())
    assert peaks[0] > 0.9 * total
    assert peaks[1] < 2 * total / PARTS


@pytest.mark.skipif(not CLEAR_REFS.exists(), reason="the host has no /proc/self/clear_refs")
def test_memory_inside_of_operations_counts():
    """Tests that what an operation takes and gives back is workspace, where no tensor tells of it."""
    size = 32 * 2**20

    class Sorting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = bytearray(size)
            return x * len(hidden)

    given = torch.ones(4, 8)
    segment = Segment(Sorting(), (given,), wants=(True,), waiting=make_deferring(Sorting()))
    tensors = LayerMemory(segment).workspace
    assert tensors < size / 8
    assert 0.9 * size < OperationMemory(segment).workspace - tensors < 1.2 * size


@pytest.mark.parametrize("is_fake", [False, True])
def test_what_is_kept_of_inputs_and_outputs(is_fake: bool):
    """Tests that a linear layer keeps its input until W, a sigmoid its output until I, and a sum nothing."""
    kept = {}
    for name, make in {"linear": lambda: nn.Linear(8, 8), "sigmoid": nn.Sigmoid, "sum": Adding, "same": Same}.items():
        with FakeTensorMode() if is_fake else nullcontext():
            module, given = make(), torch.ones(4, 8)
            waiting = make_deferring(module)
            memory = LayerMemory(Segment(module, (given,), wants=(True,), waiting=waiting))
        kept[name] = [*memory.takes, *memory.gives]
    assert kept == {
        "linear": [(128, 128), (0, 0, -1)],
        "sigmoid": [(0, 0), (128, 0, -1)],
        "sum": [(0, 0), (0, 0, -1)],
        "same": [(0, 0), (0, 0, 0)],
    }


class Adding(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Same(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class _Tanh(torch.autograd.Function):
    """Keeps its output by the call for it, or as an attribute, alone or in a list."""

    @staticmethod
    def forward(ctx, x, keeps):
        result = x.tanh()
        if keeps == "saved":
            ctx.save_for_backward(result)
        else:
            ctx.kept = [result] if keeps == "list" else result
            ctx.ring = ring = {}  # no tree: it holds itself
            ring["ring"] = ring
        return result * 2, keeps

    @staticmethod
    def backward(ctx, gradient, _):
        (result,) = ctx.saved_tensors or (ctx.kept if isinstance(ctx.kept, list) else [ctx.kept])
        return 2 * gradient * (1 - result**2), None


class _Curved(nn.Module):
    def __init__(self, keeps: str) -> None:
        super().__init__()
        self.keeps = keeps
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Tanh.apply(self.linear(x), self.keeps)[0].exp()


@pytest.mark.parametrize("is_fake", [False, True])
def test_what_a_context_keeps_is_stash(is_fake: bool):
    """Tests that tensors that a custom function keeps as attributes count as those that it saves, and not twice."""
    found = []
    for keeps in ("saved", "attribute", "list"):
        with FakeTensorMode() if is_fake else nullcontext():
            module, given = _Curved(keeps), torch.ones(4, 8)
            memory = LayerMemory(Segment(module, (given,), wants=(True,), waiting=make_deferring(module)))
        found.append((memory.stash, memory.weight_stash, memory.workspace))
    assert found[0][0] == 3 * given.nbytes
    assert len(set(found)) == 1


class Scaled(nn.Module):
    """Blocks, and a weight of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.scale = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)]), nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.sigmoid() * self.scale.exp()


def test_a_weight_that_a_cut_gave_a_holder_is_told_by_its_name():
    """Tests that what keeps a layer from being split is the user's weight where no class of theirs holds it."""
    made = Training.from_module(
        Scaled(), batch=lambda _: (torch.ones(4, 8),) * 2, loss=nn.functional.mse_loss, optimizer=torch.optim.Adam
    )
    found = dict[str, str]()
    for name, make in made.layers.items():
        module = make()
        given = (torch.ones(4, 8),) * len(made.inputs[name])
        waiting = make_deferring(module)
        found[name] = LayerMemory(Segment(module, given, wants=(True,) * len(given), waiting=waiting)).unsplit
    assert set(found.values()) == {"", "scale"}


def test_earlier_contexts_do_not_count():
    """Tests that what a context keeps counts if its function ran while it was watched, and not if it ran before."""
    saved, taken = SavedBytes(nn.Identity()), torch.ones(64, requires_grad=True)
    earlier, _ = _Tanh.apply(taken, "list")
    with saved.watching():
        pass
    saved.note_contexts()
    before = saved.total()
    with saved.watching():
        later, _ = _Tanh.apply(taken, "list")
    saved.note_contexts()
    assert (before, saved.total()) == (0, later.nbytes)
    assert earlier.grad_fn is not None


def test_a_graph_of_many_nodes_is_let_go():
    """Tests that nothing is done to a long chain that overflows the stack when it goes, as what Python saw would."""
    weight, saved = torch.ones(2, requires_grad=True), SavedBytes(nn.Identity())
    with saved.watching():
        chain = weight
        for _ in range(100_000):
            chain = chain + weight
        chain = _Tanh.apply(chain, "attribute")[0]
    saved.note_contexts()
    assert saved.total() == weight.nbytes
    del chain
    assert "__init__" not in vars(torch.autograd.function.BackwardCFunction)


@pytest.mark.parametrize("is_enabled", [False, True])
def test_contexts_are_found_behind_a_collection(is_enabled: bool):
    """Tests that what a context keeps counts where a layer collects garbage, and that a collector stays turned off."""
    saved, taken = SavedBytes(nn.Identity()), torch.ones(64, requires_grad=True)
    if not is_enabled:
        gc.disable()
    try:
        with saved.watching():
            later, _ = _Tanh.apply(taken, "list")
            gc.collect()
        saved.note_contexts()
        assert (saved.total(), gc.isenabled()) == (later.nbytes, is_enabled)
    finally:
        gc.enable()


def test_what_others_froze_stays_frozen():
    """Tests that looking for contexts leaves the garbage collector as it was."""
    gc.freeze()
    frozen, saved = gc.get_freeze_count(), SavedBytes(nn.Identity())
    with saved.watching():
        assert not gc.isenabled()
    assert (gc.get_freeze_count(), gc.isenabled()) == (frozen, True)


def _compressed(kind: str) -> torch.Tensor:
    return getattr(torch.eye(4), f"to_sparse_{kind}")(*([(2, 2)] if kind[0] == "b" else []))


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_count_what_they_hold():
    """Tests that indices and values of every sparse layout count, not the zeros between them."""
    coo = torch.eye(1000).to_sparse()
    assert count_bytes([coo]) == storage_bytes([coo, coo]) == 1000 * (2 * 8 + 4)
    for kind, (starts, others, values) in {
        "csr": (5, 4, 4),
        "csc": (5, 4, 4),
        "bsr": (3, 2, 8),
        "bsc": (3, 2, 8),
    }.items():
        assert count_bytes([_compressed(kind)]) == 8 * (starts + others) + 4 * values, kind


def test_parts_of_nested_tensors_count():
    """Tests that a tensor that wraps others counts as these."""
    rows = nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    assert 18 * 4 + 3 * 8 <= storage_bytes([rows]) <= 18 * 4 + 5 * 8


def test_a_sparse_gradient_is_alive_as_its_rows():
    """Tests that a backward with sparse=True makes what the rows that were looked up take, and no table."""
    table = nn.Embedding(10_000, 8, sparse=True)
    out = table(torch.arange(50)).sum()
    with LiveBytes() as live:
        out.backward()
    assert 50 * (8 * 4 + 8) <= live.peak < 4 * 50 * (8 * 4 + 8)


def test_a_layer_with_sparse_gradients_is_measured():
    """Tests that its memory is that of the dense table, but for what the sparse gradient holds beside it."""
    sizes = {}
    for is_sparse in (False, True):
        table = nn.Embedding(1000, 8, sparse=is_sparse)
        segment = Segment(table, (torch.arange(50),), wants=(False,), waiting=make_deferring(table))
        sizes[is_sparse] = LayerMemory(segment).sizes(optimizer_bytes=0)
    assert sizes[True].state == sizes[False].state == 2 * 1000 * 8 * 4
    assert sizes[True].saved == sizes[False].saved
    assert sizes[True].workspace < sizes[False].workspace

"""Models that act otherwise backward than forward: cut exactly, or refused by the name of the cause."""

import contextlib
import copy
import random
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from planner.execute import program as main_module  # noqa: E402
from planner.execute.model.cut.trial_training import run_separately  # noqa: E402
from planner.execute.model.cut.whole_model import is_compared_here  # noqa: E402
from planner.execute.model.deferred_init import deferred_init  # noqa: E402
from planner.execute.model.layer_alone import make_deferring  # noqa: E402
from planner.execute.model.memory_order import order_of  # noqa: E402
from planner.execute.model.user_code import OwnCodeError  # noqa: E402
from planner.execute.run.preparation import prepare  # noqa: E402
from planner.execute.stage.stage_module import make_layer  # noqa: E402
from planner.execute.training import Training  # noqa: E402
from planner.plan import Plan  # noqa: E402
from tests.planner.execute import acting_models as models  # noqa: E402
from tests.planner.execute.orders import make_random_plan  # noqa: E402

SAMPLES, MICROBATCHES, STEPS = 12, 3, 3
CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    """Threads that wait for each other take most of the time of small models."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def batch(number: int) -> Any:
    noise = torch.Generator().manual_seed(100 + number)
    inputs = torch.randn(SAMPLES, models.WIDTH, generator=noise, dtype=torch.float64)
    return inputs, torch.randint(models.CLASSES, (SAMPLES,), generator=noise)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def make(kind: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(7)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return kind()
    finally:
        torch.set_default_dtype(before)


def cut(module: nn.Module, **more: Any) -> Training:
    given = {"batch": batch, "loss": functional.cross_entropy, "optimizer": sgd}
    return Training.from_module(module, **given | more)


def microbatches(step: int) -> Any:
    inputs, target = batch(step)
    return zip(inputs.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True)


def train_whole(model: nn.Module) -> list[float]:
    """A loop as it is written."""
    optimizer, losses = sgd([each for each in model.parameters() if each.requires_grad]), []
    for step in range(STEPS):
        optimizer.zero_grad()
        for number, (inputs, target) in enumerate(microbatches(step)):
            torch.manual_seed(100 * step + number)
            loss = functional.cross_entropy(model(inputs), target) / MICROBATCHES
            loss.backward()
            losses.append(float(loss.detach()))
        optimizer.step()
    return losses


def train_cut(training: Training, layers: dict[str, nn.Module]) -> list[float]:
    """The same by the layers, each of which puts its weight gradients off as the executor does."""
    stores = [make_deferring(layer) for layer in layers.values()]
    parameters = {f"{name}:{path}": each for name, layer in layers.items() for path, each in layer.named_parameters()}
    optimizer, losses = sgd([each for each in parameters.values() if each.requires_grad]), []
    for step in range(STEPS):
        optimizer.zero_grad()
        for number, (inputs, target) in enumerate(microbatches(step)):
            torch.manual_seed(100 * step + number)
            run = run_separately(layers, training.inputs, batch=[inputs])
            loss = training.loss(run.leaving, target) / MICROBATCHES
            for store in stores:
                store.is_deferring = True
            run.backward(loss)
            for store in stores:
                store.take()()
            losses.append(float(loss.detach()))
        for names in training.tied:
            total = sum(parameters[name].grad for name in names)
            for name in names:
                parameters[name].grad = total.clone()
        optimizer.step()
    return losses


def plan_of(names: list[str], *, num_replicas: int) -> Plan:
    """Two stages, each on so many devices."""
    placement = "0/2 1/3" if num_replicas > 1 else "0 1"
    made = make_random_plan(placement, cut=(3, len(names) - 3), num_microbatches=MICROBATCHES)
    stages = tuple(replace(s, layers=tuple(names[3:] if k else names[:3])) for k, s in enumerate(made.stages))
    return replace(made, stages=stages)


def state_of(layers: dict[str, nn.Module]) -> dict[str, torch.Tensor]:
    return {path: each for layer in layers.values() for path, each in layer.state_dict().items()}


EXACT = (
    models.Rounded,
    models.Reversed,
    models.Stepped,
    models.HandedOn,
    models.HandedOnBeside,
    models.DoubledInPlace,
    models.WeighedInBetween,
    models.sequence,
    models.Checkpointed,
    models.CheckpointedFunction,
    models.CheckpointedDropout,
    models.CheckpointedPairs,
    models.NotReentrant,
    models.RowsHeld,
    models.Scaled,
    models.Clamped,
    models.Between,
    models.BetweenNormed,
    models.ModuleHooks,
    models.WholeForwardHook,
    models.Averaging,
    models.CountingOnce,
    models.LikeLayers,
    models.Assigning,
    models.BiasOfLast,
    models.Spectral,
    models.OldSpectral,
    models.OldWeightNorm,
    models.Parametrized,
    models.FunctionalOwn,
    lambda: models.Stack(models.NormedBlock),
    models.Twice,
    models.Frozen,
    models.Drawing,
    models.Unused,
    models.WeightOfParent,
    models.Dataclasses,
)


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: kind.__name__)
def test_layers_train_as_the_model_does(kind: Callable[[], nn.Module]):
    """Tests that losses, weights and buffers after three steps are those of a plain loop, that everything of the state
    dictionary is held by a layer, and that cutting leaves the model as it was."""
    model = make(kind)
    before = copy.deepcopy(model.state_dict())
    training = cut(model)
    layers = {name: make_layer(training, name, device=CPU) for name in training.layers}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    found, wanted = train_cut(training, layers), train_whole(model)
    assert found == pytest.approx(wanted, abs=1e-12)
    after = state_of(layers)
    assert set(after) == set(before)
    for name, value in model.state_dict().items():
        assert torch.allclose(after[name], value, rtol=0, atol=1e-12), name


REFUSED = {
    models.BlockTaken: "an autograd function of its own uses blocks.0.norm.weight (layer_norm)",
    models.CheckpointedFirst: "a reentrant checkpoint",
    models.TiedHook: "sign' of weight 'inp.weight'",
    models.AfterAccumulation: "weight 'head.weight' has a post-accumulate-grad hook 'AfterAccumulation.shrink'",
    models.BetweenLate: "sign' of a tensor",
    models.ByNode: "a node of autograd's graph (grad_fn)",
    models.WholeHook: "has a backward hook 'WholeHook.double'",
    models.Balanced: "buffer 'bias' changes in every forward, and layers 'blocks.0' and 'blocks.1' use it",
    models.NotedByHook: "hook 'NotedByHook.note' of module 'blocks.1'",
    models.AveragingTwice: "what acts there: a reentrant checkpoint",
    models.NormedTwice: "a checkpoint, whose function runs again in the backward",
    models.Packed: "hooks on saved tensors",
    models.Teacher: "'slow.weight'",
    models.Counting: "attribute 'calls' of module 'itself', which changes from call to call",
    models.GloballyCounting: "global variable 'SEEN' (acting_models.py, line ",
    models.Functional: "blocks.0 is called with another tensor for its weight 'norm.weight'",
    models.Assigned: "'blocks.0.norm.weight' and 'blocks.1.norm.weight' are two parameters over one memory",
    models.SparseTable: "words is an Embedding with sparse=True",
    models.SparseFunction: "the gradient of 'words.weight' is sparse",
    models.Dropping: "branches on random numbers that it draws (rand): __bool__ gave ",
    models.Warming: "branches on 'calls', which changes: __bool__ gave ",
    models.SparseBuffer: "'mix' of module 'itself' is torch.sparse_coo; keep it dense",
    models.Wandering: "random numbers of Python's",
    models.WanderingLate: "random numbers of Python's or NumPy's that its forward draws, which changes",
    models.CountingBeside: "there is 'calls' of attribute 'seen' of module 'itself', which changes from call to call",
    models.TimedAround: "attribute 'begun' of module 'itself', which changes from call to call: keep what results",
    models.CountedAround: "there is 'model' of global variable 'CALLS' (acting_models.py, line ",
    models.CountedTwice: "there is 'block' of global variable 'CALLS' (acting_models.py, line ",
    models.ListedAround: "global variable 'LISTED' (acting_models.py, line ",
    models.Decaying: "'p' of module 'drop', which changes from call to call: keep what results",
    models.CountingLate: "runs once, to be recorded, but there is attribute '_calls' of module 'itself', which changes",
    models.LikeLayersStill: "its 'kept_only' has a name that layers have for something of their own; call it otherwise",
    models.CompiledFunction: "calls what torch.compile made, whose calls are not seen; call it uncompiled",
    models.Thawed: "branches on 'steps', which changes: item gave 1 when it was cut",
    models.SpectralTwice: "weight.0._u', which changes and of which 2 layers have one each (call it once)",
    models.Synchronised: "module 'blocks.1.norm' is a SyncBatchNorm, which averages over all processes; give ",
    models.OwnGenerator: "randn draws from a torch.Generator of its own",
    models.LeftBehind: "a tensor () (blocks.0.penalty) is no output of its calls",
    models.Carried: "given a Carrier that holds what was computed of the batch, which no layer can hand on; give such",
    models.Taught: "weight 'blocks.0.slow.weight', which its forward changes (let it be a buffer)",
    models.Scattering: "index 2 is out of bounds for dimension 0 with size 2 (given 2 to 4 samples of each tensor)",
    models.MadeLate: "its forward makes buffer 'table', which is None before",
    models.Scripted: "module 'blocks.0' is compiled by torch.jit",
    models.Shapeless: "'weight' of module 'head' has no shape yet",
    models.ForwardReplaced: "ForwardReplaced.register.<locals>.<lambda>' in the place of that of module 'blocks.0'",
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_what_layers_cannot_do_is_refused_by_its_name(kind: Callable[[], nn.Module]):
    """Tests that the cause is named, and what to write instead, and that the model keeps its weights."""
    model = make(kind)
    with pytest.raises(ValueError, match="cannot be cut into layers") as refusal:
        cut(model)
    assert REFUSED[kind] in str(refusal.value)


@pytest.mark.parametrize("kind", [models.BySize, models.ByMode])
def test_microbatches_of_the_plan_are_tried(kind: Callable[[], nn.Module]):
    """Tests that a model that branches by the number of samples is refused for sizes that branch otherwise alone."""
    training = cut(make(kind))
    names = list(training.layers)
    training.batch.try_sizes([[(2, models.WIDTH)], [(4, models.WIDTH)]])
    for samples, is_alike in ((12, True), (24, False)):
        many = replace(training, batch=training.batch)
        many.batch.given = lambda number, samples=samples: tuple(
            torch.cat([each] * 2)[:samples] for each in batch(number)
        )
        if is_alike:
            prepare(plan_of(names, num_replicas=1), many)
        else:
            with pytest.raises(
                ValueError, match=r"given a microbatch of 8, acts otherwise than .* or plan microbatches of"
            ):
                prepare(plan_of(names, num_replicas=1), many)


def test_a_size_that_the_model_cannot_take_is_told():
    """Tests that what fails with one size only is named with its module, and that it is the size."""
    training = cut(make(models.Normed))
    with pytest.raises(
        ValueError, match=r"given a microbatch of 1, fails: .*Expected more than 1 value.*; plan microb"
    ):
        training.batch.try_sizes([[(1, models.WIDTH)]])


def test_offsets_are_not_cut_as_samples():
    """Tests that offsets of as many entries as there are samples are refused where there are several microbatches."""
    offsets = torch.tensor([0, 3, 5, 8])
    given = {"layers": {"a": nn.Identity, "b": nn.Identity}, "loss": functional.mse_loss, "optimizer": sgd}
    training = Training(**given, batch=lambda _: ((torch.ones(8, 3), offsets), torch.ones(8, 3)))
    with pytest.raises(
        ValueError, match=r"input 1 of the batch has whole numbers from 0 to 8, .* list the microbatches"
    ):
        prepare(make_random_plan("0 1", num_microbatches=4), training)


@pytest.mark.parametrize("kind", [models.Timed, models.Marked, models.Counted, models.Listed, models.Drawn])
def test_what_blocks_note_for_themselves_is_theirs(kind: type[nn.Module]):
    """Tests that values that never repeat, counters outside of modules and lists stay where all stands in blocks, and
    that nothing is said of what their copies do."""
    training = cut(make(lambda: models.Stack(kind)))
    assert len(training.layers) == 5
    assert training.not_compared == ()


def by_identity(model: nn.Module) -> Callable[[list[Any]], torch.optim.Optimizer]:
    kept = {id(each) for each in model.head.parameters()}
    return lambda given: torch.optim.SGD(
        [{"params": [each for each in given if (id(each) in kept) is is_kept]} for is_kept in (True, False)], lr=0.1
    )


def test_optimizers_go_by_what_they_are_given():
    """Tests that a factory is refused that looks for the model's own weights, or has them, and one by shape is not."""
    model = make(models.Stack)
    for factory in (by_identity(model), lambda _: torch.optim.SGD(model.parameters(), lr=0.1)):
        with pytest.raises(ValueError, match=r"goes by the weights of the model itself, .* or give `settings`"):
            Training.from_module(model, batch=batch, loss=functional.cross_entropy, optimizer=factory)
    names = {id(each): name for name, each in model.named_parameters()}
    with pytest.raises(ValueError, match=r"goes by the weights of the model itself, .* as often as it is called"):
        cut(model, optimizer=lambda given: torch.optim.SGD([each for each in given if names[id(each)]], lr=0.1))
    rates = dict.fromkeys(names, 0.5)
    with pytest.raises(ValueError, match=r"goes by the weights of the model itself"):
        cut(model, optimizer=lambda given: sgd([{"params": [each], "lr": rates.get(id(each), 0.1)} for each in given]))
    with pytest.raises(OwnCodeError, match=r"factory raised KeyError.*; let it group those that it is given"):
        cut(model, optimizer=lambda given: torch.optim.SGD([{}[id(each)] for each in given], lr=0.1))


def in_two_sets(given: list[Any]) -> torch.optim.Optimizer:
    matrices = {each for each in given if each.dim() > 1}
    for each in given:
        each.register_hook(torch.sign)
        each.register_post_accumulate_grad_hook(print)
    return torch.optim.SGD([{"params": list(matrices)}, {"params": list(set(given) - matrices)}], lr=0.1)


@pytest.mark.parametrize(
    "factory",
    [
        in_two_sets,
        lambda given: torch.optim.SGD([each for each in given if each.dim() > 1], lr=0.1),
        lambda given: torch.optim.SGD(sorted(given, key=id), lr=0.1),
    ],
)
@pytest.mark.parametrize("rank", ["0", "1"])
def test_factories_may_give_weights_in_any_order(factory: Any, rank: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that groups count and not their orders, that the model's weights keep no hooks, and that every process
    calls the factory as often."""
    model, calls = make(models.Stack), []
    monkeypatch.setenv("RANK", rank)
    assert cut(model, optimizer=lambda given: calls.append(1) or factory(given)).layers
    assert len(calls) == 2
    assert not any(each._backward_hooks or each._post_accumulate_grad_hooks for each in model.parameters())


@pytest.mark.parametrize("beside", [torch.ones(()), torch.eye(models.WIDTH), torch.tensor([0, 2, 4])])
def test_what_is_no_sample_is_no_input(beside: torch.Tensor):
    """Tests that single numbers, tables and offsets of packed sequences are refused, which would be cut as samples."""
    inputs, target = batch(0)
    with pytest.raises(ValueError, match=r"have .* samples along dimension 0 .* tables in buffers, .* position ids"):
        Training.from_module(
            make(models.Stack), batch=lambda _: ((inputs, beside), target), loss=functional.cross_entropy, optimizer=sgd
        )


@pytest.mark.parametrize("has_all", [True, False])
def test_weights_that_nobody_uses_come_from_the_file_if_it_has_them(tmp_path: Path, has_all: bool):
    """Tests that they are read, and that a file without them is not refused for that."""
    given = {name: tensor + 1.0 for name, tensor in make(models.Unused).state_dict().items()}
    if not has_all:
        del given["pooler.weight"]
    torch.save(given, tmp_path / "weights.bin")
    model = make(models.Unused)
    training = cut(model, weights=tmp_path / "weights.bin")
    made = make_layer(training, list(training.layers)[-1], device=CPU)
    assert torch.equal(made.state_dict()["pooler.bias"], given["pooler.bias"])
    assert torch.equal(made.state_dict()["pooler.weight"], given.get("pooler.weight", model.pooler.weight))
    assert [each.requires_grad for each in made.get_submodule("pooler").parameters()] == [False, False]


class Tempered(nn.Module):
    """A loss with a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output * self.temperature, target)


def weighed(far: torch.Tensor, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (functional.one_hot(target, 3) * output * far).mean()


@pytest.mark.parametrize(
    ("loss_of", "named"),
    [
        (lambda _: Tempered(), "temperature"),
        (lambda model: lambda o, y: functional.cross_entropy(o, y) + model.inp.weight.square().sum(), "inp.weight"),
        (lambda model: lambda o, y: functional.cross_entropy(o @ model.head.weight, y), "head.weight"),
        (lambda _: partial(weighed, torch.ones(3, requires_grad=True)), "a tensor (3,)"),
    ],
)
def test_a_loss_that_trains_more_than_the_model_is_refused(loss_of: Any, named: str):
    """Tests that weights of the loss, and of the model past its output, are named: no layer would train them so."""
    model = make(models.Stack)
    with pytest.raises(ValueError, match="beside what the model gives") as refusal:
        cut(model, loss=loss_of(model))
    assert f"its loss uses {named} beside" in str(refusal.value)
    model.requires_grad_(False)
    model.blocks[2].requires_grad_(True)
    frozen = cut(model, loss=lambda o, y: functional.cross_entropy(o, y) + model.inp.weight.square().sum())
    assert frozen.not_compared == ()


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (lambda o, y: functional.cross_entropy(o, y[:1]), "raised ValueError: Expected input batch_size"),
        (lambda o, y: (o @ y.float()).sum(), "raised RuntimeError: "),
        (lambda o, y: functional.cross_entropy(o, y, reduction="none"), "it gives torch.Size([2]), but has to"),
        (lambda _o, _y: 1.0, "it gives float, but has to give one number"),
    ],
)
def test_a_loss_that_fails_is_no_model_that_cannot_be_cut(loss: Any, reason: str):
    """Tests that what fails is called the loss, with the shapes of what it was given."""
    with pytest.raises(ValueError, match=r"^Stack: the loss of .* output \(2, 3\) and the target \(2,\)") as told:
        cut(make(models.Stack), loss=loss)
    assert reason in str(told.value)
    assert "cannot be cut" not in str(told.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", [models.Averaging, models.Clamped, models.Spectral, models.Twice, models.Drawing])
def test_shorter_types_are_not_refused_for_their_rounding(kind: Callable[[], nn.Module], dtype: torch.dtype):
    """Tests that tolerances are those of the type, and that what differs is still seen in float32."""
    if kind is models.Spectral and dtype is not torch.float32:
        pytest.skip("torch has no orthogonal matrices of this type")

    def short(number: int) -> Any:
        inputs, target = batch(number)
        return inputs.to(dtype), target

    assert cut(make(kind, dtype), batch=short).not_compared == ()
    if dtype is torch.float32 and kind is models.Twice:
        with pytest.raises(ValueError, match=r"NotedByHook\.note"):
            cut(make(models.NotedByHook, dtype), batch=short)


def test_everything_is_afterwards_what_it_was():
    """Tests that gradients, modes, flags, attributes and all random numbers come back, of a refused model as well."""
    for kind in (models.Averaging, models.Assigning, models.Wandering, models.Counting):
        model = make(kind)
        model.blocks[0].eval()
        model.head.weight.grad = torch.ones_like(model.head.weight)
        model.inp.requires_grad_(False)
        grad, buffers, state = model.head.weight.grad, dict(model.named_buffers()), copy.deepcopy(model.state_dict())
        random.seed(5)
        before = torch.get_rng_state(), random.getstate(), torch.are_deterministic_algorithms_enabled()
        with contextlib.suppress(ValueError):
            cut(model)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert (random.getstate(), torch.are_deterministic_algorithms_enabled()) == before[1:]
        assert model.head.weight.grad is grad
        assert torch.equal(grad, torch.ones_like(grad))
        assert all(buffers[path] is each for path, each in model.named_buffers())
        assert all(torch.equal(each, state[path]) for path, each in model.state_dict().items())
        assert "calls" not in vars(model)
        assert [part.training for part in model.blocks] == [False, True, True]
        assert [each.requires_grad for each in model.inp.parameters()] == [False, False]


def test_buffers_of_a_model_change_in_training_only():
    """Tests that layers in evaluation mode leave the averages that the model's forward notes as they are."""
    training = cut(make(models.Averaging))
    layers = {name: make_layer(training, name, device=CPU).eval() for name in training.layers}
    before = copy.deepcopy(state_of(layers))
    run_separately(layers, training.inputs, batch=[batch(0)[0]])
    assert all(torch.equal(value, before[path]) for path, value in state_of(layers).items())


class Deep(models.Stack):
    """Eight blocks, of which one is not like the others; wrong between them on demand."""

    is_wrong = False

    def register(self) -> None:
        self.blocks = nn.ModuleList(models.NormedBlock() if number == 5 else models.Block() for number in range(8))

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = block(x)
        if self.is_wrong:
            x.register_hook(torch.sign)
        return x + y


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(
    ("largest", "left_out"), [(10**9, []), (3000, [2, 3, 4, 6, 7]), (1500, [1, 2, 3, 4, 6, 7]), (9, None)]
)
def test_large_models_are_compared_at_reduced_depth(
    monkeypatch: pytest.MonkeyPatch, largest: int, left_out: list[int] | None, is_late: bool
):
    """Tests that two blocks of each kind are trained, or one, or that all is named as not compared; and that what is
    wrong between blocks is seen with few of them."""
    from planner.execute.model.cut import reduced_depth, whole_model

    reduce_model = partial(reduced_depth.reduce_model, largest=largest, most=largest)
    monkeypatch.setattr(whole_model, "reduce_model", reduce_model)

    def made() -> nn.Module:
        with deferred_init() if is_late else contextlib.nullcontext():
            return make(Deep)

    names = ["inp", "blocks", "head"] if left_out is None else [f"blocks.{number}" for number in left_out]
    assert list(cut(made()).not_compared) == names
    wrong = made()
    wrong.is_wrong = True
    refuses = contextlib.nullcontext() if left_out is None else pytest.raises(ValueError, match="sign' of a tensor")
    with refuses:
        cut(wrong)


def test_only_the_first_process_of_a_run_compares(monkeypatch: pytest.MonkeyPatch):
    """Tests that processes which make the same model again do not train it for a trial again."""
    for variables, expected in (
        ({}, True),
        ({"RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"RANK": "3", "LOCAL_RANK": "0"}, False),
        ({"LOCAL_RANK": "0"}, False),
        ({"PIPEPLAN_COMPARES": "0"}, False),
        ({"PIPEPLAN_COMPARES": "never"}, False),
    ):
        for name in ("RANK", "LOCAL_RANK", "PIPEPLAN_COMPARES"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert is_compared_here() == expected


def test_what_nobody_compares_is_named(monkeypatch: pytest.MonkeyPatch):
    """Tests that an estimate trains no model for a trial, so that even what differs passes, and says so of its parts;
    a process beside one that compares says nothing."""
    monkeypatch.setenv("PIPEPLAN_COMPARES", "never")
    assert cut(make(models.SpectralTwice)).not_compared == ("inp", "blocks", "head")
    monkeypatch.setenv("PIPEPLAN_COMPARES", "0")
    assert cut(make(models.SpectralTwice)).not_compared == ()


@pytest.mark.parametrize(
    ("kind", "more", "reason"),
    [
        (models.RowsHeld, {"num_replicas": 2}, "weight 'blocks.1.up.weight' has a hook"),
        (models.Between, {"num_replicas": 2}, "a tensor between blocks has a hook 'Between.step.<locals>.<lambda>'"),
        (models.RowsHeld, {"num_replicas": 2}, "each of 2 replicas has a part of a microbatch"),
        (models.Limited, {"num_replicas": 2}, "its forward hooks something to a gradient"),
        (models.ModuleHooks, {"num_replicas": 2}, "backward hook 'ModuleHooks.register.<locals>.<lambda>' of module"),
        (models.Rounded, {"num_replicas": 2}, ""),
        (models.Limited, {}, ""),
        (models.RowsHeld, {}, ""),
    ],
)
def test_hooks_see_whole_gradients_or_are_refused(kind: Any, more: dict[str, Any], reason: str):
    """Tests that a plan which would show a hook parts of a gradient is refused by name of the hook and its layer."""
    training = cut(make(kind))
    given = dict(more)
    plan = plan_of(list(training.layers), num_replicas=given.pop("num_replicas", 1))
    if not reason:
        prepare(plan, training, **given)
        return
    with pytest.raises(ValueError, match=r"layer 'blocks\.\d'|layer 'inp'") as refusal:
        prepare(plan, training, **given)
    assert reason in str(refusal.value)


def test_a_hook_on_a_weight_of_two_stages_is_refused():
    """Tests that a hook that would see a part of a tied weight's gradient is named, and is none within a stage."""

    def hooked() -> nn.Module:
        layer = nn.Linear(3, 3)
        layer.weight.register_hook(torch.sign)
        return layer

    training = Training(
        layers={"l0": hooked, "l1": lambda: nn.Linear(3, 3), "l2": nn.Tanh},
        loss=functional.mse_loss,
        batch=lambda number: (torch.ones(8, 3), torch.ones(8, 3)),
        optimizer=torch.optim.SGD,
        tied=(("l0:weight", "l1:weight"),),
    )
    prepare(make_random_plan("0 1", num_microbatches=2, cut=(2, 1)), training)
    with pytest.raises(
        ValueError, match=r"layer 'l0' of stage 0: weight 'weight' has a hook '.*sign', which would see a part"
    ):
        prepare(make_random_plan("0 1", num_microbatches=2, cut=(1, 2)), training)


def test_check_says_what_it_did(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Tests that `--check` needs no plan and trains nothing, and that a refusal is exit code 2 with the cause."""
    made = {"good": models.Rounded, "bad": models.AfterAccumulation}
    module = types.ModuleType("checked_models")
    for name, kind in made.items():
        setattr(module, name, partial(lambda kind: cut(make(kind)), kind))
    module.by_hand = lambda: replace(cut(make(models.Stack)), batch=batch)
    monkeypatch.setitem(sys.modules, "checked_models", module)
    ended = []
    monkeypatch.setattr(main_module, "refuse", ended.append)
    main_module.main(["--check", "--model", "checked_models:good"])
    assert "checked_models:good: 5 layers; trained beside the model as it is for two updates" in capsys.readouterr().err
    main_module.main(["--check", "--model", "checked_models:by_hand"])
    assert "there is no model as it is to compare them with" in capsys.readouterr().err
    main_module.main(["--check", "--model", "checked_models:bad"])
    main_module.main(["--model", "checked_models:good"])
    assert "post-accumulate-grad hook 'AfterAccumulation.shrink'" in ended[0]
    assert "no plan is given" in ended[1]


class CastBlock(models.Block):
    """What it gives is in bfloat16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.down(functional.gelu(self.up(self.norm(x))))


class Casting(models.Stack):
    """The whole forward under autocast, but for one block."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return super().forward(x)

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=block is not self.blocks[1]):
            return block(x if block is not self.blocks[1] else x.float())


class CastingBlocks(models.Stack):
    def __init__(self) -> None:
        super().__init__(CastBlock)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.float())


class CastForCards(models.Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.float16):
            return super().forward(x)


def single(number: int) -> Any:
    inputs, target = batch(number)
    return inputs.float(), target


def float_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.float(), target)


@pytest.mark.parametrize("kind", [Casting, CastingBlocks])
def test_layers_compute_under_the_autocast_of_the_model(kind: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch):
    """Tests that layers give to the bit what the model gives where its forward or a block turns autocast on and off,
    which is not what it gives in float32, and that without data they have the same types."""
    model = make(kind, torch.float32)
    training = cut(model, batch=single, loss=float_loss)
    layers = {name: make_layer(training, name, device=CPU) for name in training.layers}
    inputs, _ = single(0)
    found = run_separately(layers, training.inputs, batch=[inputs]).leaving
    assert torch.equal(found, model(inputs))
    empty = {name: make_layer(training, name, device=torch.device("meta")) for name in training.layers}
    told = {"": inputs.to("meta")}
    values = {"": inputs}
    for name, layer in layers.items():
        sources = training.inputs[name]
        told[name], values[name] = empty[name](*map(told.get, sources)), layer(*map(values.get, sources))
        assert (told[name].dtype, told[name].shape) == (values[name].dtype, values[name].shape)
    assert torch.bfloat16 in {each.dtype for each in values.values()}
    monkeypatch.setattr(torch.autocast, "__enter__", lambda _: None)
    monkeypatch.setattr(torch.autocast, "__exit__", lambda *_: None)
    monkeypatch.setattr(CastBlock, "forward", lambda self, x: self.down(functional.gelu(self.up(self.norm(x)))))
    assert not torch.equal(found, model(inputs))


class CastAsTheDevice(models.Stack):
    """Autocast that is not told what to compute in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type):
            return super().forward(x)


def test_autocast_takes_the_default_of_where_it_runs():
    """Tests that layers of a model whose autocast names no type compute in that of the device at the time of a run."""
    model = make(CastAsTheDevice, torch.float32)
    training = cut(model, batch=single, loss=float_loss)
    layers = {name: make_layer(training, name, device=CPU) for name in training.layers}
    inputs, default = single(0)[0], torch.get_autocast_dtype("cpu")
    found = {}
    for dtype in (default, torch.float16):
        torch.set_autocast_dtype("cpu", dtype)
        try:
            found[dtype] = run_separately(layers, training.inputs, batch=[inputs]).leaving
            assert torch.equal(found[dtype], model(inputs))
        finally:
            torch.set_autocast_dtype("cpu", default)
    assert not torch.equal(found[default], found[torch.float16])


class CastAsAround(models.Stack):
    """Autocast that is not told what to compute in, within one that is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.float16), torch.autocast(x.device.type):
            return super().forward(x)


def test_autocast_takes_the_type_of_the_one_around_it():
    """Tests that layers compute in the type that an outer autocast was told, where the inner one names none."""
    model = make(CastAsAround, torch.float32)
    training = cut(model, batch=single, loss=float_loss)
    layers = {name: make_layer(training, name, device=CPU) for name in training.layers}
    assert torch.equal(run_separately(layers, training.inputs, batch=[single(0)[0]]).leaving, model(single(0)[0]))


class CastTwice(models.Stack):
    """A weight that one autocast casts once for two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[2].up.weight = self.blocks[0].up.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=self.is_cached):
            return super().forward(x)

    is_cached = True


class CastEachTime(CastTwice):
    is_cached = False


def test_a_weight_that_autocast_casts_once_is_named():
    """Tests that gradients which autocast adds up in its own type are told as such, and that the remedy is one."""
    with pytest.raises(ValueError, match="autocast, which casts a weight once for all its uses"):
        cut(make(CastTwice, torch.float32), batch=single, loss=float_loss)
    assert cut(make(CastEachTime, torch.float32), batch=single, loss=float_loss).tied


class Pictures(nn.Module):
    """A convolution that begins with rows, and a block behind which channels lie last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.LayerNorm(4)
        self.blocks = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.head = nn.Linear(4, models.CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.head(x.mean((2, 3)))


def test_layers_without_data_lie_as_with_it():
    """Tests that what a cut model's layers give without data has the order of memory that it has in a run."""
    training = cut(make(Pictures, torch.float32), batch=lambda number: (torch.ones(12, 3, 6, 6), batch(number)[1]))
    told = torch.ones(4, 3, 6, 6, device="meta")
    values = torch.ones(4, 3, 6, 6)
    seen = []
    for name in training.layers:
        told = make_layer(training, name, device=torch.device("meta"))(told)
        values = make_layer(training, name, device=CPU)(values)
        assert order_of(told) == order_of(values), name
        seen.append(order_of(values))
    assert torch.channels_last in seen


def test_autocast_for_another_device_is_refused(monkeypatch: pytest.MonkeyPatch):
    """Tests that a forward which casts on cards is not cut on a host, where nothing shows what it would cast."""
    monkeypatch.setattr(torch.amp.autocast_mode, "is_autocast_available", lambda _: True)
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    with pytest.raises(ValueError, match=r"casts on cuda only; write torch.autocast\(x.device.type"):
        cut(make(CastForCards, torch.float32), batch=single)


class Scoring(models.Stack):
    """Gives its own loss, of a second target."""

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> Any:
        found = super().forward(x)
        return {"logits": found, "loss": functional.mse_loss(found.sum(-1), wanted)}


def test_a_loss_may_be_what_the_model_gives():
    """Tests that a loss which hands on what the model computed is the model's."""
    training = cut(
        make(Scoring),
        batch=lambda number: ((batch(number)[0], batch(number)[0][:, 0]), batch(number)[1]),
        loss=lambda output, _: output["loss"],
    )
    layers = {name: make_layer(training, name, device=CPU) for name in training.layers}
    inputs, target = training.batch(0)
    found = training.loss(run_separately(layers, training.inputs, batch=inputs).leaving, target)
    assert torch.equal(found, make(Scoring)(*inputs)["loss"])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ((torch.ones(4, 1), {"a": torch.ones(4)}), "the target is a dict; give (inputs, target) with one tensor"),
        ((torch.ones(4, 1), (torch.ones(4), torch.ones(4))), "the target is a tuple; give (inputs, target) with one"),
        (
            (torch.ones(4, 1), torch.ones(4), torch.ones(4)),
            "the batch is a tuple; give (inputs, target), inputs as one tuple",
        ),
        ({"x": torch.ones(4)}, "the target is a NoneType; give (inputs, target) with one tensor, or 'labels' by name"),
    ],
)
def test_batches_of_another_form_are_refused(given: Any, reason: str):
    """Tests that what is wrong is named: several targets, or inputs that are not together."""
    with pytest.raises(ValueError, match=r"give \(inputs, target\)") as refusal:
        cut(make(models.Stack), batch=lambda _: given)
    assert reason in str(refusal.value)


@pytest.mark.parametrize("place", ["itself", "blocks.1"])
def test_wrappers_of_torch_compile_are_refused(place: str):
    """Tests that the module which `torch.compile` returns is known, whole or as a block."""
    model = make(models.Stack)
    if place == "itself":
        model = torch.compile(model, backend="eager")
    else:
        model.blocks[1] = torch.compile(model.blocks[1], backend="eager")
    with pytest.raises(ValueError, match=f"module '{place}' is wrapped by torch.compile; give it as it was before"):
        cut(model)


FACTOR = {"of": 1.0}
STEP = 0


class ReadingAround(models.Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * FACTOR["of"] + STEP)


def of_number(number: int) -> None:
    FACTOR["of"] = 1.0 + number


def set_step(number: int) -> None:
    global STEP
    STEP = number


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (of_number, "'FACTOR'"),
        (set_step, "'STEP'"),
        (None, "'p' of module 'blocks.1.drop'"),
        ("freeze", "requires_grad of '"),
    ],
)
def test_batches_change_nothing_that_the_model_reads(change: Any, named: str):
    """Tests that numbers outside of the model, and attributes of its modules, that come with a batch are named."""
    model = make(ReadingAround)
    model.blocks[1].drop = nn.Dropout(0.0)

    def changing(number: int) -> Any:
        if change is None:
            model.blocks[1].drop.p = 0.5 * number
        elif change == "freeze":
            next(model.parameters()).requires_grad_(number == 0)
        else:
            change(number)
        return batch(number)

    training = cut(model, batch=changing)
    training.batch(0)
    with pytest.raises(ValueError, match=f"comes with a change of .*{named}.* one more tensor of the batch"):
        training.batch(1)

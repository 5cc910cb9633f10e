"""Models that act otherwise backward than forward: cut exactly, or refused by the name of the cause."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from planner.execute.cut.comparison import run_apart  # noqa: E402
from planner.execute.deferred import make_deferring  # noqa: E402
from planner.execute.stage_module import make_layer  # noqa: E402
from planner.execute.training import Training  # noqa: E402
from tests.planner.execute import acting_models as models  # noqa: E402

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
            run = run_apart(layers, training.inputs, batch=[inputs])
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


def state_of(layers: dict[str, nn.Module]) -> dict[str, torch.Tensor]:
    return {path: each for layer in layers.values() for path, each in layer.state_dict().items()}


EXACT = (
    models.Rounded,
    models.Reversed,
    models.Stepped,
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
    models.Teacher: "'slow.weight'",
    models.Counting: "attribute 'calls', which changes from call to call",
    models.Functional: "blocks.0 is called with another tensor for its weight 'norm.weight'",
    models.SparseTable: "words is an Embedding with sparse=True",
    models.SparseFunction: "the gradient of 'words.weight' is sparse",
    models.Wandering: "random numbers of Python's",
    models.OwnGenerator: "randn draws from a torch.Generator of its own",
    models.LeftBehind: "comes out of none of its calls",
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_what_layers_cannot_do_is_refused_by_its_name(kind: Callable[[], nn.Module]):
    """Tests that the cause is named, and what to write instead, and that the model keeps its weights."""
    model = make(kind)
    with pytest.raises(ValueError, match="cannot be cut into layers") as refusal:
        cut(model)
    assert REFUSED[kind] in str(refusal.value)

"""Models that train otherwise in microbatches of another size, found by kind and by comparison."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from planner.execute.model.layer_alone import make_deferring  # noqa: E402
from profiles.measure.clocks import Samples  # noqa: E402
from profiles.measure.measure_layers import Survey, survey_model  # noqa: E402
from profiles.measure.memory import LayerMemory  # noqa: E402
from profiles.measure.model import Model  # noqa: E402
from profiles.measure.segment import MeasuringEffort  # noqa: E402

LABELS = torch.tensor([[1, 2, 3], [1, 2, 0], [2, -100, -100], [3, 1, 2]])


def tokens(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def make_model(loss: Callable[..., torch.Tensor], target: torch.Tensor, *, loss_is_sum: bool = False) -> Model:
    return Model(
        layers={"a": lambda: nn.Linear(5, 4)},
        loss=loss,
        batch=lambda _: (torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1)), target),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        loss_is_sum=loss_is_sum,
    )


class Store:
    """Puts nothing off."""

    is_deferring = is_noting = False

    def take(self) -> Callable[[], None]:
        return lambda: None

    def recompute(self, *inputs: torch.Tensor) -> object:
        raise AssertionError("nothing recomputes here")

    def find_memory(self, *inputs: torch.Tensor) -> str:
        return ""


@pytest.mark.parametrize(
    ("curve", "asked", "interpolated"),
    [
        (lambda size: 1_000_000 + 50_000 * size, [[2, 1], [16]], (4, 8)),
        (lambda size: 1_000_000 * (size // 4 + 1), [[2, 1], [16], [4, 8]], ()),
        (lambda size: 10**9 * size, [[2, 1], [4]], ()),  # beyond a device's share it would take long
    ],
)
def test_processes_time_bent_sizes_only(
    curve: Callable[[int], int], asked: list[list[int]], interpolated: tuple[int, ...]
):
    """Tests that processes are asked for own size and smallest, then the largest, then for what is not straight."""
    calls: list[dict[int, int]] = []

    def crowd(takes: Mapping[str, tuple[str, ...]], rounds: Mapping[int, int]) -> dict[int, dict[str, Samples]]:
        calls.append(dict(rounds))
        return {size: {name: {"F": [(curve(size),) * 2]} for name in takes} for size in rounds}

    survey = Survey(
        microbatch_sizes=(2, 1, 4, 8, 16), share=4, busy_processes=2, effort=MeasuringEffort(repetitions=10)
    )
    model = make_model(tokens, LABELS.clamp(min=0))
    found = survey_model(model, survey, defer=lambda _: Store(), crowd=crowd)
    assert [list(call) for call in calls if call] == asked
    assert calls[0] == {2: 5, 1: 5}
    assert found.interpolated == interpolated
    assert all(found.records["a", size, 1].timings["F"].ns == curve(size) for call in calls for size in call)


def frozen() -> nn.Module:
    return nn.Linear(4, 4).requires_grad_(False)


class Detached(nn.Module):
    """Weights that want gradients, and none that goes further back."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).detach()


@pytest.mark.parametrize(
    ("layers", "loss", "trains"),
    [
        ([frozen, frozen], tokens, False),
        ([lambda: nn.Linear(4, 4), Detached], tokens, False),
        ([Detached], lambda output, target: tokens(output.detach(), target), False),
        ([nn.ReLU, nn.Tanh], tokens, False),
        ([Detached, lambda: nn.Linear(4, 4), frozen], tokens, True),
    ],
)
def test_models_in_which_nothing_trains(
    layers: list[Callable[[], nn.Module]], loss: Callable[..., torch.Tensor], trains: bool
):
    """Tests that a model is refused whose loss has no gradient to send back, and that one trained layer suffices."""
    model = Model(
        layers={f"layer{number}": make for number, make in enumerate(layers)},
        loss=loss,
        batch=lambda _: (torch.ones(4, 3, 4), LABELS.clamp(min=0)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    )
    survey = Survey(microbatch_sizes=(2,), effort=MeasuringEffort(repetitions=1, warm_up=0))
    if trains:
        assert survey_model(model, survey, defer=make_deferring).records
        return
    with pytest.raises(ValueError, match="no gradient goes back from its loss, so nothing trains; let weights"):
        survey_model(model, survey, defer=make_deferring)


class Adjacent(nn.Module):
    """Mixes features by a sparse matrix that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        indices, values = torch.arange(4).repeat(2, 1), torch.ones(4)
        self.register_buffer("graph", torch.sparse_coo_tensor(indices, values, (4, 4)))


class Thinning(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).to_sparse()


class Table(nn.Embedding):
    """Looks up by what rounds to a row."""

    def __init__(self) -> None:
        super().__init__(10, 4, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x[:, 0].abs().long().clamp(max=9))


def survey_sparse(
    make: Callable[[], nn.Module], *, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD, form: str = "to_dense"
) -> None:
    """A linear layer, one that may be sparse, and one more."""
    model = Model(
        layers={"first": lambda: nn.Linear(4, 4), "middle": make, "last": lambda: nn.Linear(4, 4)},
        loss=lambda output, _: output.square().mean(),
        batch=lambda _: (getattr(torch.eye(4), form)(), torch.ones(4)),
        optimizer=lambda parameters: optimizer(parameters, lr=0.1),
    )
    calls: list[str] = []

    def defer(module: nn.Module) -> Any:
        calls.append(type(module).__name__)
        return make_deferring(module)

    survey = Survey(microbatch_sizes=(2,), effort=MeasuringEffort(repetitions=1, warm_up=0))
    try:
        survey_model(model, survey, defer=defer)
    except ValueError as error:
        error.add_note(f"{len(calls)} run")
        raise


@pytest.mark.parametrize(
    ("make", "optimizer", "form", "message"),
    [
        (Table, torch.optim.Adam, "to_dense", r"'middle': the gradient of 'its table' is of layout .*set sparse=False"),
        (Table, torch.optim.LBFGS, "to_dense", r"'middle': .*closure.*give another optimizer"),
        (Table, torch.optim.SparseAdam, "to_dense", r"SparseAdam does not support dense .*set sparse=False"),
        (Adjacent, torch.optim.SGD, "to_dense", r"'middle': buffer 'graph' is of layout torch.sparse_coo.*to_dense"),
        (nn.ReLU, torch.optim.SGD, "to_sparse", r"layout torch.sparse_coo cannot be passed.*to_dense"),
        (nn.ReLU, torch.optim.SGD, "to_sparse_csr", r"layout torch.sparse_csr cannot be passed.*to_dense"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_that_nothing_carries(
    make: Callable[[], nn.Module], optimizer: type[torch.optim.Optimizer], form: str, message: str
):
    """Tests that each is refused by layer, layout and remedy before any layer is run."""
    with pytest.raises(ValueError, match=message) as refusal:
        survey_sparse(make, optimizer=optimizer, form=form)
    assert refusal.value.__notes__ == ["0 run"]


def test_a_layer_that_gives_a_sparse_tensor():
    """Tests that it is refused by its name."""
    with pytest.raises(ValueError, match=r"'middle' .*layout torch.sparse_coo cannot be passed between layers; give"):
        survey_sparse(lambda: Thinning(4, 4))


def test_sparse_gradients_are_measured():
    """Tests that an optimizer that takes them both ways is no reason to refuse."""
    survey_sparse(Table)


@pytest.mark.parametrize("memory_bytes", [10**9, 150_000])
def test_more_samples_tell_of_workspaces(monkeypatch: pytest.MonkeyPatch, memory_bytes: int):
    """Tests that a head's workspace, a weight's gradient with few samples and logits with many, is foreseen for a
    device's share; and that nothing stays of it where there is no room to see.
    """

    def count(segment: Any) -> int:
        return LayerMemory(segment).workspace

    monkeypatch.setattr("profiles.measure.measure_layers._least_workspace", count)
    monkeypatch.setattr("profiles.measure.measure_layers.free_bytes", lambda _: memory_bytes)
    inputs = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    model = Model(
        layers={"head": lambda: nn.Linear(64, 128)},
        loss=functional.cross_entropy,
        batch=lambda _: (inputs, torch.zeros(64, dtype=torch.int64)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    )

    def measure(size: int, *, share: int) -> Any:
        survey = Survey(microbatch_sizes=(size,), share=share, effort=MeasuringEffort(repetitions=1, warm_up=0))
        return survey_model(model, survey, defer=make_deferring).records["head", size, 1]

    small, whole = measure(8, share=512), measure(512, share=512)
    if memory_bytes < 10**9:
        assert (small.is_measured, small.sizes.fixed_workspace) == (True, 0)
        return
    foreseen = small.sizes.fixed_workspace + 64 * (small.sizes.workspace - small.sizes.fixed_workspace)
    assert whole.sizes.workspace <= foreseen < 1.05 * whole.sizes.workspace
    assert small.sizes.workspace >= 4 * 64 * 128


@pytest.mark.parametrize(
    ("here", "more", "found"),
    [
        (40, 40, (40, 40)),  # a weight's gradient, all of it
        (40, 160, (40, 0)),  # samples, all of it
        (40, 100, (40, 20)),
        (40, 200, (50, 0)),  # the larger of both: what weights take here, what samples take there
        (40, 30, (40, 40)),
    ],
)
def test_workspaces_hold_what_was_measured_of_both_sizes(
    monkeypatch: pytest.MonkeyPatch, here: int, more: int, found: tuple[int, int]
):
    """Tests that the part that stays and the part that grows add up to no less at either size."""
    monkeypatch.setattr(
        "profiles.measure.measure_layers._least_workspace", lambda segment: {2: here, 8: more}[len(segment.inputs[0])]
    )
    survey = Survey(microbatch_sizes=(2,), share=8, effort=MeasuringEffort(repetitions=1, warm_up=0))
    model = make_model(tokens, LABELS.clamp(min=0))
    sizes = survey_model(model, survey, defer=make_deferring).records["a", 2, 1].sizes
    assert (sizes.workspace, sizes.fixed_workspace) == found
    assert sizes.fixed_workspace + 4 * (sizes.workspace - sizes.fixed_workspace) >= more


class Limited(nn.Linear):
    """Takes no more than two samples."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        assert len(inputs) <= 2, "too many"
        return super().forward(inputs)


class WithTable(nn.Module):
    """Gives what belongs to no sample before its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(7, 5))

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.table * 1, inputs


class Adding(nn.Linear):
    """Takes both."""

    def forward(self, table: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs + table.mean(0))


def strict_tokens(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    assert len(target) == 2, "too many"
    return functional.cross_entropy(output.flatten(0, -2), target.flatten())


def flat_tokens(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output, target.flatten())


@pytest.mark.parametrize(
    ("layers", "loss", "largest"),
    [
        ({"a": lambda: Limited(5, 4)}, tokens, 2),
        ({"a": lambda: nn.Linear(5, 4)}, strict_tokens, 2),
        ({"a": nn.Identity, "b": lambda: nn.Sequential(nn.Linear(5, 4), nn.Flatten(0, 1))}, flat_tokens, 8),
        ({"a": lambda: nn.Flatten(0, 1), "b": lambda: nn.Linear(5, 4)}, flat_tokens, 24),
        ({"a": WithTable, "b": lambda: Adding(5, 4)}, tokens, 8),
    ],
)
def test_layers_that_are_tried_with_more_samples(
    monkeypatch: pytest.MonkeyPatch,
    layers: dict[str, Callable[[], nn.Module]],
    loss: Callable[..., torch.Tensor],
    largest: int,
) -> None:
    """Tests that one that asserts how many it is given is measured all the same, and that tokens as samples, or a table
    before samples, hide none: the most that a last layer could be run with is as often as many.
    """
    ran = list[int]()

    def least(segment: Any) -> int:
        workspace = LayerMemory(segment).workspace
        ran.append(len(segment.inputs[-1]))
        return workspace

    monkeypatch.setattr("profiles.measure.measure_layers._least_workspace", least)
    model = replace(make_model(loss, LABELS.clamp(min=0)), layers=layers)
    survey = Survey(microbatch_sizes=(2,), share=8, effort=MeasuringEffort(repetitions=1, warm_up=0))
    found = survey_model(model, survey, defer=make_deferring).records
    assert all(record.is_measured for record in found.values())
    assert ran[-1] == largest

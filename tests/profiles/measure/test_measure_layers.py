"""Models that train otherwise in microbatches of another size, found by kind and by comparison."""

from collections.abc import Callable, Mapping

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from planner.execute.model.layer_alone import make_deferring  # noqa: E402
from profiles.measure.clocks import Samples  # noqa: E402
from profiles.measure.measure_layers import Survey, survey_model  # noqa: E402
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

"""Models that train otherwise in microbatches of another size, found by kind and by comparison."""

from collections.abc import Callable, Mapping

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from profiles.measure.clocks import Samples  # noqa: E402
from profiles.measure.materialise import is_batch_norm, is_uneven_loss  # noqa: E402
from profiles.measure.measure_layers import Survey, survey_model  # noqa: E402
from profiles.measure.model import Model  # noqa: E402
from profiles.measure.segment import MeasuringEffort  # noqa: E402

LABELS = torch.tensor([[1, 2, 3], [1, 2, 0], [2, -100, -100], [3, 1, 2]])


def tokens(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def summed(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum")


def contrastive(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Every sample against all others of the batch."""
    flat = output.flatten(1)
    return functional.cross_entropy(flat @ flat.T, torch.arange(len(flat)))


def make_model(loss: Callable[..., torch.Tensor], target: torch.Tensor, *, loss_is_sum: bool = False) -> Model:
    return Model(
        layers={"a": lambda: nn.Linear(5, 4)},
        loss=loss,
        batch=lambda _: (torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1)), target),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        loss_is_sum=loss_is_sum,
    )


@pytest.mark.parametrize(
    ("loss", "target", "is_sum", "is_uneven"),
    [
        (tokens, LABELS, False, True),
        (tokens, LABELS.clamp(min=0), False, False),
        (summed, LABELS, True, False),
        (summed, LABELS, False, True),
        (tokens, LABELS.clamp(min=0), True, True),
        (contrastive, LABELS, False, True),
        (lambda y, t: (y - t.float().unsqueeze(-1)).square().mean(), LABELS, False, False),
        (lambda y, t: functional.mse_loss(y.sum(-1), t.float()), LABELS, False, False),
    ],
)
def test_losses_that_are_no_mean(
    loss: Callable[..., torch.Tensor], target: torch.Tensor, is_sum: bool, is_uneven: bool
):
    """Tests that a loss weighted by tokens, or by other samples, is told from a mean and from a sum that says so."""
    model = make_model(loss, target, loss_is_sum=is_sum)
    torch.manual_seed(0)
    assert is_uneven_loss(model, nn.Linear(5, 4), inputs=(model.batch(0)[0],)) is is_uneven


def test_batch_norms_are_known_by_kind():
    """Tests that those count that see a microbatch's statistics, and neither frozen nor per-sample norms."""
    kinds = (nn.BatchNorm1d(2), nn.BatchNorm3d(2), nn.SyncBatchNorm(2), nn.BatchNorm2d(2).eval(), nn.GroupNorm(1, 2))
    assert [is_batch_norm(kind) for kind in kinds] == [True, True, True, False, False]


class Store:
    """Puts nothing off."""

    is_deferring = is_noting = False

    def take(self) -> Callable[[], None]:
        return lambda: None


def test_sizes_in_between_are_left_out():
    """Tests that of open sizes the ends and one more are measured, that those too large are not, and what depends."""
    model = make_model(tokens, LABELS.clamp(min=0))
    survey = Survey(
        microbatch_sizes=(2, 1, 4, 8, 16, 2**40),
        share=4,
        memory_bytes=2**30,
        effort=MeasuringEffort(repetitions=3, warm_up=0, seconds=1),
        recomputes=False,
    )

    found = survey_model(model, survey, defer=lambda _: Store())
    assert found.survey.microbatch_sizes[0] == 2
    assert {*found.survey.microbatch_sizes, *found.interpolated} == {1, 2, 4, 8, 16}
    assert {1, 2, 16} <= set(found.survey.microbatch_sizes)
    assert {size for _, size, _ in found.records} == set(found.survey.microbatch_sizes)
    assert (found.batch_norm, found.uneven_loss) == ("", False)


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
    assert all(found.records["a", size, 1].timings["F"].wall_ns == curve(size) for call in calls for size in call)

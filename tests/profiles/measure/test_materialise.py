"""Tests of profiles/measure/materialise.py."""

from collections.abc import Callable

import pytest

from tests.profiles.measure.test_measure_layers import LABELS, make_model, tokens

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from planner.execute.model.layer_alone import make_deferring  # noqa: E402
from profiles.measure.materialise import (  # noqa: E402
    find_cut_dependence,
    is_batch_norm,
    is_uneven_loss,
    other_samples,
)
from profiles.measure.segment import Segment  # noqa: E402


def summed(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum")


def contrastive(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Every sample against all others of the batch."""
    flat = output.flatten(1)
    return functional.cross_entropy(flat @ flat.T, torch.arange(len(flat)))


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


class Compared(nn.Module):
    """Gives of each sample how like every other it is, as contrastive losses take it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A row as long as there are samples."""
        return x @ x.T


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Balanced(nn.Linear):
    """Gives a number of the whole microbatch, too."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        y = super().forward(x)
        return y, y.softmax(-1).mean(0).square().sum()


class Largest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.largest = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.largest = max(self.largest, float(x.abs().max()))
        return x / self.largest


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.BatchNorm1d(6), nn.Dropout(0.5))


@pytest.mark.parametrize("samples", [1, 2, 6])
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Centred, "gives a sample something else beside other samples"),
        (lambda: Balanced(6, 6), "gives a sample something else beside other samples"),
        (Compared, "gives a sample something else beside other samples"),
        (Largest, "remembers microbatches (its attribute 'largest')"),
        (nn.RReLU, ""),
        (plain, ""),
    ],
)
def test_layers_that_mix_samples_or_remember_them_are_known(make: Callable[[], nn.Module], reason: str, samples: int):
    """Tests that a layer is known whose results depend on other samples beside or before, and that norms, dropouts and
    other random numbers are not mistaken for that.
    """
    torch.manual_seed(0)
    module, inputs = make(), (torch.randn(samples, 6),)
    if samples == 1 and make is plain:
        module.eval()
    segment = Segment(module, inputs, wants=(True,), waiting=make_deferring(module))
    modes = [part.training for part in module.modules()]
    assert find_cut_dependence(segment) == reason
    assert [part.training for part in module.modules()] == modes


def test_samples_are_repeated_as_often_as_is_said():
    """Tests that rows of samples are, and what has no sample per row stays as it is."""
    own, other, (tokens, bias) = other_samples((torch.ones(2, 3, dtype=torch.int64), torch.ones(1, 4)), times=4)
    assert (own, other, tokens.shape, bias.shape) == (2, 8, (8, 3), (1, 4))
    assert other_samples((torch.ones(1, 2),), times=3)[2][0].tolist() == [[1, 1], [1.5, 1.5], [1.5, 1.5]]
    own, _, (table, hidden) = other_samples((torch.ones(7, 3), torch.ones(2, 3)), times=4, likely=2)
    assert (own, table.shape, hidden.shape) == (2, (7, 3), (8, 3))
    assert other_samples((torch.ones(6, 3),), times=4, likely=2)[1] == 24


def test_other_samples_are_half_of_them_or_two():
    """Tests that what has no sample per row stays as it is."""
    own, other, (x, bias) = other_samples((torch.ones(6, 2), torch.ones(1, 4)))
    assert (own, other, len(x), len(bias)) == (6, 3, 3, 1)
    assert [each if isinstance(each, int) else len(each[0]) for each in other_samples((torch.ones(1, 2),))] == [1, 2, 2]

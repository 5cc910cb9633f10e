"""Tests of profiles/measure/materialise.py."""

from collections.abc import Callable

import pytest

from tests.profiles.measure.test_measure_layers import LABELS, make_model, tokens

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from profiles.measure.materialise import is_batch_norm, is_uneven_loss  # noqa: E402


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

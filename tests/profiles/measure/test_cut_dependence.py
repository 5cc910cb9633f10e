"""Layers whose results depend on how a batch is cut."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from planner.execute.model.layer_alone import make_deferring
from profiles.measure.cut_dependence import find_cut_dependence, other_samples
from profiles.measure.segment import Segment


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


def test_other_samples_are_half_of_them_or_two():
    """Tests that what has no sample per row stays as it is."""
    own, other, (x, bias) = other_samples((torch.ones(6, 2), torch.ones(1, 4)))
    assert (own, other, len(x), len(bias)) == (6, 3, 3, 1)
    assert [each if isinstance(each, int) else len(each[0]) for each in other_samples((torch.ones(1, 2),))] == [1, 2, 2]

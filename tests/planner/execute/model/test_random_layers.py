"""Which layers may take random numbers."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from planner.execute.model.random_layers import may_draw, takes_none
from planner.execute.training import Training


class Own(nn.Module):
    """Somebody's, of whom nothing is known."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def patched() -> nn.Module:
    layer = nn.ReLU()
    layer.forward = functional.dropout  # type: ignore[method-assign]
    return layer


def hooked() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize(
    ("layer", "may"),
    [
        (nn.Linear(2, 2), False),
        (nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.ReLU(), nn.MaxPool2d(1), nn.Flatten()), False),
        (nn.Embedding(2, 2), False),
        (nn.Dropout(0.1), True),
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout2d(0.1)), True),
        (nn.RReLU(), True),
        (nn.MultiheadAttention(2, 1, dropout=0.1), True),
        (nn.FractionalMaxPool2d(1, output_size=1), True),
        (nn.LSTM(2, 2, num_layers=2, dropout=0.1), True),
        (parametrizations.spectral_norm(nn.Linear(2, 2)), True),
        (Own(), True),
        (nn.Sequential(nn.ReLU(), Own()), True),
        (patched(), True),
        (hooked(), True),
    ],
)
def test_torchs_own_layers_that_take_none_are_known(layer: nn.Module, may: bool):
    """Tests that only these are, and not those whose forward, class or hooks are somebody else's."""
    assert may_draw(layer) is may


class Noisy(nn.Module):
    """Takes random numbers between its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(functional.dropout(self.first(x), 0.5) + functional.gelu(x))


def test_layers_of_a_cut_model_are_what_their_calls_are():
    """Tests that a call of dropout between two modules counts, and that the modules beside it do not."""
    training = Training.from_module(
        nn.Sequential(nn.Linear(4, 4), Noisy(), nn.Tanh()),
        batch=lambda _: (torch.ones(4, 4), torch.ones(4, 4)),
        loss=functional.mse_loss,
        optimizer=torch.optim.SGD,
    )
    found = [may_draw(make()) for make in training.layers.values()]
    assert found[0] is found[-1] is False
    assert any(found)


@pytest.mark.parametrize(
    ("loss", "is_known"),
    [
        (functional.cross_entropy, True),
        (functional.mse_loss, True),
        (functional.dropout, False),
        (lambda y, t: (y - t).sum(), False),
        (nn.CrossEntropyLoss(), False),
    ],
)
def test_losses_of_torch_take_none(loss: object, is_known: bool):
    """Tests that a loss is only known to take none where it is a function of torch's."""
    assert takes_none(loss) is is_known

"""What an estimate counts of kernels that torch's own counter does not know."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from planner.execute.model.layer_alone import make_deferring
from profiles.estimates.analytic import DeviceSheet
from profiles.measure.estimate import count_layer
from profiles.measure.model import Model, Tensors

SAMPLES, LENGTH, WIDTH, EXPERTS = 2, 16, 32, 4
TOKENS = SAMPLES * LENGTH
SHEET = DeviceSheet(name="computes only", operations_per_s=10**9, achieved_percent=100, bandwidth_bytes_per_s=10**15)


class Recurrent(nn.Module):
    """Two layers in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.lstm(given)[0]
        return output


class Experts(nn.Module):
    """One product for each expert and its part of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(EXPERTS, WIDTH, 2 * WIDTH, dtype=torch.bfloat16))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        ends = torch.arange(1, EXPERTS + 1, dtype=torch.int32) * (TOKENS // EXPERTS)
        return nn.functional.grouped_mm(given.flatten(0, 1).bfloat16(), self.weight, offs=ends)


class Whole:
    """A layer whose backward is not split."""

    is_deferring = is_noting = False

    def take(self) -> Callable[[], None]:
        return lambda: None

    def recompute(self, *inputs: torch.Tensor) -> object:
        raise AssertionError("nothing recomputes here")


def no_loss(*_: object) -> torch.Tensor:
    raise AssertionError("a loss is not asked for")


def no_batch(_: int) -> tuple[Tensors, torch.Tensor]:
    raise AssertionError("a batch is not asked for")


@pytest.mark.parametrize(
    ("layer", "weights"),
    [
        (Recurrent, 2 * (4 * WIDTH * WIDTH + 4 * WIDTH * WIDTH) + 2 * (4 * WIDTH * 2 * WIDTH + 4 * WIDTH * WIDTH)),
        (Experts, WIDTH * 2 * WIDTH),
    ],
)
def test_kernels_without_a_formula_of_torch_are_counted(layer: type[nn.Module], weights: int):
    """Tests that each token meets each weight that it uses once forward and twice backward."""
    model = Model(
        layers={"a": layer},
        loss=no_loss,
        batch=no_batch,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    )
    given = torch.zeros(SAMPLES, LENGTH, WIDTH, requires_grad=True)
    make = count_layer(model, "a", inputs=(given,), defer=lambda _: Whole(), dtype=None, loss=None, capability=None)
    record = make(SHEET, "a test")
    assert record.timings["F"].ns == 2 * TOKENS * weights
    assert record.timings["B"].ns == 4 * TOKENS * weights


def test_what_cannot_be_split_is_told():
    """Tests that an estimate names the module whose weights get their gradients in I, as a measurement does."""
    model = Model(
        layers={"rows": Recurrent, "plain": lambda: nn.Linear(WIDTH, WIDTH)},
        loss=no_loss,
        batch=no_batch,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    )
    given = torch.zeros(SAMPLES, LENGTH, WIDTH, requires_grad=True)
    told = [
        count_layer(model, name, inputs=(given,), defer=make_deferring, dtype=None, loss=None, capability=None)(
            SHEET, "a test"
        ).unsplit
        for name in ("rows", "plain")
    ]
    assert told == ["torch.nn.modules.rnn.LSTM", ""]

"""From gradients to weights, on one process."""

import pytest
import torch
from torch import nn

from planner.execute.parallel.update import Update
from planner.execute.training import Training


def make_update(*grads: torch.Tensor | None) -> Update:
    parameters = [nn.Parameter(torch.ones(3 if grad is None else len(grad))) for grad in grads]
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad
    training = Training(
        layers={"a": nn.Identity},
        loss=lambda y, t: (y - t).sum(),
        batch=lambda _: (torch.ones(1, 3), torch.ones(1, 3)),
        optimizer=lambda given: torch.optim.SGD(given, lr=0.1),
    )
    named = [(f"a:{number}", parameter) for number, parameter in enumerate(parameters)]
    return Update(training, named, counted=parameters, device=torch.device("cpu"))


@pytest.mark.parametrize("num_others", [1, 2**18])
@pytest.mark.parametrize(
    ("values", "is_finite"),
    [
        ((1.0, -2.0, 0.0), True),
        ((3e38, -3e38, 3e38), True),  # their squares are not
        ((1.0, float("nan"), 0.0), False),
        ((float("inf"), float("-inf"), 0.0), False),
    ],
)
def test_finite_gradients_are_told_from_others(values: tuple[float, ...], is_finite: bool, num_others: int):
    """Tests that large gradients are finite, and that one that is not is found wherever and beside how many it is."""
    others = torch.ones(num_others), None
    assert make_update(*others, torch.tensor(values)).has_finite_gradients() is is_finite
    assert make_update(torch.tensor(values), *others).has_finite_gradients() is is_finite


def test_nothing_is_finite():
    """Tests that a process without gradients has nothing against a step."""
    assert make_update(None).has_finite_gradients()
    assert make_update(torch.zeros(0)).has_finite_gradients()

"""From gradients to weights, on one process."""

from typing import Any

import pytest
import torch
from torch import nn

from planner.execute.parallel.update import Update, make_optimizers
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


def test_optimizers_of_other_weights_are_refused():
    """Tests that an optimizer of the model's own weights, which no layer computes with, is refused, whether or not it
    has some of the right ones, and one that has a weight twice by its name."""
    own, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    for held in ([other], [own, other]):
        with pytest.raises(ValueError, match=r"a weight \(2,\) that its factory was not given.*make it of the list"):
            make_all(lambda _, held=held: torch.optim.SGD(held, lr=0.1), own)
    with pytest.raises(ValueError, match="a:0 is given to two optimizers; give each parameter to one"):
        make_all(lambda given: [torch.optim.SGD(given), torch.optim.Adam(given)], own)
    assert len(make_all(torch.optim.SGD, own)) == 1


def make_all(factory: Any, *parameters: nn.Parameter) -> tuple[torch.optim.Optimizer, ...]:
    training = Training(layers={"a": nn.Identity}, loss=nn.functional.mse_loss, batch=lambda _: (), optimizer=factory)
    named = [(f"a:{number}", each) for number, each in enumerate(parameters)]
    return make_optimizers(training, named, stepped=parameters)

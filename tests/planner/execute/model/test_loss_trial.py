"""Losses of a microbatch against those of its parts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from planner.errors import ExecutionError
from planner.execute.model.loss_trial import TriedLoss


def masked(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target)[target > 0].square().mean()


def rooted(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(output, target).sqrt()


def summed(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(output, target, reduction="sum")


def against_each_other(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output @ target.T, torch.arange(len(output)))


def of_two(outputs: tuple[torch.Tensor, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    """The second is a mean already."""
    return functional.mse_loss(outputs[0], target) + outputs[1].sum()


def with_noise(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(functional.dropout(output), target)


def by_class(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output, target.argmax(1), weight=torch.tensor([1.0, 5.0, 0.1]))


LOSSES: dict[Callable[..., torch.Tensor], bool] = {
    functional.mse_loss: True,
    of_two: True,
    with_noise: True,
    masked: False,
    rooted: False,
    summed: False,
    against_each_other: False,
    by_class: False,
}


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_that_replicas_cannot_put_together_are_refused(loss: Callable[..., torch.Tensor]):
    """Tests that a mean over samples is let be, once it was tried, that anything else is refused with both numbers, and
    that random numbers are drawn as without a trial.
    """
    torch.manual_seed(0)
    output, target = torch.randn(5, 3), torch.randn(5, 3)
    given: Any = (output, torch.ones(1)) if loss is of_two else output
    tried = TriedLoss(loss, dims=(0, None)[: 1 + (loss is of_two)], is_sum=False)
    torch.manual_seed(1)
    expected = loss(given, target)
    torch.manual_seed(1)
    if LOSSES[loss]:
        assert torch.equal(tried(given, target), expected)
        assert tried.is_tried
        return
    with pytest.raises(ExecutionError, match=r"the loss of 5 samples is .*, but by their parts .*loss_is_sum = True"):
        tried(given, target)


def test_sums_and_targets_that_are_compared_elsewhere():
    """Tests that a sum is no mean, that targets of -100 are left to the comparison of replicas, and
    that one sample has no parts.
    """
    torch.manual_seed(0)
    output, target = torch.randn(5, 3), torch.randn(5, 3)
    assert TriedLoss(summed, dims=(0,), is_sum=True)(output, target) > 0
    with pytest.raises(ExecutionError, match="by their parts"):
        TriedLoss(functional.mse_loss, dims=(0,), is_sum=True)(output, target)
    classes = torch.tensor([0, -100, 1, 2, -100])
    assert TriedLoss(functional.cross_entropy, dims=(0,), is_sum=False)(output, classes) > 0
    assert TriedLoss(rooted, dims=(0,), is_sum=False)(output[:1], target[:1]) > 0
    for is_sum in (True, False):  # the model gives its loss itself
        assert TriedLoss(lambda loss, _: 2 * loss, dims=(None,), is_sum=is_sum)(torch.ones(()), target) == 2

"""Losses of a microbatch against those of its parts, and of several together against their own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from planner.errors import ExecutionError
from planner.execute.model.loss_trial import ComparedLoss, TriedLoss


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
        tried(given, target)
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


def varied_targets(size: int) -> list[torch.Tensor]:
    """Of four microbatches, each of another class, with other numbers of positive entries."""
    places = torch.arange(3)
    return [torch.randn(size, 3) + 9 * (places + 1) * (places <= number % 3) for number in range(4)]


def compare(
    loss: Callable[..., torch.Tensor], *, size: int = 3, is_sum: bool = False, target: Any = None
) -> tuple[ComparedLoss, list[torch.Tensor]]:
    """The loss of four microbatches of `size` samples, as a run would take it, and what it gave."""
    torch.manual_seed(0)
    compared = ComparedLoss(loss, count=4, is_sum=is_sum)
    outputs = [torch.randn(size, 3, requires_grad=True) for _ in range(4)]
    targets = varied_targets(size) if target is None else [target] * 4
    return compared, [
        compared((each, torch.ones(size)) if loss is of_two else each, wanted)
        for each, wanted in zip(outputs, targets, strict=True)
    ]


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("loss", [each for each in LOSSES if each not in (of_two, summed)])
def test_what_microbatches_do_not_train_is_told_once(
    loss: Callable[..., torch.Tensor], size: int, capfd: pytest.CaptureFixture[str]
):
    """Tests that a loss which ties samples together is told with both numbers and a remedy, even of single samples,
    that a mean is not, and that what is trained is the same.
    """
    compared, found = compare(loss, size=size)
    said = capfd.readouterr().err
    assert compared.is_tried
    assert said.count("by halves") == (0 if LOSSES[loss] else 1)
    assert LOSSES[loss] or "4 microbatches do not train as their batch would" in said
    assert LOSSES[loss] or "plan one microbatch (-m 1)" in said
    torch.manual_seed(0)
    outputs, targets = [torch.randn(size, 3) for _ in range(4)], varied_targets(size)
    expected = [loss(*pair) for pair in zip(outputs, targets, strict=True)]
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_targets_that_count_unequally_are_told(capfd: pytest.CaptureFixture[str]):
    """Tests that a mean over targets that are not -100 is told where microbatches have unequally many of them."""
    compared = ComparedLoss(functional.cross_entropy, count=2, is_sum=False)
    for target in ([0, -100, -100, 1], [1, 2, 0, 1]):
        compared(torch.eye(4, 3), torch.tensor(target))
    assert "2 microbatches do not train as their batch would" in capfd.readouterr().err


def test_losses_of_which_nothing_is_told(capfd: pytest.CaptureFixture[str]):
    """Tests that nothing is told of sums, the model's own losses, equally many targets of -100, losses that take no
    other number of samples, and those that change what they are given.
    """
    compare(summed, is_sum=True)
    compare(lambda _, target: target.sum(), target=torch.ones(()))
    compare(functional.cross_entropy, target=torch.tensor([0, -100, 1]))
    compare(lambda output, target: functional.mse_loss(output.reshape(3, 3), target))
    _, found = compare(lambda output, target: output.clone().sub_(target.mul_(2)).square().mean())
    assert capfd.readouterr().err == ""
    assert found == compare(lambda output, target: (output - 2 * target).square().mean())[1]
    compare(functional.mse_loss, is_sum=True)
    assert "by halves" in capfd.readouterr().err


def nearest(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Nothing, unless two samples are of one class."""
    alike = (target[:, None] == target) & ~torch.eye(len(target), dtype=torch.bool)
    return (torch.cdist(output, output) * alike).sum() / len(target)


def test_replicas_try_two_microbatches_together():
    """Tests that a loss of pairs is refused where the samples of one microbatch make none."""
    torch.manual_seed(0)
    tried = TriedLoss(nearest, dims=(0,), is_sum=False)
    tried(torch.randn(2, 3), torch.arange(2))
    with pytest.raises(ExecutionError, match=r"the loss of 4 samples is .*, but by their parts 0,"):
        tried(torch.randn(2, 3), torch.arange(2))

"""Trainings for the tests of `python -m planner.execute`, most of them with something wrong on rank 1."""

import os
import signal
import time

import execute_models as models
import torch
from torch import nn

from planner.execute.training import Training

MICROBATCHES = 4


def sound() -> Training:
    return models.vectors("wwww", num_microbatches=MICROBATCHES)


def other_model() -> Training:
    return models.vectors("wwwww", num_microbatches=MICROBATCHES)


class Narrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(models.WIDTH, 7), nn.Linear(7, models.WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(x))


def another_width() -> Training:
    return with_last(lambda: Narrow().double())


def shapes_that_do_not_fit() -> Training:
    return with_last(lambda: nn.Linear(models.WIDTH + 1, 1).double())


def with_last(make: type) -> Training:
    training = sound()
    return Training(**(vars(training) | {"layers": dict(training.layers) | {"l3": make}}))


class Faulty(models.Block):
    """In the third forward on rank 1 something happens."""

    count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_meta and os.environ["RANK"] == "1":
            self.count += 1
            if self.count == 3:
                self.happens()
        return super().forward(x)

    def happens(self) -> None:
        raise NotImplementedError


class Killed(Faulty):
    def happens(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Raising(Faulty):
    def happens(self) -> None:
        raise RuntimeError("the layer's own fault")


class Hanging(Faulty):
    def happens(self) -> None:
        time.sleep(60)


class Greedy(Faulty):
    def happens(self) -> None:
        torch.empty(2**50)


class Born(models.Block):
    """There is no room for its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Parameter(torch.empty(2**50))


def too_large() -> Training:
    return with_last(Born)


def growing() -> Training:
    """The batch has twice as many samples from the second iteration on."""
    training = sound()

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, target = training.batch(number)
        return (inputs, target) if number == 0 else (inputs.repeat(2, 1), target.repeat(2, 1))

    return Training(**(vars(training) | {"batch": batch}))


def coupled() -> Training:
    """The loss is no mean over samples."""
    return Training(**(vars(sound()) | {"loss": lambda output, target: (output - target).square().mean().sqrt()}))


def killed() -> Training:
    return with_last(lambda: Killed().double())


def raising() -> Training:
    return with_last(lambda: Raising().double())


def hanging() -> Training:
    return with_last(lambda: Hanging().double())


def greedy() -> Training:
    return with_last(lambda: Greedy().double())

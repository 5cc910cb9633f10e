"""A model that rounds, checkpoints and holds rows, for profile, plan and the executor; and its plain loop."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from planner.execute.training import Training
from tests.planner.execute.acting_models import CLASSES, WIDTH, Averaging, Through

SAMPLES, MICROBATCHES, STEPS = 12, 4, 3


class Acting(Averaging):
    """Straight-through rounding, a reentrant checkpoint, a hook on a weight's gradient, and a buffer of averages."""

    def register(self) -> None:
        super().register()
        keep = torch.arange(8.0).view(8, 1) > 3
        self.blocks[0].up.weight.register_hook(lambda grad: grad * keep)

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = Through.apply(checkpoint(block, x, use_reentrant=True))
        return self.average(y) if block is self.blocks[1] else y


def batch(number: int) -> Any:
    noise = torch.Generator().manual_seed(number)
    inputs = torch.randn(SAMPLES, WIDTH, generator=noise, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (SAMPLES,), generator=noise)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def make_model() -> nn.Module:
    torch.manual_seed(7)
    return Acting().double()


def make() -> Training:
    return Training.from_module(make_model(), batch=batch, loss=functional.cross_entropy, optimizer=sgd)


def train_plainly() -> dict[str, torch.Tensor]:
    """The state dictionary after three steps of a loop."""
    model = make_model()
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for inputs, target in zip(*(tensor.chunk(MICROBATCHES) for tensor in batch(step)), strict=True):
            functional.cross_entropy(model(inputs), target).backward()
        for parameter in model.parameters():
            parameter.grad /= MICROBATCHES
        optimizer.step()
    return model.state_dict()

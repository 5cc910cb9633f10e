"""Models for the tests of `pipeplan profile`; imported by processes that have torch, never by pytest itself."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from planner.execute.training import Training


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, near: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        return self.inner(near) * far


def make_training(**more: Any) -> Training:
    """Frozen, trained, without weights, and one that also takes the second layer's output."""

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.Generator().manual_seed(number)
        return torch.randn(12, 8, generator=noise), torch.randint(8, (12,), generator=noise)

    layers = {
        "frozen": lambda: nn.Linear(8, 8).requires_grad_(False),
        "trained": lambda: nn.Linear(8, 8),
        "plain": nn.Tanh,
        "join": Join,
    }
    return Training(
        layers=layers,
        inputs={"join": ("plain", "trained")},
        loss=functional.cross_entropy,
        batch=batch,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        **more,
    )


class Net(nn.Module):
    """Not sequential, but torch.fx sees through it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.rest = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).relu()
        z = self.second(y) + y
        for layer in self.rest:
            z = layer(z) + y
        return z * 2


class Branching(nn.Module):
    """Asks for values: nothing sees through it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def traced() -> tuple[nn.Module, torch.Tensor]:
    return Net(), torch.randn(4, 8)


def sequential() -> tuple[nn.Module, torch.Tensor, torch.Tensor, Any]:
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return module, torch.randn(8, 8), torch.randint(4, (8,)), functional.cross_entropy


def branching() -> tuple[nn.Module, torch.Tensor]:
    return Branching(), torch.randn(4, 8)


class Descending(nn.Linear):
    """Takes a step along the gradient of its own output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (slope,) = torch.autograd.grad(super().forward(x).square().sum(), x, create_graph=True)
        return x - slope


def inner_gradients() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(8, 8), Descending(8, 8), nn.Linear(8, 4)), torch.randn(4, 8)


def number() -> int:
    return 3


def failing() -> None:
    raise RuntimeError("no data\nhere")


def module_alone() -> nn.Module:
    return nn.Linear(8, 8)


def wrong_shapes() -> Training:
    layers = {"a": lambda: nn.Linear(8, 8), "b": lambda: nn.Linear(9, 8)}
    return Training(**(vars(make_training()) | {"layers": layers, "inputs": {}}))


def unknown_input() -> Training:
    return Training(**(vars(make_training()) | {"inputs": {"join": ("nowhere",)}}))


def dictionaries() -> Training:
    class Dictionary(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"x": x}

    return Training(**(vars(make_training()) | {"layers": {"a": Dictionary}, "inputs": {}}))


not_a_function = 3

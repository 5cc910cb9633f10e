"""A layer that is timed alone runs as in a stage."""

from typing import ClassVar

import pytest
import torch
from torch import nn

from planner.execute.model.layer_alone import make_deferring


def test_recomputed_weight_gradients_wait():
    """Tests that a forward that runs again puts weight gradients off, as one that was kept does."""
    layer, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.ones(2, 3, requires_grad=True)
    layer(x).sum().backward()
    expected = [x.grad.clone(), *(p.grad.clone() for p in layer.parameters())]
    layer.zero_grad()
    x.grad = None
    store = make_deferring(layer)
    store.is_deferring = True
    store.recompute(x).sum().backward()
    assert layer[0].weight.grad is None
    store.take()()
    assert all(map(torch.equal, [x.grad, *(p.grad for p in layer.parameters())], expected))


class Keeping(nn.Module):
    """Divides by the largest number that it has seen, which it keeps in one place or another."""

    largest: ClassVar[list[float]] = [0.0]

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place, self.number = place, 0.0
        self.register_buffer("table", torch.zeros(1))
        self.norm, self.drop = nn.BatchNorm1d(3), nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = float(x.detach().abs().max())
        if self.place == "buffer":
            self.table.fill_(max(seen, float(self.table)))
            return x / self.table
        if self.place == "attribute":
            self.number = max(seen, self.number)
            return x / self.number
        if self.place == "class":
            self.largest[0] = max(seen, self.largest[0])
            return x / self.largest[0]
        self.number += seen  # which changes nothing
        return self.drop(self.norm(x))


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("buffer", "its buffer 'table'"),
        ("attribute", "its attribute 'number'"),
        ("class", "class attribute 'largest' of Keeping"),
        ("nowhere", ""),
    ],
)
def test_what_a_layer_remembers_is_found(place: str, named: str):
    """Tests that a layer which gives something else after a larger microbatch is known, wherever it keeps that, and one
    that only notes what it saw, normalises and draws is not.
    """
    layer = Keeping(place)
    found = make_deferring(layer).find_memory(torch.linspace(-1, 2, 6).view(2, 3))
    assert found.startswith(named) if named else found == ""

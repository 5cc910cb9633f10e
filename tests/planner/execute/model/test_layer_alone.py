"""A layer that is timed alone runs as in a stage."""

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

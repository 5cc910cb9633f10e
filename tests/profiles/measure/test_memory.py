"""Bytes of one layer: tests of profiles/measure/memory.py."""

import pytest
import torch
from torch import nn, optim

from planner.execute.model.layer_alone import make_deferring
from planner.execute.parallel.partial_steps import PARTS, OptimizerStep
from profiles.measure.memory import CLEAR_REFS, LayerMemory, LiveBytes, OperationMemory
from profiles.measure.segment import Segment
from tests.planner.execute.parallel.test_partial_steps import make_pair, make_weights


def test_a_part_takes_a_part_of_the_memory():
    """Tests that a step of AdamW holds about as much again as all weights, and in parts an eighth, or one matrix."""
    peaks = []
    for optimizer, step in zip(
        make_pair(optim.AdamW, foreach=True),
        (lambda each: each.step(), lambda each: OptimizerStep(each, is_accelerated=False).take()),
        strict=True,
    ):
        optimizer.step()
        with LiveBytes() as live:
            step(optimizer)
        peaks.append(live.peak)
    total = sum(weight.nbytes for weight in make_weights())
    assert peaks[0] > 0.9 * total
    assert peaks[1] < 2 * total / PARTS


@pytest.mark.skipif(not CLEAR_REFS.exists(), reason="the host has no /proc/self/clear_refs")
def test_memory_inside_of_operations_counts():
    """Tests that what an operation takes and gives back is workspace, where no tensor tells of it."""
    size = 32 * 2**20

    class Sorting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = bytearray(size)
            return x * len(hidden)

    given = torch.ones(4, 8)
    segment = Segment(Sorting(), (given,), wants=(True,), waiting=make_deferring(Sorting()))
    tensors = LayerMemory(segment).workspace
    assert tensors < size / 8
    assert 0.9 * size < OperationMemory(segment).workspace - tensors < 1.2 * size

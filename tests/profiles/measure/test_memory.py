"""Bytes of one layer: tests of profiles/measure/memory.py."""

from torch import optim

from planner.execute.parallel.partial_steps import PARTS, OptimizerStep
from profiles.measure.memory import LiveBytes
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

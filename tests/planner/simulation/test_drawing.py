"""Schedules as text: what is told apart, and what is too wide."""

from pathlib import Path

import pytest

from benchmarks.zero_bubble import METHOD_OF, Setting, make_problem, play
from planner.baselines.layouts import LOOPED
from planner.simulation.drawing import draw_schedule
from tests.planner.baselines.drawings import GOLDEN, drawing

BASELINES = Path(__file__).parents[1] / "baselines"


def test_every_golden_file_is_compared():
    """Tests that no drawing lies around that nothing compares, and that the tests of some method's module name it."""
    texts = [path.read_text(encoding="utf-8") for path in BASELINES.rglob("test_*.py")]
    assert all(any(f'"{method}"' in text for text in texts) for method in METHOD_OF)
    assert len(list(GOLDEN.glob("*-s4-m*.txt"))) == 2 * len(METHOD_OF)


def test_chunks_are_told_apart():
    """Tests that the second stage of a device is in lower case."""
    assert METHOD_OF["interleaved 1F1B"].placement is LOOPED
    assert "f3 b3--- B0---" in drawing("interleaved 1F1B", 4)


def test_tick_too_small():
    """Tests that a drawing wider than anyone reads is refused, with a tick that would do."""
    problem = make_problem(
        Setting(
            model="unit",
            hidden_size=0,
            num_heads=0,
            num_devices=1,
            num_microbatches=1,
            forward_us=1,
            input_grad_us=1,
            weight_grad_us=1,
            transfer_us=0,
        )
    )
    with pytest.raises(ValueError, match="use a tick 2 x as long"):
        draw_schedule(play(problem, "1F1B"), tick_ns=1)

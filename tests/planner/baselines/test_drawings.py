"""The schedules that the papers draw, as text: equal times, no time on links, four devices."""

from pathlib import Path

import pytest

from benchmarks.zero_bubble import METHOD_OF, Setting, make_problem, play
from planner.baselines.layouts import LOOPED
from planner.drawing import draw_schedule

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def drawing(method: str, num_microbatches: int) -> str:
    """F = I = W = 1 tick per stage, or half that per stage where a device has two; memory as the method is given it."""
    setting = Setting(
        model="unit",
        hidden_size=0,
        num_heads=0,
        num_devices=4,
        num_microbatches=num_microbatches,
        forward_us=1,
        input_grad_us=1,
        weight_grad_us=1,
        transfer_us=0,
    )
    problem = make_problem(setting, limit=2 if method == "ZB automatic" else 1)
    return draw_schedule(play(problem, method), tick_ns=1000 // METHOD_OF[method].placement.chunks)


@pytest.mark.parametrize("num_microbatches", [4, 8])
@pytest.mark.parametrize("method", METHOD_OF)
def test_schedule_is_drawn_as_published(method: str, num_microbatches: int):
    """Tests that every method's schedule is the one in its golden file, which was compared with the paper's figure."""
    name = method.lower().replace(" ", "-")
    golden = GOLDEN / f"{name}-s4-m{num_microbatches}.txt"
    assert drawing(method, num_microbatches) == golden.read_text(encoding="utf-8")


def test_every_golden_file_is_compared():
    """Tests that no drawing lies around that nothing compares."""
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
    with pytest.raises(ValueError, match="take a tick 2 x as long"):
        draw_schedule(play(problem, "1F1B"), tick_ns=1)

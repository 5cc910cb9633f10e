"""V-Half (Qi et al., 2024, arXiv 2405.15362): tests of planner/baselines/zero_bubble/v_half.py."""

import pytest

from benchmarks.zero_bubble import (
    MAKESPAN_ROWS,
    Setting,
    make_problem,
    play,
)
from tests.planner.baselines.drawings import require_as_kept
from tests.planner.baselines.zero_bubble.test_published_bubbles import name

V_SHAPED = {
    "1.5B-p8-m24-c601": (0.1702, 0.3353),
    "1.5B-p8-m64-c762": (0.0737, 0.2758),
    "6.2B-p8-m24-c527": (0.1447, 0.2721),
    "14.6B-p16-m48-c377": (0.1682, 0.2927),
    "6.2B-p16-m48-c1610": (0.2132, 0.3876),
    "equal-p8-m24-c0": (0.1056, 0.1579),
}
"""Bubbles of V-Half and V-Min as their authors' generator orders them (arXiv 2405.15362), in the same settings."""


@pytest.mark.parametrize("setting", [row[0] for row in MAKESPAN_ROWS if name(row[0]) in V_SHAPED], ids=name)
def test_v_half_and_v_min_are_the_published_ones(setting: Setting):
    """Tests that V-Half and V-Min have at most the published bubbles, in the published memory."""
    devices = setting.num_devices
    for method, published, most in zip(
        ("V-Half", "V-Min"), V_SHAPED[name(setting)], (devices + 2, 2 * devices // 3 + 3), strict=True
    ):
        problem = make_problem(setting, limit=1)
        timeline = play(problem, method)
        assert round(timeline.bubble, 4) <= published, method
        assert max(timeline.peak_bytes.values()) <= most * setting.stash_bytes / 2, method


def test_the_schedule_is_drawn_as_kept():
    """Tests that the schedule is the one of the golden files, and a pipeline by the text alone."""
    require_as_kept("V-Half")

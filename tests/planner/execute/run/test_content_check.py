"""All processes compare what should be the same: tests of planner/execute/run/content_check.py."""

from pathlib import Path

from tests.planner.execute.test_enter import PLAN, report, run, write


def test_shapes_that_change_are_named(tmp_path: Path):
    """Tests that a batch of another size in a later iteration ends in one message, before anything wrong is sent."""
    answers = run(write(PLAN, tmp_path / "plan.json"), "growing", "--steps", 3)
    assert [code for code, _ in answers] == [1, 1]
    for _, error in answers:
        assert (
            "rank 0 (d0) failed in 0F0: RuntimeError: stage 0 gives (24, 6) torch.float64 as tensor 0, but gave (12, 6)"
            in (report(error)[0])
        )
    assert "iteration 0: loss" in answers[1][1]

"""What a run says of its time."""

import pytest

from planner.execute.record.run_time import describe_time


@pytest.mark.parametrize(
    ("durations", "planned", "said"),
    [
        ([9_000_000, 3_000_000, 2_500_000, 4_000_000], 2_500_000,
         "an iteration: planned 2.500 ms, ran 3.000 ms (1.20×; median of 3 iterations after the first)"),
        ([9_000_000], 9_000_000, "an iteration: planned 9.000 ms, ran 9.000 ms (1.00×; the only iteration)"),
        ([9_000_000, 1_000_000], None, "an iteration: ran 1.000 ms (median of 1 iterations after the first)"),
    ],
)  # fmt: skip
def test_planned_stands_beside_ran(durations: list[int], planned: int | None, said: str):
    """Tests that the first iteration is left out where there are others, and that a plan may say no time."""
    assert describe_time(durations, planned_ns=planned) == said

"""Stashes that travel, when and how long: tests of planner/simulation/offloads.py."""

import pytest

from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.planner.judged import judged
from tests.planner.offloads import chain


@pytest.mark.parametrize(
    ("offloads", "link", "makespan", "peak", "trips"),
    [
        (("", ""), {}, 120, 30, []),
        (("0 0F2 0B0", ""), {}, 120, 30, [(10, 20), (30, 40)]),
        (("0 0F1 0B0", ""), {}, 120, 30, [(10, 20), (40, 50)]),
        (("0 0F2 0B0", ""), {"speed": 25 * 10**7}, 160, 30, [(10, 50), (60, 100)]),
        (("0 0F2 0F2", ""), {}, 120, 30, [(10, 20), (20, 30)]),
        (("0 0F2 0B0, 1 0B0 0B1", ""), {}, 120, 20, [(10, 20), (20, 30), (30, 40), (60, 70)]),
        (("1 0B0 0B0", "0 1B0 1B0"), {"duplex": False}, 160, 30, [(20, 30), (30, 40), (40, 50), (50, 60)]),
        (("", "0 1B0 1B0"), {"latency": 5}, 150, 30, [(20, 35), (35, 50)]),
    ],
)
def test_stashes_travel_as_drawn(
    offloads: tuple[str, str], link: dict, makespan: int, peak: int, trips: list[tuple[int, int]]
):
    """Tests that times and memory are those by hand.

    time   0    10   20   30   40   50   60   70   80   90  100  110  120
    d0   | F0 | F1 | F2 |    | B0      |    | B1      |    | B2      |
    d1        | F0 | B0      | F1 | B1      | F2 | B2      |
    out       | 0  |
    back                | 0  |
    """
    problem, plan = chain(*offloads, **link)
    timeline = simulate(problem, plan)
    judged(problem, plan, timeline=timeline)
    assert verify(problem, plan).violations == ()
    assert [each[-2:] for each in timeline.offloads] == trips
    assert (timeline.makespan_ns, timeline.peak_bytes["d0"]) == (makespan, peak)

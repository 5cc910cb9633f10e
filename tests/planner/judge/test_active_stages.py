"""Tests of planner/judge/active_stages.py."""

from dataclasses import replace

from planner.judge.reading import Reading
from planner.judge.times import check_times
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.planner.judge.rules.test_gathered import ORDER, SEEDS, one_rank, random_case
from tests.planner.judged import judged


def test_judge_and_simulator_agree_on_random_plans():
    """Tests that the judge, which finds gathers and memory by rules of its own, has no objection to what is played."""
    gathers = 0
    for seed in SEEDS:
        for active in (1, 2, 4):
            problem, plan = random_case(seed, active=active)
            timeline = simulate(problem, plan)
            judged(problem, plan, timeline=timeline)
            assert verify(problem, plan).violations == ()
            gathers += len(timeline.gathers)
    assert gathers > 5 * len(SEEDS)


def test_a_forged_gather_is_found():
    """Tests that the judge wants every gather, none twice, and each when it can begin and at its length."""
    problem, plan = one_rank(ORDER, active=1)
    played = simulate(problem, plan)
    first, *others = played.gathers
    for forged in (others, [first, first, *others], [first._replace(end_ns=14), *others], [first._replace(stage=1)]):
        found = check_times(Reading(problem, plan), replace(played, gathers=tuple(forged))).inconsistencies
        assert any("gather" in text for text in found)

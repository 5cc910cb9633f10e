"""Sailor's formulas, against what its own simulator printed."""

import pytest

from benchmarks.sailor import (
    SailorPlan,
    SailorStage,
    as_sailor,
    fit_link,
    fits,
    iteration_s,
    make_question,
    play_by_our_rules_s,
    read_plans,
    send_s,
)
from planner.plan import Plan, Stage


@pytest.mark.parametrize(("name", "rate"), [("32+96", 0.16996), ("80+240", 0.36091), ("128+384", 0.52290)])
def test_its_plans_take_what_it_says(name, rate):
    """Tests that the formulas give the iterations per second that its simulator printed for its own plans."""
    assert 1 / iteration_s(read_plans(name)[0], is_corrected=False) == pytest.approx(rate, abs=5e-5)


def test_logits_are_charged_as_written_only():
    """Tests that a last stage of the head alone sends back the logits as written, and an activation as corrected."""
    groups = (("A100-40", 1),)
    cut = [range(25), range(25, 26)]
    plan = SailorPlan(stages=tuple(SailorStage(layers=layers, samples=1, groups=groups) for layers in cut))
    factor = 103_022_593 / 2_097_152
    written, corrected = (iteration_s(plan, is_corrected=each) for each in (False, True))
    assert written > corrected
    pair = (groups[0], groups[0])
    more = 2 * (send_s(4 * 103_022_593, pair) - send_s(4 * 2_097_152, pair))
    assert factor > 49
    assert written - corrected >= more


def test_memory_counts_microbatches_in_flight():
    """Tests that OPT-350M fits an A100 whole at two samples, not at four, and a V100 not at all."""
    for gpu, samples, fit in (("A100-40", 2, True), ("A100-40", 4, False), ("V100-16", 1, False)):
        stage = SailorStage(layers=range(26), samples=samples, groups=((gpu, 1),))
        assert fits(SailorPlan(stages=(stage,))) is fit


def test_rules_agree_on_its_plan():
    """Tests that its plan for 32 A100 takes by our rules what it takes by its own, within 2 %."""
    plan = read_plans("32+0")[0]
    assert play_by_our_rules_s(plan) == pytest.approx(iteration_s(plan, is_corrected=True), rel=0.02)


def test_links_are_close_to_the_polynomials():
    """Tests that the fitted links take within 15 % of the polynomials' time for messages of 1 to 64 MB."""
    for gpu in ("A100-40", "V100-16"):
        bandwidth, latency = fit_link(gpu)
        for megabytes in (1, 8, 64):
            seconds = latency / 1e9 + megabytes * 1e6 / bandwidth
            assert seconds == pytest.approx(send_s(megabytes * 1e6, ((gpu, 1), (gpu, 1))), rel=0.15)


def test_our_plans_in_its_form():
    """Tests that stages, samples per replica, types and degrees are those of the plan."""
    question = make_question(4, 4)
    problem, names = question.at(8), question.profile.topological_order
    stages = (
        Stage(layers=names[:20], replicas=(("A100-40-0", "A100-40-1"), ("A100-40-2", "A100-40-3"))),
        Stage(layers=names[20:], replicas=(("V100-16-0",),)),
    )
    seen = as_sailor(question, Plan(problem=problem.reference(), stages=stages, schedule={}))
    assert [(stage.layers, stage.samples, stage.groups) for stage in seen.stages] == [
        (range(20), 4, (("A100-40", 2),) * 2),
        (range(20, 26), 8, (("V100-16", 1),)),
    ]
    assert seen.num_microbatches == 128

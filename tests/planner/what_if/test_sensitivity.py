"""What more of something is worth: both sides certified, nothing counted twice."""

from dataclasses import replace
from itertools import pairwise

import pytest

from planner.plan import Plan
from planner.problem import Options, Problem
from planner.progress import Limits
from planner.simulation.explain import explain
from planner.simulation.simulate import simulate
from planner.verify import verify
from planner.what_if.sensitivity import Question, count_questions, make_questions, shadow_prices
from tests.long_runs import long_only
from tests.planner.builders import make_layer, make_link, make_problem
from tests.planner.hasty import make_plan

ONE_ROUND = Limits(time_limit_s=30, max_rounds=1)


def make_row(**fields: object) -> Problem:
    """Six layers on three devices in a row whose memory binds."""
    layers = [
        make_layer(f"l{i}", (30 + i, 40 + i, 20 + i), state_bytes=50, stash_bytes=30, weight_stash_bytes=10)
        for i in range(6)
    ]
    links = [make_link(f"d{a} d{b}", latency=1) for a, b in pairwise(range(3))]
    given = {"num_microbatches": 6, "memory_bytes": 260, "max_replicas": 1, "max_stages_per_device": 1}
    return make_problem(layers, links, edge_bytes=4, **(given | fields))


@pytest.fixture(scope="module")
def row() -> tuple[Problem, Plan]:
    problem = make_row()
    return problem, make_plan(problem, limits=ONE_ROUND)


def ask(problem: Problem, plan: Plan) -> dict[str, Question]:
    timeline = simulate(problem, plan)
    return {each.text: each for each in make_questions(problem, plan, timeline=timeline, per_kind=1)}


def test_the_present_plan_answers_every_question(row: tuple[Problem, Plan]):
    """Tests that the plan starts every question: valid there, and no slower than now (halved times round up)."""
    problem, plan = row
    now = simulate(problem, plan).makespan_ns
    questions = ask(problem, plan)
    assert {each.kind for each in questions.values()} == {"memory", "link", "speed", "device", "microbatches"}
    for text, question in questions.items():
        start = replace(question.start, problem=question.problem.reference(), evidence=None)
        verdict = verify(question.problem, start)
        assert verdict.passed, (text, verdict.violations)
        assert verdict.timeline is not None
        slack = 12 * 3 * 6 if question.kind == "microbatches" else 0
        assert verdict.timeline.makespan_ns <= now + slack, text


def test_what_changes(row: tuple[Problem, Plan]):
    """Tests that each change is the one its phrase states: memory, bandwidth, times, devices and microbatches."""
    problem, plan = row
    questions = {each.kind: each for each in ask(problem, plan).values() if each.subject or each.kind == "microbatches"}
    name = questions["memory"].subject
    assert questions["memory"].problem.cluster.by_name[name].memory_bytes == 260 + 65
    assert sorted(d.memory_bytes for d in questions["memory"].problem.cluster.devices) == [260, 260, 325]
    before, after = problem.cluster.links, questions["link"].problem.cluster.links
    ratios = [b.bandwidth_bytes_per_s / a.bandwidth_bytes_per_s for a, b in zip(before, after, strict=True)]
    assert sorted(ratios) == [1, 2]
    faster = questions["speed"].problem
    kind = faster.cluster.by_name[questions["speed"].subject].type
    (cost,) = (cost for cost in faster.profile.by_name["l0"].costs if cost.device_type == kind)
    assert (cost.forward_ns, cost.input_grad_ns, cost.weight_grad_ns) == (28, 37, 19)
    assert len(questions["device"].problem.cluster.devices) == 4
    more = questions["microbatches"].problem
    assert more.num_microbatches == 12
    assert (more.profile.by_name["l0"].stash_bytes, more.profile.by_name["l0"].state_bytes) == (15, 50)
    assert [edge.bytes for edge in more.profile.edges] == [2] * 5


@pytest.mark.slow
def test_prices(row: tuple[Problem, Plan]):
    """Tests that what a plan saves is never more than the bound allows, and that plans found are verified ones."""
    problem, plan = row
    timeline = simulate(problem, plan)
    answers: list[tuple[Problem, Plan]] = []

    def replan(question: Problem, start: Plan) -> Plan:
        answers.append((question, make_plan(question, limits=ONE_ROUND, start=start)))
        return answers[-1][1]

    prices = shadow_prices(problem, plan, timeline=timeline, replan=replan, per_kind=1)
    assert len(prices) == len(answers) == count_questions(problem, plan, timeline=timeline, per_kind=1)
    assert prices[0].kind == "search"
    for price, (question, answer) in zip(prices, answers, strict=True):
        assert verify(question, answer).passed
        assert price.worth_at_least is not None
        assert price.worth_at_most is not None
        assert 0 <= price.worth_at_least <= price.worth_at_most < 1, price
    by_kind = {price.text: price for price in prices}
    assert by_kind["a quarter more memory on every device"].worth_at_least > 0.02


@long_only
def test_luck_of_the_search_is_no_price(row: tuple[Problem, Plan]):
    """Tests that a better plan that needs no change is counted as further search, whichever question found it."""
    problem, plan = row
    best = make_plan(problem, limits=Limits(time_limit_s=30, max_rounds=8), start=plan)
    slow = make_plan(replace(problem, options=replace(problem.options, split_backward=False)), limits=ONE_ROUND)
    slow = replace(slow, problem=problem.reference())
    timeline = simulate(problem, slow)
    assert best.evidence is not None
    assert best.evidence.makespan_ns < timeline.makespan_ns
    calls = 0

    def replan(question: Problem, start: Plan) -> Plan:
        nonlocal calls
        calls += 1
        if question.num_microbatches != problem.num_microbatches or calls == 1:
            return make_plan(question, limits=Limits(time_limit_s=30, max_rounds=0), start=start)
        return make_plan(question, limits=Limits(time_limit_s=30, max_rounds=0), start=best)

    prices = shadow_prices(problem, slow, timeline=timeline, replan=replan, per_kind=1)
    assert prices[0].objective_ns is not None
    assert prices[0].objective_ns <= best.evidence.makespan_ns
    for price in prices[1:]:
        assert price.objective_ns is not None
        saved = 1 - price.objective_ns / prices[0].objective_ns
        assert price.worth_at_least == pytest.approx(max(0.0, saved))


def test_no_answer_is_no_price(row: tuple[Problem, Plan]):
    """Tests that a question without an answer has no price, and that a placed problem is not offered a device."""
    problem, plan = row
    given = tuple(stage.layers for stage in plan.stages), tuple(stage.replicas for stage in plan.stages)
    options = Options(max_replicas=1, max_stages_per_device=1, partition=given[0], placement=given[1])
    placed = replace(problem, options=replace(options, receive_buffers=problem.options.receive_buffers))
    placed_plan = replace(plan, problem=placed.reference())

    def fail(question: Problem, start: Plan) -> Plan:
        from planner.errors import NoPlanFoundError

        raise NoPlanFoundError("none")

    prices = shadow_prices(placed, placed_plan, timeline=simulate(placed, placed_plan), replan=fail, per_kind=1)
    assert "device" not in {price.kind for price in prices}
    assert {price.worth_at_least for price in prices[1:]} == {None}


def test_what_binds(row: tuple[Problem, Plan]):
    """Tests that the resources on the critical chain add up to it, and that full memories are named."""
    problem, plan = row
    timeline = simulate(problem, plan)
    explanation = explain(problem, plan, timeline=timeline)
    chain = sum(each.nanoseconds for each in explanation.binds if each.kind != "memory")
    assert chain == timeline.makespan_ns - sum(s.end_ns - s.start_ns for s in explanation.path if not s.place)
    full = {each.subject: each.headroom_bytes for each in explanation.binds if each.kind == "memory"}
    assert full
    for device, headroom in full.items():
        assert headroom == 260 - timeline.peak_bytes[device]

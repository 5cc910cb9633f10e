"""One run for every list of candidates: what may be asked together is verified, bounded and as good as one by one."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from planner.batch_problem import BatchProblem, Question, problem_for
from planner.bounds import group_counts
from planner.decisions.price.bound import work_money
from planner.decisions.price.device_kinds import PER_UNIT, cost_of
from planner.device_subsets import problem_on
from planner.evidence.certificate import check_certificate, least_over_sizes, make_bound
from planner.evidence.check_evidence import rederive
from planner.export.targets import TARGETS
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.plan_kind import kind_of
from planner.planning import Limits
from planner.planning.planning_params import ListedParams, SearchParams
from planner.planning.runs.candidate_run import CandidateRun
from planner.planning.runs.driver import Driver
from planner.problem import Problem
from planner.verify import verify
from tests.planner.builders import make_layer, make_link, make_problem
from tests.planner.hasty import make_plan, make_plans
from tests.planner.judge.test_microbatches import listed
from tests.planner.test_batch_problem import make_batch
from tests.planner.test_batch_problem import make_layer as make_sized_layer

QUICK = Limits(time_limit_s=60, max_rounds=1, threads=1)

FIRST = replace(QUICK, max_rounds=0)

FEW = SearchParams(listed=ListedParams(quick_plays=100, turn_plays=200))


def priced(question: Any, prices: dict[str, float], **options: object) -> Any:
    """The same with these prices of devices, to be planned for at the least cost."""
    devices = tuple(replace(each, price_per_hour=prices[each.name]) for each in question.cluster.devices)
    options = {"objective": "cost", **options}
    cluster = replace(question.cluster, devices=devices)
    return replace(question, cluster=cluster, options=replace(question.options, **options))


def row() -> Problem:
    """Four layers that need two of three devices, of which one is cheap and far away."""
    layers = [make_layer(f"l{i}", (500 + 30 * i, 500, 500), state_bytes=300) for i in range(4)]
    links = [make_link("s a"), make_link("s b"), make_link("s c", bandwidth=10**7)]
    return make_problem(layers, links, switches=("s",), num_microbatches=4, edge_bytes=10)


PRICES = {"a": 2.0, "b": 2.0, "c": 1.5}


def sized(**fields: object) -> BatchProblem:
    """Eight samples on two devices."""
    return make_batch([make_sized_layer(name, {1: 10, 2: 14, 4: 24}) for name in "xyz"], **fields)


def subsets_of(problem: Problem) -> list[tuple[str, ...]]:
    """Every choice of devices."""
    names = [device.name for device in problem.cluster.devices]
    return [chosen for count in range(1, len(names) + 1) for chosen in combinations(names, count)]


def assert_derived(question: Question, plans: Sequence[Plan]) -> None:
    """Each passes the verifier, and all its evidence follows from it; no two are of one kind."""
    for plan in plans:
        outcome = rederive(problem_for(question, plan), plan)
        assert outcome.passed, outcome.differences
    assert len({kind_of(plan) for plan in plans}) == len(plans)


def cost(plan: Plan) -> float:
    assert plan.evidence is not None
    assert plan.evidence.rental is not None
    return plan.evidence.rental.cost


@pytest.mark.slow
def test_kinds_of_the_cheapest_plan():
    """Tests that behind the cheapest plan there are others, ever dearer, none below the bound, and each in time."""
    problem = priced(row(), PRICES)
    plans = make_plans(problem, top=3, limits=FIRST)
    assert len(plans) == 3
    assert_derived(problem, plans)
    assert cost(plans[0]) == cost(make_plan(problem, limits=FIRST))
    assert [cost(plan) for plan in plans] == sorted(map(cost, plans))
    late = replace(problem, options=replace(problem.options, deadline_ns=plans[1].evidence.makespan_ns))
    kinds = make_plans(late, top=3, limits=FIRST)
    assert all(plan.evidence.makespan_ns <= late.options.deadline_ns for plan in kinds)
    assert_derived(late, kinds)


def test_what_proves_the_best_plan_proves_no_other():
    """Tests that where the best plan is optimal, plans of other kinds do not say that a proof ended their search."""
    layers, options = [make_layer("x"), make_layer("y")], {"max_replicas": 1, "max_stages_per_device": 1}
    problem = make_problem(layers, [make_link("a b")], edge_bytes=3, split_backward=False, **options)
    plans = make_plans(problem, top=2, limits=QUICK)
    assert [plan.evidence.proved_by is not None for plan in plans] == [True, False]
    assert plans[1].evidence.stopped_by == "gap"
    assert_derived(problem, plans)


def test_kinds_for_microbatches_that_differ():
    """Tests that several kinds of plan are made, the fastest first, and that the first is the one made alone."""
    problem = listed(1, 4, 2, 4, max_stages_per_device=1)
    alone = make_plan(problem, limits=QUICK, params=FEW)
    plans = make_plans(problem, top=3, limits=QUICK, params=FEW)
    assert len(plans) > 1
    assert plans[0] == alone
    assert_derived(problem, plans)
    times = [plan.evidence.makespan_ns for plan in plans]
    assert times == sorted(times)


def test_microbatches_that_differ_on_the_cheapest_devices():
    """Tests that no subset of the devices has a cheaper plan, and that the bound is below them all."""
    whole = listed(1, 4, 2, 4, max_stages_per_device=1)
    prices = {"a": 3.0, "b": 2.0, "c": 1.0, "d": 2.5}
    problem = priced(whole, prices)
    plan = make_plan(problem, limits=QUICK, params=FEW)
    assert_derived(problem, [plan])
    bound = plan.evidence.rental.certificate["value"]
    assert bound >= work_money(problem) > 0
    for chosen in subsets_of(problem)[::3]:
        other = make_plan(problem_on(problem, chosen), limits=QUICK, params=FEW)
        money = cost_of(problem, other, makespan_ns=other.evidence.makespan_ns)
        assert bound <= money
        assert cost(plan) <= money / PER_UNIT


def test_the_work_of_microbatches_that_differ_is_paid_for():
    """Tests that the work that is paid for is that by hand: of 11 samples, two layers, F, I and W of a nanosecond."""
    assert work_money(priced(listed(1, 4, 2, 4), dict.fromkeys("abcd", 2.0) | {"c": 1.0})) == 11 * 2 * 3 * 10**6


@pytest.mark.slow
def test_a_solver_answers_every_size():
    """Tests that the complete model is asked at each size, and that what is claimed is claimed of them all."""
    batch = replace(sized(global_batch_size=4), microbatch_sizes=(2, 4))
    batch = replace(batch, options=replace(batch.options, max_stages_per_device=1))
    plan = make_plan(batch, limits=Limits(time_limit_s=60, method="cp-sat", max_rounds=0, threads=1))
    assert rederive(problem_for(batch, plan), plan).passed
    best = min(make_plan(each, limits=QUICK).evidence.makespan_ns for each in batch.candidates)
    assert plan.evidence.makespan_ns == best
    assert plan.evidence.stopped_by in ("solver", "proof")
    assert (plan.evidence.solver_bound_ns or plan.evidence.lower_bound_ns) == best


def test_a_solver_answers_what_is_cheapest():
    """Tests that the complete model is asked on subsets of the devices, and proves nothing about the money there."""
    problem = priced(replace(row(), num_microbatches=2), PRICES)
    problem = replace(problem, options=replace(problem.options, max_stages_per_device=1, max_replicas=1))
    plan = make_plan(problem, limits=Limits(time_limit_s=60, method="cp-sat", max_rounds=0, threads=1))
    assert rederive(problem, plan).passed
    assert cost(plan) <= cost(make_plan(problem, limits=QUICK))
    assert plan.evidence.stopped_by != "solver"


def test_all_devices_are_rented_where_none_may_be_idle():
    """Tests that with idle_devices = false the cheapest plan is the fastest on all devices, which bounds it."""
    problem = priced(row(), PRICES, idle_devices=False)
    plan = make_plan(problem, limits=QUICK)
    assert rederive(problem, plan).passed
    assert set(plan.devices) == {"a", "b", "c"}
    assert plan.evidence.rental.lower_bound == pytest.approx(5.5e6 * plan.evidence.lower_bound_ns / PER_UNIT)


def test_the_executor_takes_microbatches_that_differ():
    """Tests that a plan for the executor is made where the sizes are listed."""
    problem = listed(1, 3, 2)
    plan = make_plan(problem, target=TARGETS["executor"], limits=QUICK, params=FEW)
    assert verify(problem, plan).passed


def sizes_on_four_devices(times: dict[int, int]) -> BatchProblem:
    """Three equal layers that take so long at each size, on devices at a switch."""
    layers = [make_sized_layer(name, times) for name in "xyz"]
    question = make_batch(layers, global_batch_size=16, max_stages_per_device=1)
    devices = tuple(replace(question.cluster.devices[0], name=name) for name in "abcd")
    links = tuple(make_link(f"s {name}") for name in "abcd")
    return replace(question, cluster=replace(question.cluster, devices=devices, links=links, switches=("s",)))


def test_sizes_are_bounded_by_what_holds_the_least_down(monkeypatch):
    """Tests that the groups bound is raised over all sizes at once, to what it proves of the weakest, and is derived.

    The first bounds go without it, so all that is gained is gained together.
    """
    monkeypatch.setattr(group_counts, "raise_bound", lambda _, start, **__: start)
    question = sizes_on_four_devices({1: 100, 2: 140, 4: 240})
    with ExitStack() as stack:
        driver = Driver(question, stack, top=1, limits=Limits(time_limit_s=600.0, threads=1))
        driver.begin_all()
    raised = {run.size: run.state.lower_bound for run in driver.runs}
    alone = [make_bound(problem, CostModel(problem)).value_ns for problem in question.candidates]
    found = least_over_sizes(raised)
    assert found.value_ns > min(alone)
    assert check_certificate(question, found.certificate) == found.value_ns
    assert "groups" in {bound.kind for bound in raised.values()}


def test_sizes_one_nanosecond_apart_are_not_asked_again(monkeypatch):
    """Tests that what is open ends between whole numbers: where plans take few nanoseconds no question is put twice."""
    asked = []
    monkeypatch.setattr(CandidateRun, "raise_to", lambda run, value: asked.append((run.size, value)) is None)
    with ExitStack() as stack:
        driver = Driver(
            sizes_on_four_devices({1: 7, 2: 9, 4: 16}), stack, top=1, limits=Limits(time_limit_s=3.0, threads=1)
        )
        driver.begin_all()
    assert len(asked) == len(set(asked)) > 0


def test_a_size_alone_is_bounded_once(monkeypatch):
    """Tests that its time is left to the search: its own bound has counted devices one by one already."""
    monkeypatch.setattr(CandidateRun, "raise_to", lambda *_: pytest.fail("it was asked again"))
    question = replace(sizes_on_four_devices({1: 100, 2: 140, 4: 240}), microbatch_sizes=(4,))
    with ExitStack() as stack:
        driver = Driver(question, stack, top=1, limits=Limits(time_limit_s=600.0, threads=1))
        driver.begin_all()
        assert driver.gap is not None
        assert driver.gap > 0.01

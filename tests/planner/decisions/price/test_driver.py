"""The plan that costs least, and what is said of it."""

from dataclasses import replace
from typing import Any

import pytest

from planner.batch_problem import BatchProblem, problem_for
from planner.decisions.price.device_kinds import PER_UNIT
from planner.device_subsets import problem_on
from planner.document import parse_plan, render_plan
from planner.documents.embedded_problem import enclosed_problem
from planner.errors import InfeasibleProblemError
from planner.evidence.check_evidence import rederive
from planner.plan import Plan, RentalResult
from planner.planning import Limits
from planner.problem import Options, Problem
from planner.verify import verify
from tests.planner.builders import make_layer, make_link, make_problem
from tests.planner.hasty import make_plan
from tests.planner.test_batch_problem import make_batch
from tests.planner.test_batch_problem import make_layer as make_sized_layer

ROUNDS = Limits(time_limit_s=60, max_rounds=1)

PRICES = {"a": 2.0, "b": 2.0, "c": 1.5}


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Four layers that need two devices, of which one is cheap and far away."""
    layers = [make_layer(f"l{i}", (500 + 30 * i, 500, 500), state_bytes=300) for i in range(4)]
    links = [make_link("s a"), make_link("s b"), make_link("s c", bandwidth=10**7)]
    whole = make_problem(layers, links, switches=("s",), num_microbatches=4, edge_bytes=10)
    devices = tuple(replace(device, price_per_hour=PRICES[device.name]) for device in whole.cluster.devices)
    return replace(whole, cluster=replace(whole.cluster, devices=devices), options=Options(objective="cost"))


@pytest.fixture(scope="module")
def plan(problem: Problem) -> Plan:
    """The cheapest found in a round."""
    return make_plan(problem, limits=ROUNDS)


def rental_of(plan: Plan) -> RentalResult:
    assert plan.evidence is not None
    assert plan.evidence.rental is not None
    return plan.evidence.rental


def test_cheap_and_slow_is_chosen(problem: Problem, plan: Plan):
    """Tests that one near and the far device are rented, which is slower than three and cheaper than two near ones."""
    rental = rental_of(plan)
    assert set(plan.devices) == {"a", "c"}
    assert rental.price_per_hour == 3.5
    assert rental.cost == 3_500_000 * plan.evidence.makespan_ns / PER_UNIT
    assert 0 < rental.lower_bound <= rental.cost
    assert plan.evidence.objective_gap == rental.gap
    alone = make_plan(problem_on(problem, ["a", "b"]), limits=ROUNDS)
    assert 4.0 * alone.evidence.makespan_ns > 3.5 * plan.evidence.makespan_ns


def test_evidence_is_derived_again(problem: Problem, plan: Plan):
    """Tests that the plan passes, and its document alone leads to both bounds, that on time and that on money."""
    assert verify(problem, plan).passed
    again = parse_plan(render_plan(plan))
    assert again == plan
    enclosed = enclosed_problem(again)
    assert enclosed == problem
    outcome = rederive(enclosed, again)
    assert (outcome.passed, outcome.differences) == (True, ())
    assert outcome.least_cost == rental_of(plan).lower_bound


def spoilt(plan: Plan, **fields: Any) -> Plan:
    return replace(plan, evidence=replace(plan.evidence, rental=replace(rental_of(plan), **fields)))


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"cost": 1e-9}, "evidence-cost"),
        ({"price_per_hour": 3.4}, "evidence-cost"),
        ({"lower_bound": 1.0}, "evidence-cost-bound"),
        ({"gap": 0.0}, "evidence-cost-bound"),
        ({"certificate": {"value": 10**30}}, "evidence-cost-bound"),
        ({"devices": ("a", "b")}, "evidence-rented"),
        ({"devices": ("c", "a")}, "evidence-rented"),
    ],
)
def test_judge_counts_money_itself(problem: Problem, plan: Plan, fields: dict[str, Any], rule: str):
    """Tests that every figure of the cost is recomputed from prices and makespan."""
    assert {violation.rule for violation in verify(problem, spoilt(plan, **fields)).violations} == {rule}
    assert not rederive(problem, spoilt(plan, **fields)).passed


def test_cost_is_stated_where_it_is_minimised(problem: Problem, plan: Plan):
    """Tests that evidence without a cost is refused where money is minimised, and with one where it is not."""
    bare = replace(plan, evidence=replace(plan.evidence, rental=None))
    assert [violation.rule for violation in verify(problem, bare).violations] == ["evidence-rental"]
    times = replace(problem, options=Options())
    stated = replace(plan, problem=times.reference())
    assert [violation.rule for violation in verify(times, stated).violations] == ["evidence-rental"]


def test_late_plan_is_refused(problem: Problem, plan: Plan):
    """Tests that a plan that ends after the deadline breaks a rule, and in time does not."""
    for late, rules in ((1, ["deadline-missed"]), (0, [])):
        deadline_ns = plan.evidence.makespan_ns - late
        asked = replace(problem, options=replace(problem.options, deadline_ns=deadline_ns))
        found = verify(asked, replace(plan, problem=asked.reference()))
        assert [violation.rule for violation in found.violations] == rules


def test_deadline_takes_more_devices(problem: Problem, plan: Plan):
    """Tests that below what two devices can reach all three are rented, and that nothing is found below every bound."""
    asked = replace(problem, options=replace(problem.options, deadline_ns=11_000))
    dear = make_plan(asked, limits=ROUNDS)
    assert len(dear.devices) == 3
    assert dear.evidence.makespan_ns <= 11_000
    assert rental_of(dear).cost > rental_of(plan).cost
    assert rederive(asked, dear).passed
    with pytest.raises(InfeasibleProblemError, match=r"deadline_ns = 100, but no plan is faster than \d+ ns"):
        make_plan(replace(problem, options=replace(problem.options, deadline_ns=100)), limits=ROUNDS)


def test_free_devices(problem: Problem):
    """Tests that with prices of 0 the cost is 0, which no plan is below."""
    devices = tuple(replace(device, price_per_hour=0) for device in problem.cluster.devices)
    free = replace(problem, cluster=replace(problem.cluster, devices=devices))
    plan = make_plan(free, limits=ROUNDS)
    assert (rental_of(plan).cost, rental_of(plan).gap) == (0.0, 0.0)
    assert rederive(free, plan).passed


def test_what_there_is_not(problem: Problem):
    """Tests that too little room is refused with the reason."""
    devices = tuple(replace(device, memory_bytes=10) for device in problem.cluster.devices)
    small = replace(problem, cluster=replace(problem.cluster, devices=devices))
    with pytest.raises(InfeasibleProblemError, match="no plan fits on any subset of the devices: "):
        make_plan(small, limits=ROUNDS)


@pytest.fixture(scope="module")
def batch() -> BatchProblem:
    """Eight samples on two devices, of which the slower link makes one alone the cheapest."""
    whole = make_batch([make_sized_layer(name, {1: 10, 2: 14, 4: 24}) for name in "xyz"])
    prices = {"a": 2.0, "b": 1.0}
    devices = tuple(replace(device, price_per_hour=prices[device.name]) for device in whole.cluster.devices)
    options = replace(whole.options, objective="cost")
    return replace(whole, cluster=replace(whole.cluster, devices=devices), options=options)


def test_sizes_and_devices_in_one_question(batch: BatchProblem):
    """Tests that with a global batch the cheapest plan over all sizes is found, with a bound of every size and box."""
    plan = make_plan(batch, limits=ROUNDS)
    problem = problem_for(batch, plan)
    assert (plan.problem.microbatch_size, plan.devices) == (4, ("b",))
    assert rental_of(plan).gap == 0
    assert [row.microbatch_size for row in plan.evidence.sizes] == [1, 2, 4]
    again = parse_plan(render_plan(plan))
    assert enclosed_problem(again) == problem
    assert rederive(problem, again).differences == ()
    alone = (replace(batch, microbatch_sizes=(size,)) for size in batch.sizes)
    assert (
        min(rental_of(make_plan(each, limits=replace(ROUNDS, max_rounds=0))).cost for each in alone)
        == rental_of(plan).cost
    )
    del again.evidence.rental.certificate["boxes"][0]["certificate"]["sizes"][1]
    assert [each.field for each in rederive(problem, again).differences] == ["rental.certificate"]

"""Numbers near the limits: no bisection leaves 64 bits, and what no deadline mends is said to have no plan."""

from dataclasses import replace

import pytest

from planner.actions import Action
from planner.baselines.registry import make_baselines, play_baseline
from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.evidence.certificate import check_certificate, make_bound, rules_out_every_deadline
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.planning import Limits
from planner.problem import MOST_NS, Options, Problem
from planner.verify import verify
from profiles.field_rules import MAX_NANOSECONDS
from solver_models.covering import Covering
from tests.planner.evidence.test_certificate import bound_of, make_chain
from tests.planner.hasty import make_plan

ROUND = Limits(max_rounds=1, time_limit_s=60)
ONE_EACH = Options(max_stages_per_device=1, max_replicas=1)


def crowded(*, ns: int = 1000, num_devices: int = 2, edge_bytes: int = 100, **options: object) -> Problem:
    """Two layers or more that do not fit beside the receive buffers, but would without them."""
    times = [(ns, ns, 0)] * num_devices
    chosen = replace(ONE_EACH, **options)  # type: ignore[arg-type]
    return make_chain(
        times, num_devices=num_devices, num_microbatches=2, memory=100, stash=(60, 0), edge_bytes=edge_bytes,
        gradient=0, options=chosen,
    )  # fmt: skip


@pytest.mark.parametrize(
    "problem",
    [
        crowded(),
        crowded(ns=1),
        crowded(ns=MAX_NANOSECONDS),
        crowded(num_devices=3),
        crowded(edge_bytes=2**40),
        crowded(split_backward=False),
    ],
)
def test_what_no_deadline_mends_has_no_plan(problem: Problem):
    """Tests that where memory alone rules plans out the bound's search ends, and the answer is that there is none."""
    with pytest.raises(InfeasibleProblemError):
        make_plan(problem, limits=ROUND)


@pytest.mark.parametrize("ns", [1, 10**9, MAX_NANOSECONDS])
def test_a_bound_is_never_beyond_what_a_plan_can_take(ns: int):
    """Tests that a bound says that there is no plan only where it is above all work and transfers together."""
    problem = make_chain([(ns, ns, ns)] * 2, num_devices=2, num_microbatches=3, edge_bytes=10)
    value = bound_of(problem).value_ns
    assert not rules_out_every_deadline(problem, value)
    assert not rules_out_every_deadline(problem, 9 * 2 * ns)
    assert rules_out_every_deadline(problem, MOST_NS)


@pytest.mark.parametrize("ns", [2**20, 2**40, 2**42, MAX_NANOSECONDS])
@pytest.mark.parametrize("memory", [7817, 2**45])
def test_bounds_hold_for_iterations_of_hours(ns: int, memory: int):
    """Tests that no bound is above a plan where time and memory together are more than 64 bits hold."""
    unit = memory // 7817
    problem = make_chain(
        [(1, 5, ns), (8191, 65, 7)], num_devices=3, num_microbatches=3, memory=15 * unit,
        stash=(5887 * unit, 3790 * unit), edge_bytes=7, options=ONE_EACH,
    )  # fmt: skip
    first, *others = problem.cluster.devices
    devices = (replace(first, memory_bytes=memory), *others)
    small = replace(problem.profile.layers[0], stash_bytes=1, weight_stash_bytes=0)
    profile = replace(problem.profile, layers=(small, problem.profile.layers[1]))
    problem = replace(problem, profile=profile, cluster=replace(problem.cluster, devices=devices))
    stages = (Stage(layers=("l0", "l1"), replicas=(("d0",),)),)
    schedule = {"d0": tuple(Action(kind, 0, m) for m in range(3) for kind in "FIW")}  # type: ignore[arg-type]
    plan = Plan(problem=problem.reference(), stages=stages, schedule=schedule)
    verdict = verify(problem, plan)
    bound = make_bound(problem, CostModel(problem), make_covering=Covering)
    assert verdict.passed
    assert verdict.timeline is not None
    assert bound.value_ns <= verdict.timeline.makespan_ns
    assert check_certificate(problem, bound.certificate) == bound.value_ns


def slow_links(*, edge_bytes: int, num_microbatches: int = 2, **options: object) -> Problem:
    """Two layers, a device each, and a byte per second between them."""
    chosen = replace(ONE_EACH, **options)  # type: ignore[arg-type]
    problem = make_chain(
        [(1, 1, 1)] * 2, num_devices=2, num_microbatches=num_microbatches, edge_bytes=edge_bytes, options=chosen
    )
    links = tuple(replace(link, bandwidth_bytes_per_s=1) for link in problem.cluster.links)
    return replace(problem, cluster=replace(problem.cluster, links=links))


def test_plans_beyond_64_bits_do_not_count():
    """Tests that transfers too long to count break no run, and are named where nothing else is left."""
    problem = slow_links(edge_bytes=2**27, num_microbatches=64, max_stages_per_device=2)
    costs = CostModel(problem)
    rows = [play_baseline(problem, each, costs=costs)[0] for each in make_baselines(problem, costs)]
    assert any("add up to more than" in row.note for row in rows)
    # a stage on one device needs no link
    assert make_plan(problem, limits=ROUND).evidence is not None
    apart = replace(problem, options=replace(ONE_EACH, partition=(("l0",), ("l1",))))
    with pytest.raises(NoPlanFoundError, match="add up to more than"):
        make_plan(apart, limits=ROUND)


def test_numbers_that_no_plan_could_use_are_refused():
    """Tests that a message of decades, and buffers of more bytes than 64 bits count, are refused with their fields."""
    with pytest.raises(ValueError, match=r"bandwidth_bytes_per_s = 1; check the units"):
        slow_links(edge_bytes=2**40)
    with pytest.raises(ValueError, match=r"receive_buffers = 1048576 .* add up to"):
        make_chain(
            [(1, 1, 1)] * 2, num_devices=2, num_microbatches=2, edge_bytes=2**50, options=Options(receive_buffers=2**20)
        )
    make_chain([(1, 1, 1)] * 2, num_devices=2, num_microbatches=2, edge_bytes=2**50, options=Options(receive_buffers=2))

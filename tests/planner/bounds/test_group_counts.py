"""The groups bound: against brute force and plans with replicas and widths on devices of two types, and forgery."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bounds.group_counts import GroupCounts, applies_to, raise_bound
from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import check_certificate, make_bound
from planner.layout.costs import CostModel
from planner.problem import Options, Problem
from profiles.cluster import Device
from tests.long_runs import examples
from tests.planner.brute_force import brute_force
from tests.planner.evidence.test_certificate import make_chain, plans_of
from tests.strategies import random_problem, tiny_problem

ONE_EACH = Options(receive_buffers=0, max_stages_per_device=1)


def in_groups(problem: Problem) -> Problem:
    """The problem with one stage per device, on groups of any replicas and width that it has."""
    options = replace(
        problem.options,
        max_stages_per_device=1,
        max_width=4,
        objective="makespan",
        deadline_ns=None,
        split_placement=False,
        unequal_shares=False,
        max_active_stages=None,
    )
    return replace(problem, options=options)


def varied(rng: Random, problem: Problem) -> Problem:
    """The same with transfers that occupy devices or do not, with steps, and with whole backward passes or not."""
    layers = tuple(
        replace(each, costs=tuple(replace(cost, optimizer_ns=rng.choice((0, 0, 9))) for cost in each.costs))
        if each.is_trainable
        else each
        for each in problem.profile.layers
    )
    return replace(
        problem,
        profile=replace(problem.profile, layers=layers),
        cluster=replace(problem.cluster, overlap=rng.random() < 0.5),
        options=replace(problem.options, split_backward=rng.random() < 0.5),
    )


def is_ruled_out(problem: Problem, value: int) -> bool:
    """Whether the bound denies that some plan has the makespan, however devices are counted."""
    least = Least(problem, CostModel(problem))
    ways = (False, True) if applies_to(least) else ()
    return any(GroupCounts(least, by_type=by_type).is_out_of_reach(value - least.optimizer_ns) for by_type in ways)


@settings(max_examples=examples(200), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_the_best_plan_is_never_ruled_out(rng):
    """Tests that the optimum of tiny problems is not denied."""
    problem = varied(rng, in_groups(tiny_problem(rng)))
    best = brute_force(problem)
    if best is not None:
        assert not is_ruled_out(problem, best)


@settings(max_examples=examples(150), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_no_plan_is_ruled_out(rng):
    """Tests that what random plans reach is not denied, with ample memory and with just enough."""
    for problem, _, value in plans_of(rng, varied(rng, in_groups(random_problem(rng))), tries=2):
        assert not is_ruled_out(problem, value)


def test_three_layers_do_not_share_four_devices_evenly():
    """Tests that two layers on two devices, or one layer on one, decide, where even shares would end by 90.

    d0, d1  FF FF FF FF BBBB BBBB BBBB BBBB s     two layers, a half of each microbatch: 4 x 60 / 2 and a ring of 2
    d2, d3    F  F  F  F  BB BB BB BB             the third layer, in halves; alone on d2 it would end no sooner
    """
    chain = make_chain([(10, 10, 10)] * 3, num_devices=4, num_microbatches=4, options=ONE_EACH)
    problem = replace(chain, profile=replace(chain.profile, microbatch_size=2, scaling="linear"))
    least = Least(problem, CostModel(problem))
    assert raise_bound(least, 90) == 4 * 60 // 2 + 2


def test_what_is_sent_and_synchronised_behind_a_stage_counts():
    """Tests that the first stage's ring of 40 starts when the last gradient has come back from the second.

    d0, d1  FFFFF                                                               I s...s     ends at 70 + 40
    d2, d3        20 bytes each: 10 ns  FFFFFIIIII ... FFFFFIIIII  10 ns back
    """
    chain = make_chain(
        [(10, 10, 10)] * 2, num_devices=4, num_microbatches=4, state=60, memory=100, edge_bytes=60, options=ONE_EACH
    )
    first, last = chain.profile.layers
    layers = (replace(first, parameter_bytes=40), replace(last, parameter_bytes=1))
    profile = replace(chain.profile, layers=layers, microbatch_size=2, scaling="linear")
    problem = replace(chain, profile=profile)
    assert raise_bound(Least(problem, CostModel(problem)), 90) == 5 + 10 + 4 * 10 + 10 + 5 + 40


def test_memory_for_one_microbatch_waits_for_every_turnaround():
    """Tests that a stage which holds one microbatch idles while the next works, as brute force does.

    d0  F       B   F       B   F       B       each holds one stash: 3 x (10 + 30 + 20)
    d1    F   B       F   B       F   B
    """
    options = replace(ONE_EACH, split_backward=False)
    chain = make_chain(
        [(10, 10, 10)] * 2, num_devices=2, num_microbatches=3, state=1, memory=100, stash=(60, 0), options=options
    )
    problem = replace(chain, profile=replace(chain.profile, microbatch_size=1, scaling="linear"))
    assert brute_force(problem) == 3 * 60
    assert raise_bound(Least(problem, CostModel(problem)), 60) == 3 * 60


def two_types() -> Problem:
    """Four layers; two slow devices, which take twice as long, and two quick ones."""
    chain = make_chain([(10, 10, 10)] * 4, num_devices=4, num_microbatches=8, options=ONE_EACH)
    layers = tuple(
        replace(
            layer,
            costs=(
                *layer.costs,
                replace(layer.costs[0], device_type="slow", forward_ns=20, input_grad_ns=20, weight_grad_ns=20),
            ),
        )
        for layer in chain.profile.layers
    )
    types = ("gpu", "gpu", "slow", "slow")
    devices = tuple(Device(name=f"d{n}", type=name, memory_bytes=2**40) for n, name in enumerate(types))
    profile = replace(chain.profile, layers=layers, microbatch_size=2, scaling="linear")
    return replace(chain, profile=profile, cluster=replace(chain.cluster, devices=devices))


def test_devices_are_counted_by_type():
    """Tests that a pair of slow devices takes no more than a layer, so that a pair of quick ones has the other three.

    All together would do it in 8 x 120 / 3 = 320 at the best; three layers on two quick devices take 8 x 90 / 2 = 360,
    and so does no other division.
    """
    problem = two_types()
    bound = make_bound(problem, CostModel(problem))
    least = Least(problem, CostModel(problem))
    assert raise_bound(least, 320) >= 360
    assert bound.value_ns >= 360
    assert check_certificate(problem, bound.certificate) == bound.value_ns


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value_ns": 10**6}, "does not exclude 999999 ns"),
        ({"value_ns": -1}, "value_ns is out of range"),
        ({"classes": []}, "too many for kind 'groups'"),
    ],
)
def test_a_forged_certificate_is_refused(change, message):
    """Tests that no certificate states more than is derived, nor has fields that no bound reads."""
    problem = two_types()
    value = raise_bound(Least(problem, CostModel(problem)), 320)
    assert check_certificate(problem, {"kind": "groups", "value_ns": value}) == value
    with pytest.raises(ValueError, match=message):
        check_certificate(problem, {"kind": "groups", "value_ns": value, **change})


@pytest.mark.parametrize("options", [{"max_stages_per_device": 2}, {"objective": "span"}, {"unequal_shares": True}])
def test_other_questions_have_none(options):
    """Tests that the bound is left out, and its certificate refused, where its proof does not hold."""
    problem = two_types()
    problem = replace(problem, options=replace(problem.options, **options))
    assert not applies_to(Least(problem, CostModel(problem)))
    with pytest.raises(ValueError, match="does not hold"):
        check_certificate(problem, {"kind": "groups", "value_ns": 1})


def test_more_devices_put_nothing_out_of_reach():
    """Tests that a wider cluster is never denied what a smaller one reaches."""
    rng = Random(3)
    for _ in range(10):
        times = [(rng.randint(5, 20), rng.randint(5, 20), rng.randint(5, 20)) for _ in range(4)]
        values = []
        for devices in (2, 3, 4):
            chain = make_chain(times, num_devices=devices, num_microbatches=4, options=ONE_EACH)
            problem = replace(chain, profile=replace(chain.profile, microbatch_size=2, scaling="linear"))
            values.append(raise_bound(Least(problem, CostModel(problem)), 1))
        assert values == sorted(values, reverse=True)


def test_what_counted_types_prove_holds_where_they_are_counted_together():
    """Tests that a certificate of releases that counted each type verifies where the sum of types proves less."""
    problem = two_types()
    least = Least(problem, CostModel(problem))
    value = raise_bound(least, 320)
    counted = {by_type: GroupCounts(least, by_type=by_type) for by_type in (False, True)}
    assert counted[True].is_out_of_reach(value - 1 - least.optimizer_ns)
    assert [counts.shape for counts in counted.values()] == [(3, 5), (3, 3)]
    assert check_certificate(problem, {"kind": "groups", "value_ns": value}) == value

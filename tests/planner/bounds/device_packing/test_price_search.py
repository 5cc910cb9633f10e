"""Tests of planner/bounds/device_packing/price_search.py."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from unittest import mock

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.generate import make_workload, parse_family
from planner.bounds.cases.refutation import RULES
from planner.bounds.device_packing import packing_effort, price_search
from planner.bounds.device_packing.boundaries import Boundaries
from planner.bounds.device_packing.device_loads import OpenStages
from planner.bounds.device_packing.packing_bound import PRICE, Packing, PackingCertificate, is_out_of_reach, write_cases
from planner.bounds.device_packing.packing_effort import PER_CASE, PER_STAGE
from planner.bounds.device_packing.price_search import Packed, Refutation, raise_further, raise_packing_bound
from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import OtherRulesError, check_certificate
from planner.layout.costs import CostModel
from planner.problem import Problem
from solver_models.covering import Covering
from tests.long_runs import examples
from tests.planner.bounds.device_packing.test_packing_bound import climbed, heavy, is_ruled_out, timed
from tests.planner.brute_force import brute_force
from tests.planner.evidence.test_certificate import plans_of
from tests.strategies import random_chain, random_problem, tiny_problem


@settings(max_examples=examples(100), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_the_best_plan_is_never_ruled_out(rng):
    """Tests that the optimum of tiny problems is not denied, however many cases are told apart."""
    problem = timed(tiny_problem(rng))
    best = brute_force(problem)
    if best is not None:
        assert not is_ruled_out(problem, best)


@settings(max_examples=examples(60), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_no_plan_is_ruled_out(rng):
    """Tests that no random plan of random problems is denied, even in the least memory that it fits."""
    for tight, _, value in plans_of(rng, timed(random_problem(rng)), tries=2):
        assert not is_ruled_out(tight, value)


def test_nothing_is_begun_without_time():
    """Tests that the clock ends the search between two rounds, and that what was found until then holds."""
    boundaries = Boundaries(Least(heavy(5, 3), CostModel(heavy(5, 3))))
    asked: list[bool] = []

    def until_the_third() -> bool:
        asked.append(True)
        return len(asked) < 3

    start = 1
    found = raise_packing_bound(boundaries, start, make=Covering, effort=10**8, has_time=until_the_third)
    assert len(asked) < 8
    assert found.value == start or is_out_of_reach(boundaries, found.value - 1, cases=found.cases)


def test_a_case_can_be_left_half_way():
    """Tests that time may be over at any step of a case, which then proves nothing, and that more time proves it."""
    boundaries = Boundaries(Least(heavy(5, 3), CostModel(heavy(5, 3))))
    found = list[bool]()
    for most in range(0, 200, 7):
        asked: list[bool] = []

        def has_time(asked: list[bool] = asked, most: int = most) -> bool:
            asked.append(True)
            return len(asked) <= most

        refutation = Refutation(boundaries, Covering, most=7, effort=10**6, has_time=has_time)
        found.append(refutation.find(200) is not None)
        assert found[-1] or len(asked) <= most + 2
    assert found == sorted(found)
    assert (found[0], found[-1]) == (False, True)


def test_too_many_pairs_are_not_begun():
    """Tests that with too little effort nothing is claimed, and with enough the same as ever."""
    boundaries = Boundaries(Least(heavy(), CostModel(heavy())))
    assert raise_packing_bound(boundaries, 200, make=Covering, effort=0) == Packed(200, [], [])
    found = raise_packing_bound(boundaries, 200, make=Covering, effort=10**6)
    assert found.value == 240
    assert is_out_of_reach(boundaries, found.value - 1, cases=found.cases)


def test_heads_do_not_fall():
    """Tests that narrowing down only raises heads and closes stages."""
    least = Least(heavy(5, 3), CostModel(heavy(5, 3)))
    boundaries = Boundaries(least)
    refutation = Refutation(boundaries, Covering, most=7, effort=10**6)
    reach = [refutation.find(deadline) is not None for deadline in range(150, 300, 10)]
    assert reach == sorted(reach, reverse=True)
    assert numpy.array(reach).any()


def test_a_deadline_that_plans_pass_for_is_given_up():
    """Tests that climbing on ends by itself, next to the least deadline that the schedule bound lets plans pass for."""
    problem = heavy(5, 3)
    boundaries = Boundaries(Least(problem, CostModel(problem)))
    found = climbed(problem, reached=1000, most=10**4)
    assert len(found) < 10**4
    assert any(packed_now.timely for packed_now in found)
    refutation = Refutation(boundaries, Covering, most=255, effort=10**9)
    assert refutation.find(found[-1].value - 1) is not None
    assert refutation.find(found[-1].value + 2) is None


@pytest.mark.parametrize("wanted", [1, 2, 4])
def test_as_many_plans_pass_as_are_wanted(wanted):
    """Tests that the search for cases goes on until so many whole plans pass, all of them different."""
    boundaries = Boundaries(Least(heavy(5, 3), CostModel(heavy(5, 3))))
    refutation = Refutation(boundaries, Covering, most=255, effort=10**9, wanted=wanted)
    assert refutation.find(300) is None
    assert len(set(refutation.timely)) == len(refutation.timely) == refutation.num_passed == wanted


@pytest.mark.parametrize("deadline", [290, 300, 320])
def test_each_plan_that_passes_is_found_once(deadline):
    """Tests that the cases let pass every whole plan that the schedule bound does, and none of them twice."""
    boundaries = Boundaries(Least(heavy(5, 3), CostModel(heavy(5, 3))))
    root = Packing(boundaries, deadline)
    listed = root.assignments(most=10**6, steps=10**6)
    assert listed is not None
    passing = {root.write(each) for each in listed if not root.is_late(each)}
    refutation = Refutation(boundaries, Covering, most=255, effort=10**9, wanted=10**6)
    assert refutation.find(deadline) is None
    assert len(refutation.timely) == refutation.num_passed == len(set(refutation.timely))
    assert set(refutation.timely) == passing


@settings(max_examples=examples(150), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_asking_for_memory_alone_denies_no_best_plan(rng):
    """Tests that the optimum of tiny chains with replicas in little memory is not denied where memory is asked for
    first, nor by random prices after that.
    """
    problem = random_chain(rng, sizes=(3, 3, 2), tight=True)
    options = replace(problem.options, max_stages_per_device=rng.choice([1, 2, 2]), max_replicas=rng.choice([2, None]))
    problem = replace(problem, options=options, profile=replace(problem.profile, microbatch_size=6))
    best = brute_force(problem)
    if best is not None:
        with mock.patch.object(Boundaries, "is_scarce", new=True):
            assert not is_ruled_out(problem, best)
        boundaries = Boundaries(Least(problem, CostModel(problem)))
        asked = [0] * (boundaries.size + 1) + [PRICE]
        others = [[rng.randint(0, PRICE) for _ in asked] for _ in range(2)]
        cases = [PackingCertificate((asked, *others), None)]
        if boundaries.size:
            assert not is_out_of_reach(boundaries, best - problem.profile.optimizer_ns, cases=cases)


@pytest.mark.parametrize("is_scarce", [False, True])
def test_memory_is_asked_for_first_where_it_is_scarce(monkeypatch, is_scarce):
    """Tests that in scarce memory the first case, and no other, begins with prices of memory alone."""
    monkeypatch.setattr(Boundaries, "is_scarce", is_scarce)
    boundaries = Boundaries(Least(starving(), CostModel(starving())))
    refutation = Refutation(boundaries, Covering, most=63, effort=10**9, wanted=100, with_trees=True)
    cases = refutation.find(51_988_605)
    assert cases is not None
    asks = [not any(prices[:-1]) for case in cases for prices in case.prices]
    assert asks == [is_scarce, *[False] * (len(asks) - 1)]
    assert is_out_of_reach(boundaries, 51_988_605, cases=cases, trees=refutation.trees)


def test_a_certificate_may_be_larger_where_memory_is_scarce(monkeypatch):
    """Tests that a check may take so many times as much there, and no more where small problems have that anyway."""
    boundaries = Boundaries(Least(starving(), CostModel(starving())))
    monkeypatch.setattr(Boundaries, "is_scarce", True)
    small = packing_effort.most_effort(boundaries)
    monkeypatch.setattr(packing_effort, "SMALL", 0)
    large = packing_effort.most_effort(boundaries)
    monkeypatch.setattr(Boundaries, "is_scarce", False)
    assert large == 4 * packing_effort.most_effort(boundaries)
    assert small == packing_effort.SMALL_FACTOR * packing_effort.most_effort(boundaries)


def starving() -> Problem:
    """Eight layers on three devices with memory for less than one microbatch each."""
    workload = make_workload(parse_family("chain-8x3-m6-scarce-homogeneous-equal", seed=3))
    assert workload.cluster is not None
    layers = workload.profile.layers
    memory = sum(layer.state_bytes + 3 * layer.stash_bytes for layer in layers) * 6 // 10 // 3
    devices = tuple(replace(device, memory_bytes=memory) for device in workload.cluster.devices)
    return Problem(profile=workload.profile, cluster=replace(workload.cluster, devices=devices), num_microbatches=6)


@cache
def refuted() -> tuple[Problem, int, list[list[object]], list[list[int]]]:
    """Its cases and trees, for a deadline that whole plans pass for by the schedule bound."""
    problem, deadline = starving(), 51_988_605
    boundaries = Boundaries(Least(problem, CostModel(problem)))
    refutation = Refutation(boundaries, Covering, most=63, effort=10**9, wanted=100, with_trees=True)
    cases = refutation.find(deadline)
    assert cases is not None
    return problem, deadline, write_cases(cases), [list(tree) for tree in refutation.trees]


@pytest.mark.parametrize("effort", [1, 10**5])
def test_what_is_paused_goes_on(effort):
    """Tests that a deadline that effort does not do for, not even for a first round of prices, is paused, and that more
    effort closes it by the same cases.
    """
    problem, deadline, cases, trees = refuted()
    boundaries, paused = Boundaries(Least(problem, CostModel(problem))), 0
    refutation = Refutation(boundaries, Covering, most=63, effort=effort, wanted=100, with_trees=True)
    assert refutation.find(deadline) is None
    while refutation.is_paused:
        paused += 1
        assert refutation.found is None
        for _ in refutation.go_on():
            pass
    assert paused > 1
    assert refutation.found is not None
    assert (write_cases(refutation.found), [list(tree) for tree in refutation.trees]) == (cases, trees)


def test_trees_refute_whole_plans_that_the_schedule_bound_lets_pass():
    """Tests that trees over the orders of whole plans prove a bound, with the number of their rules beside them."""
    problem, deadline, cases, trees = refuted()
    certificate = {"kind": "packing", "value_ns": deadline + 1, "cases": cases, "rules": RULES, "trees": trees}
    assert check_certificate(problem, certificate) == deadline + 1
    with pytest.raises(OtherRulesError, match=f"{RULES} are in force"):
        check_certificate(problem, {**certificate, "rules": RULES - 1, "trees": trees[1:]})


def test_trees_grow_last_and_for_few_plans(monkeypatch):
    """Tests that plans are shown before any tree is tried, that none is tried where as many plans pass as are wanted,
    and that one without a tree is the last one that is tried.
    """
    boundaries, tried = Boundaries(Least(starving(), CostModel(starving()))), list[int]()
    monkeypatch.setattr(Packing, "find_tree", lambda *_: tried.append(1))
    many = Refutation(boundaries, Covering, most=63, effort=10**9, wanted=100, with_trees=True)
    seen = [(len(many.timely), len(tried)) for _ in many.steps(51_988_605)]
    assert seen[-1] == (many.num_passed, 0)
    assert many.num_passed > 1
    assert tried == [1]
    few = Refutation(boundaries, Covering, most=63, effort=10**9, wanted=many.num_passed, with_trees=True)
    assert few.find(51_988_605) is None
    assert few.num_passed == many.num_passed
    assert tried == [1]


@pytest.mark.parametrize("number", range(7))
def test_other_trees_prove_nothing(number):
    """Tests that fewer, more, cut, longer or other trees are refused."""
    problem, deadline, cases, trees = refuted()
    most = max(trees, key=len)
    place = trees.index(most)
    others = [[], [0], most[:-1], [*most, 0], [1 << 29, 0, 0]]
    changed = [[*trees[:place], other, *trees[place + 1 :]] for other in others] + [trees[:-1], [*trees, []]]
    certificate = {"kind": "packing", "value_ns": deadline + 1, "cases": cases, "rules": RULES}
    with pytest.raises(ValueError, match="certificate: "):
        check_certificate(problem, {**certificate, "trees": changed[number]})


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_first_case_that_nobody_would_check_is_tried_once(monkeypatch, is_listed):
    """Tests that no other deadline follows one whose loads a check could not rate, or not even list."""
    boundaries = Boundaries(Least(heavy(5, 3), CostModel(heavy(5, 3))))
    stages, tried = OpenStages(boundaries, 400), list[price_search.Refutation]()
    most = stages.count_pairs() + (PER_CASE + (PER_STAGE + 1) * len(stages.start) if is_listed else 1)
    monkeypatch.setattr(packing_effort, "MAX_EFFORT", 1)
    monkeypatch.setattr(packing_effort, "SMALL_FACTOR", most)

    class Noted(price_search.Refutation):
        def steps(self, deadline: int) -> Iterator[None]:
            tried.append(self)
            return super().steps(deadline)

    monkeypatch.setattr(price_search, "Refutation", Noted)
    assert raise_packing_bound(boundaries, 399, make=Covering, effort=10**6) == Packed(399, [], [])
    assert [each.is_begun for each in tried] == [False]
    assert {found.value for found in raise_further(boundaries, 399, make=Covering, reached=lambda: 800)} <= {399}
    assert [each.is_begun for each in tried] == [False, False]
    monkeypatch.setattr(packing_effort, "SMALL_FACTOR", 10**7)
    raise_packing_bound(boundaries, 399, make=Covering, effort=10**6)
    assert len(tried) > 3
    assert all(each.is_begun for each in tried[2:])

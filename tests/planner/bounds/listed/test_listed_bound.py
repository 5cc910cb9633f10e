"""Plans for microbatches that differ: bounds against every plan, evidence derived again, and what is refused."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations, product
from random import Random

import pytest

from planner.bounds.listed import listed_bound
from planner.bounds.work import find_weights
from planner.errors import InfeasibleProblemError
from planner.evidence.certificate import check_certificate, make_bound
from planner.evidence.check_evidence import rederive
from planner.export.targets import TARGETS, restrict_question
from planner.layout.costs import CostModel
from planner.planning import Limits
from planner.planning.planning_params import ListedParams, SearchParams
from planner.problem import Options, Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from tests.long_runs import IS_LONG, shortened
from tests.planner.hasty import make_plan
from tests.planner.judge.test_microbatches import listed
from tests.planner.listed_cases import random_listed_case

QUICK = Limits(max_rounds=1, threads=1)

FEW = SearchParams(listed=ListedParams(quick_plays=200, turn_plays=1_000))


def tiny_listed(rng: Random) -> Problem:
    """A chain of at most three layers on at most three devices, with at most four microbatches, no two sizes alike."""
    sizes = tuple(rng.sample(range(1, 8), rng.randint(1, 4)))
    layers = tuple(
        Layer(
            name=f"l{number}",
            costs=tuple(
                LayerCost(
                    device_type="gpu",
                    microbatch_size=size,
                    forward_ns=rng.randint(0, 9),
                    input_grad_ns=rng.randint(0, 9),
                    weight_grad_ns=0,
                )
                for size in sizes
            ),
        )
        for number in range(rng.randint(1, 3))
    )
    devices = tuple(Device(name=name, type="gpu", memory_bytes=10**6) for name in "abc"[: rng.randint(1, 3)])
    links = (Link(a=a.name, b=b.name, bandwidth_bytes_per_s=10**9, latency_ns=0) for a, b in combinations(devices, 2))
    edges = (Edge(producer=f"l{n}", consumer=f"l{n + 1}", bytes=0) for n in range(len(layers) - 1))
    return Problem(
        profile=ModelProfile(
            name="tiny", layers=layers, edges=tuple(edges), microbatch_size=sizes[0], scaling="measured"
        ),
        cluster=Cluster(name="tiny", devices=devices, links=tuple(links)),
        num_microbatches=len(sizes),
        microbatches=sizes,
        options=Options(max_stages_per_device=1, split_backward=False, max_replicas=rng.choice([None, 1, 2])),
    )


def least_of_all(problem: Problem) -> int:
    """The least makespan of all dealings, cuts and orders, where transfers take nothing."""
    numbers, layers = range(problem.num_microbatches), problem.profile.layers
    devices, best = len(problem.cluster.devices), 10**9
    for pipelines in range(1, min(problem.replica_limit, len(numbers)) + 1):
        for stages in range(1, min(devices // pipelines, len(layers)) + 1):
            for cuts in combinations(range(1, len(layers)), stages - 1):
                table = _table(problem, (0, *cuts, len(layers)))
                known: dict[frozenset[int], int] = {}
                for owner in product(range(pipelines), repeat=len(numbers)):
                    hands = [frozenset(m for m in numbers if owner[m] == k) for k in range(pipelines)]
                    for hand in hands:
                        if hand not in known:
                            known[hand] = _least_of_hand(table, sorted(hand))
                    best = min(best, max(known[hand] for hand in hands))
    return best


def _table(problem: Problem, cuts: Sequence[int]) -> list[list[tuple[int, int]]]:
    """[stages][microbatches] F and I."""
    costs = [{cost.microbatch_size: cost for cost in layer.costs} for layer in problem.profile.layers]
    return [
        [
            (
                sum(costs[n][size].forward_ns for n in range(begin, end)),
                sum(costs[n][size].input_grad_ns for n in range(begin, end)),
            )
            for size in problem.microbatches or ()
        ]
        for begin, end in pairwise(cuts)
    ]


def _orders(hand: Sequence[int]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Of F (0) and I (1) of these microbatches on one device, each F before its I."""
    for order in permutations([(m, kind) for m in hand for kind in (0, 1)]):
        if all(order.index((m, 0)) < order.index((m, 1)) for m in hand):
            yield order


def _least_of_hand(table: list[list[tuple[int, int]]], hand: Sequence[int]) -> int:
    """All orders on all devices; with one stage any order takes the same."""
    if not hand or len(table) == 1:
        return sum(sum(table[0][m]) for m in hand)
    return min(_end(table, each) for each in product(list(_orders(hand)), repeat=len(table)))


def _end(table: list[list[tuple[int, int]]], orders: Sequence[tuple[tuple[int, int], ...]]) -> int:
    """When the last action ends; far away if the orders wait for each other."""
    done: dict[tuple[int, int, int], int] = {}
    at, free, last = [0] * len(table), [0] * len(table), len(table) - 1
    moved = True
    while moved:
        moved = False
        for s, order in enumerate(orders):
            while at[s] < len(order):
                m, kind = order[at[s]]
                source = (s - 1, m, 0) if kind == 0 else ((s, m, 0) if s == last else (s + 1, m, 1))
                if source[0] >= 0 and source not in done:
                    break
                free[s] = max(free[s], done.get(source, 0)) + table[s][m][kind]
                done[s, m, kind] = free[s]
                at[s] += 1
                moved = True
    return max(free) if all(place == len(order) for place, order in zip(at, orders, strict=True)) else 10**9


def all_bounds(problem: Problem) -> dict[str, int]:
    """By kind what every bound that applies says."""
    least = listed_bound.ListedLeast(CostModel(problem))
    found = {"listed work": listed_bound.work_bound(least, find_weights(least.any))}
    if problem.options.objective == "makespan":
        layers = range(len(problem.profile.layers))
        found["listed layer"] = max(listed_bound.layer_bound(least, number) for number in layers)
        found["listed path"] = listed_bound.path_bound(least)
    if listed_bound.applies_to(least):
        found["dealt"] = listed_bound.cut_bound(least)
    return found


def test_no_plan_is_below_a_bound():
    """Tests that no dealing, cut or order of a tiny problem is below a bound, and that some reach one."""
    tight = 0
    for seed in range(shortened(60, whole=300)):
        problem = tiny_listed(Random(seed))
        if min(len(problem.profile.layers), problem.num_microbatches - 1) > shortened(1, whole=1 + seed % 2):
            continue
        least = least_of_all(problem)
        bounds = all_bounds(problem)
        assert max(bounds.values()) <= least, (seed, bounds, least)
        tight += max(bounds.values()) == least
    assert tight


def test_random_plans_are_above_all_bounds():
    """Tests that random plans of every kind, cut or dealt, are no better than any bound of their question."""
    for seed in range(shortened(20, whole=1500)):
        problem, plan = random_listed_case(Random(seed))
        objective = simulate(problem, plan).objective_ns(problem.options.objective)
        for kind, value in all_bounds(problem).items():
            assert value <= objective, (seed, kind)


def test_plans_are_verified_and_their_evidence_is_derived_again():
    """Tests that a plan is dealt, no worse than any baseline, and that bound and baselines follow from it anew."""
    problem = listed(5, 1, 3, 2, 4, 2, 6, max_stages_per_device=1, split_backward=False)
    plan = make_plan(problem, limits=QUICK, params=FEW)
    evidence = plan.evidence
    assert evidence is not None
    assert verify(problem, plan).passed
    played = [row.makespan_ns for row in evidence.baselines if row.fits_memory and row.makespan_ns is not None]
    assert evidence.lower_bound_ns <= evidence.makespan_ns <= min(played)
    assert len(plan.dealing) > 1
    derived = rederive(problem, plan, with_baselines=True)
    assert derived.passed, derived.differences
    assert not IS_LONG or make_plan(problem, limits=QUICK, params=FEW) == plan


def test_threads_are_stated_where_time_ends_the_search():
    """Tests that evidence states the threads of a search that time limits, and none where rounds are counted."""
    problem = listed(2, 1, max_stages_per_device=1, split_backward=False)
    for limits, threads in ((Limits(time_limit_s=0.3, threads=2), 2), (QUICK, None)):
        evidence = make_plan(problem, limits=limits, params=FEW).evidence
        assert evidence is not None
        assert evidence.threads == threads


def test_a_bound_that_lies_is_found_out():
    """Tests that certificates that state more, or are of a kind for equal microbatches, are refused."""
    problem = listed(5, 1, 3)
    bound = make_bound(problem, CostModel(problem))
    assert check_certificate(problem, bound.certificate) == bound.value_ns
    with pytest.raises(ValueError, match="but proves"):
        check_certificate(problem, bound.certificate | {"value_ns": bound.value_ns + 1})
    with pytest.raises(ValueError, match="does not hold where microbatches differ"):
        check_certificate(problem, {"kind": "path", "value_ns": 1})
    alike = replace(problem, microbatches=None)
    with pytest.raises(ValueError, match="is for listed microbatches"):
        check_certificate(alike, {"kind": "listed path", "value_ns": 1})


def test_memory_decides_who_takes_the_long_ones():
    """Tests that a plan is found where one pipeline's devices hold little more than one long microbatch."""
    problem = listed(8, 8, 1, 1, 2, 2, max_stages_per_device=1, split_backward=False)
    devices = tuple(replace(device, memory_bytes=10 + 2 * 10) for device in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    plan = make_plan(problem, limits=QUICK, params=FEW)
    assert verify(problem, plan).passed


def test_what_is_for_equal_microbatches_is_refused():
    """Tests that programs for equal microbatches, and the complete model, are refused with a remedy."""
    problem = listed(1, 2)
    for target in (target for name, target in TARGETS.items() if name != "executor"):
        with pytest.raises(InfeasibleProblemError, match=f"{target.name} assumes equal ones; plan with num_micro"):
            make_plan(problem, target=target)
        with pytest.raises(ValueError, match=f"{target.name} assumes equal ones; plan with num_micro"):
            restrict_question(problem, target)
    with pytest.raises(ValueError, match="a list of microbatches is not in the complete model"):
        make_plan(problem, limits=Limits(method="cp-sat"))

"""Every kind of bound against brute force, under changes that cannot help, and against certificates that lie."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bounds.minimum_costs import Least
from planner.bounds.order import windows_bound as windows
from planner.bounds.paths import find_layer, layer_bound, path_bound
from planner.evidence.certificate import check_certificate, make_bound, schedule_bound
from planner.layout.costs import CostModel
from planner.planning import make_plan
from planner.problem import Options, Problem
from planner.progress import Limits
from profiles.cluster import Link
from tests.long_runs import examples, shortened
from tests.planner.brute_force import brute_force, brute_force_plan
from tests.planner.evidence.test_certificate import (
    bound_of,
    make_chain,
    one_each,
    plans_of,
    restricted_problem,
    some_certificates,
)
from tests.strategies import random_problem, tiny_problems, with_memory

SINGLE = Options(receive_buffers=0, max_replicas=1, max_stages_per_device=1)


def placed(problem: Problem, stages: tuple[Any, ...]) -> Problem:
    """The problem of ordering the actions of these stages."""
    parts, groups = tuple(stage.layers for stage in stages), tuple(stage.replicas for stage in stages)
    return replace(problem, options=replace(problem.options, partition=parts, placement=groups))


def is_ruled_out(problem: Problem, stages: tuple[Any, ...], value: int) -> bool:
    """Whether the windows bound denies that some order of these stages has the given objective, however it is asked."""
    times = windows.make_times(problem, stages, costs=CostModel(problem))
    return times is not None and any(windows.is_out_of_reach(times, value, probes=probes) for probes in (0, 7, 200))


@pytest.mark.slow
@settings(max_examples=shortened(8, whole=100), deadline=None)
@given(problem=tiny_problems())
def test_brute_force_is_not_below_any_bound(problem):
    """Tests that the best of all plans is not below the bound, with replicas, chunks, recomputation and branches."""
    best = brute_force(problem)
    if best is not None:
        bound = make_bound(problem, CostModel(problem))
        assert bound.value_ns <= best
        assert check_certificate(problem, bound.certificate) == bound.value_ns


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(problem=tiny_problems())
def test_best_orders_are_within_their_windows(problem):
    """Tests that the best order of the best stages, found by brute force, is not ruled out by the windows bound."""
    found = brute_force_plan(problem)
    if found is not None:
        assert not is_ruled_out(problem, found[1].stages, found[0])


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_no_order_is_outside_its_windows(rng):
    """Tests that no random order of random stages is ruled out, even in the least memory that it fits."""
    problem = random_problem(rng)
    for tight, plan, value in plans_of(rng, problem, tries=3):
        assert not is_ruled_out(tight, plan.stages, value)


def test_windows_close_what_the_schedule_bound_leaves_open():
    """Tests that an F and an I in each other's way are seen: brute force takes 60, one machine alone sees 57."""
    problem = make_chain(
        [(4, 5, 1), (7, 8, 2), (2, 2, 1)], num_devices=3, num_microbatches=3, memory=20, stash=(10, 0), options=SINGLE
    )
    stages = one_each(problem)
    fixed = placed(problem, stages)
    bound = bound_of(fixed)
    assert schedule_bound(fixed, stages, costs=CostModel(fixed)) == 57
    assert (bound.kind, bound.value_ns, brute_force(fixed)) == ("windows", 60, 60)
    assert check_certificate(fixed, bound.certificate) == 60
    assert schedule_bound(fixed, stages, costs=CostModel(fixed), reached=70) == 60


def test_trying_both_orders_closes_more():
    """Tests that what both orders of two actions have in common is seen where neither is impossible."""
    problem = make_chain(
        [(837, 1282, 1267), (764, 961, 520), (1207, 1160, 883), (1088, 914, 496)],
        num_devices=4, num_microbatches=8, memory=200, stash=(100, 50), edge_bytes=20, options=SINGLE,
    )  # fmt: skip
    times = windows.make_times(problem, one_each(problem), costs=CostModel(problem))
    assert times is not None
    # CP-SAT proves 44,058 to be the optimum
    assert not windows.is_out_of_reach(times, 43_000)
    assert windows.is_out_of_reach(times, 43_000, probes=80)
    assert not windows.is_out_of_reach(times, 44_058, probes=1_000)


def test_windows_are_for_given_stages_and_makespans():
    """Tests that a windows bound is refused where stages are open, and where the span is minimised."""
    problem = make_chain([(4, 5, 1), (7, 8, 2)], num_devices=2, num_microbatches=3, options=SINGLE)
    certificate = {"kind": "windows", "value_ns": 20, "probes": 0}
    with pytest.raises(ValueError, match="partition and placement"):
        check_certificate(problem, certificate)
    fixed = placed(problem, one_each(problem))
    assert check_certificate(fixed, certificate) == 20
    with pytest.raises(ValueError, match="does not hold"):
        check_certificate(replace(fixed, options=replace(fixed.options, objective="span")), certificate)


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(rng=st.randoms(use_true_random=False), factor=st.sampled_from([2, 7, 1000]))
def test_scaled_times_scale_the_windows(rng, factor):
    """Tests that what is out of reach stays so with all times and the value k times as large, and nothing else does."""
    times = [(rng.randint(1, 9), rng.randint(1, 9), rng.randint(1, 5)) for _ in range(3)]
    chains = [
        make_chain(
            [tuple(k * t for t in row) for row in times],
            num_devices=3, num_microbatches=3, memory=rng.choice([10, 20]), stash=(10, 0), options=SINGLE,
        )
        for k in (1, factor)
    ]  # fmt: skip
    chains[1] = with_memory(chains[1], {d.name: d.memory_bytes for d in chains[0].cluster.devices})
    small, large = (windows.make_times(chain, one_each(chain), costs=CostModel(chain)) for chain in chains)
    assert small is not None
    assert large is not None
    for value in rng.sample(range(20, 120), 6):
        for probes in (0, 40):
            found = [windows.is_out_of_reach(t, k * value, probes=probes) for t, k in ((small, 1), (large, factor))]
            assert found[0] == found[1]


@pytest.mark.slow
@settings(max_examples=examples(30), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_one_more_device_or_more_memory_never_raises_a_bound_above_a_plan(rng):
    """Tests that a plan stays above the bound when a device that may idle is added, or all get more memory."""
    problem = restricted_problem(rng)
    problem = replace(problem, options=replace(problem.options, idle_devices=True))
    for tight, _, value in plans_of(rng, problem, tries=2):
        roomy = with_memory(tight, {d.name: 2 * d.memory_bytes + 1 for d in tight.cluster.devices})
        first = tight.cluster.devices[0]
        more = Link(a=first.name, b="spare", bandwidth_bytes_per_s=10**12)
        cluster = replace(
            tight.cluster,
            devices=(*tight.cluster.devices, replace(first, name="spare")),
            links=(*tight.cluster.links, more),
        )
        for easier in (roomy, replace(tight, cluster=cluster)):
            assert bound_of(easier).value_ns <= value


@settings(max_examples=examples(40), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_closed_forms_do_not_grow_with_memory(rng):
    """Tests that the kinds that know no memory are the same with more of it."""
    problem = restricted_problem(rng)
    roomy = with_memory(problem, {d.name: 2 * d.memory_bytes + 1 for d in problem.cluster.devices})
    assert find_layer(Least(problem, CostModel(problem))) == find_layer(Least(roomy, CostModel(roomy)))
    assert path_bound(Least(problem, CostModel(problem))) == path_bound(Least(roomy, CostModel(roomy)))


@settings(max_examples=examples(60), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_the_largest_layer_bound_is_found(rng):
    """Tests that leaving out layers that cannot have the largest bound leaves the largest in."""
    least = Least(problem := restricted_problem(rng), CostModel(problem))
    assert find_layer(least)[1] == max(layer_bound(least, number) for number in range(len(least.layers)))


BAD_NUMBERS = (-1, -(10**30), 10**30, 1 << 63, 0.5, float("nan"), float("inf"), True, None, "1", [1], {}, b"1")


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all fields of a certificate, tables included."""
    for name, inner in value.items():
        yield (*path, name)
        if isinstance(inner, dict):
            yield from leaves(inner, (*path, name))


def changed(certificate: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The certificate with another value in one place."""
    if not path:
        return value
    return {**certificate, path[0]: changed(certificate[path[0]], path[1:], value)}


def without(certificate: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The certificate without one of its fields."""
    if len(path) > 1:
        return {**certificate, path[0]: without(certificate[path[0]], path[1:])}
    return {name: value for name, value in certificate.items() if name != path[0]}


@pytest.mark.parametrize("case", range(6))
def test_tampered_fields_are_rejected(case):
    """Tests that a field that is no integer from 0, too large, missing or one too many ends in one clear message."""
    problem, certificate = every_certificate()[case]
    for path in leaves(certificate):
        for bad in BAD_NUMBERS:
            with pytest.raises(ValueError, match="certificate: "):
                check_certificate(problem, changed(certificate, path, bad))
        with pytest.raises(ValueError, match="certificate: "):
            check_certificate(problem, without(certificate, path))
    for extra in ({"proof": 1}, {"weights": {}}, {7: 7}, {"layers": "l1"}):
        with pytest.raises(ValueError, match="certificate: "):
            check_certificate(problem, {**certificate, **extra} if extra.keys() - certificate else {**extra})


@pytest.mark.parametrize("case", range(6))
def test_certificates_of_another_kind_are_rejected(case):
    """Tests that the fields of one kind prove nothing under the name of another."""
    problem, certificate = every_certificate()[case]
    for kind in ("work", "layer", "path", "pipeline", "schedule", "windows", "optimal", "WORK"):
        if kind != certificate["kind"]:
            check = {**certificate, "kind": kind, "value_ns": certificate["value_ns"] + 1}
            with pytest.raises(ValueError, match="certificate: "):
                check_certificate(problem, check)


@pytest.mark.parametrize(
    "junk", [None, 7, "work", [], [("kind", "work")], {1: 2}, {"kind": "work", "value_ns": 10**400}]
)
def test_what_is_no_certificate_is_rejected(junk):
    """Tests that other documents end in the same clear message."""
    with pytest.raises(ValueError, match="certificate: "):
        check_certificate(make_chain([(1, 1, 1)], num_devices=1, num_microbatches=1), junk)


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(
    case=st.integers(0, 5),
    value=st.integers(0, 2**62),
    weight=st.integers(0, 2**70),
    memory=st.integers(0, 2**70),
    shift=st.integers(0, 70),
)
def test_no_numbers_prove_too_much(case, value, weight, memory, shift):
    """Tests that whatever weights and prices are made up, nothing above the best plan is proved or crashes."""
    problem, certificate = every_certificate()[case]
    made_up = {**certificate, "value_ns": value}
    if "weights" in certificate:
        made_up["weights"] = {"gpu": weight}
    if "price" in certificate:
        made_up["price"] = {"weights": {"gpu": weight}, "memory": memory, "shift": shift}
    with suppress(ValueError):
        assert check_certificate(problem, made_up) <= best_known(case)


@cache
def every_certificate() -> list[tuple[Problem, dict[str, Any]]]:
    """A problem and a certificate of every kind."""
    narrow = make_chain(
        [(4, 5, 1), (7, 8, 2), (2, 2, 1)], num_devices=3, num_microbatches=3, memory=20, stash=(10, 0), options=SINGLE
    )
    return [*some_certificates(), (fixed := placed(narrow, one_each(narrow)), bound_of(fixed).certificate)]


@cache
def best_known(case: int) -> int:
    """The objective of a plan of the problem of `every_certificate`."""
    plan = make_plan(every_certificate()[case][0], limits=Limits(time_limit_s=60, max_rounds=1))
    assert plan.evidence is not None
    return plan.evidence.makespan_ns


def test_the_enclosed_question_is_left_alone():
    """Tests that a certificate may bring its question along, and proves the same with it."""
    for problem, certificate in every_certificate():
        assert check_certificate(problem, {**certificate, "enclosed": {"profile": {}}}) == certificate["value_ns"]

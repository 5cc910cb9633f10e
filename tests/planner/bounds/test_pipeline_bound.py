"""Every kind of bound against brute force, under changes that cannot help, and against certificates that lie."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.evidence.certificate import check_certificate, make_bound, schedule_bound
from planner.layout.costs import CostModel
from planner.problem import Options, Problem
from planner.progress import Limits
from profiles.cluster import Link
from tests.long_runs import examples, shortened
from tests.planner.brute_force import brute_force
from tests.planner.evidence.test_certificate import (
    bound_of,
    make_chain,
    one_each,
    plans_of,
    restricted_problem,
    some_certificates,
)
from tests.planner.hasty import make_plan
from tests.strategies import tiny_problems, with_memory

SINGLE = Options(receive_buffers=0, max_replicas=1, max_stages_per_device=1)


def placed(problem: Problem, stages: tuple[Any, ...]) -> Problem:
    """The problem of ordering the actions of these stages."""
    parts, groups = tuple(stage.layers for stage in stages), tuple(stage.replicas for stage in stages)
    return replace(problem, options=replace(problem.options, partition=parts, placement=groups))


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

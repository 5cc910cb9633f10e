"""The tree of the exact search reaches every partition and mapping that the options allow, and no other."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bounds.order.joint_memory_limit import HeldTogether
from planner.bounds.order.schedule_bound import HeadsAndTails
from planner.evidence.certificate import schedule_bound
from planner.problem import Problem
from solver_models.exact_order.lower_bounds import schedule_lower_bound
from solver_models.joint.search_space import automorphisms, make_space
from solver_models.joint.subproblems import OpenCase, open_cases
from solver_models.local_search.search import LATEST, Searcher
from tests.long_runs import examples
from tests.planner.builders import make_layer, make_link, make_problem
from tests.solver_models.nets import Case, keeps_options, random_case, random_restrictions
from tests.strategies import AMPLE

randoms = st.randoms(use_true_random=False)

Joint = tuple[tuple[int, ...], tuple[tuple[int, ...], ...], tuple[int, ...]]


def every_joint(problem: Problem) -> Iterator[Joint]:
    """All stages of all layers, on all devices in all orders, that keep the options; tried one by one."""
    num_layers, num_devices = len(problem.profile.layers), len(problem.cluster.devices)
    index = {name: number for number, name in enumerate(problem.profile.topological_order)}
    edges = [(index[edge.producer], index[edge.consumer]) for edge in problem.profile.edges]
    every_group = [group for size in range(1, num_devices + 1) for group in permutations(range(num_devices), size)]
    for stage_of in product(range(num_layers), repeat=num_layers):
        num_stages = max(stage_of) + 1
        if len(set(stage_of)) == num_stages and all(stage_of[a] <= stage_of[b] for a, b in edges):
            for groups in product(every_group, repeat=num_stages):
                if keeps_options(problem, stage_of, groups=groups):
                    for flags in product((0, 1) if problem.options.recompute else (0,), repeat=num_stages):
                        yield stage_of, groups, flags


def small_problem(rng: Random, *, may_recompute: bool = True) -> Problem:
    """At most three layers on two devices, or two on three, with restrictions of every kind."""
    num_layers, num_devices = rng.choice([(3, 2), (2, 3), (4, 1)])
    return random_restrictions(
        rng, num_layers=num_layers, num_devices=num_devices, num_microbatches=2, may_recompute=may_recompute
    )


def listed(searcher: Searcher, *, threshold: int = LATEST) -> tuple[OpenCase, ...]:
    """The cases below a threshold."""
    space = make_space(searcher.instance)
    assert space is not None
    found = open_cases(searcher, space, threshold=threshold)
    assert found is not None
    return found


def joints(cases: tuple[OpenCase, ...]) -> list[Joint]:
    return [(tuple(case.stage_of.tolist()), case.groups, tuple(case.modes.tolist())) for case in cases]


def permuted(joint: Joint, image: tuple[int, ...]) -> Joint:
    """The case with its devices permuted."""
    return joint[0], tuple(tuple(image[d] for d in group) for group in joint[1]), joint[2]


def rank(joint: Joint) -> object:
    """Of cases that differ by a symmetry the first is listed: by sets of devices, small ones first, then by orders."""
    sets = [(len(group), tuple(sorted(group))) for group in joint[1]]
    return sets, [(*own, group) for own, group in zip(sets, joint[1], strict=True)]


@given(randoms)
def test_nothing_is_left_out_or_made_up(rng: Random):
    """Tests that every partition and mapping that the options allow is listed once, up to symmetries of the devices."""
    problem = small_problem(rng)
    searcher = Case(problem, ()).searcher
    images = [tuple(range(len(problem.cluster.devices))), *map(tuple, automorphisms(searcher.instance).tolist())]
    found = joints(listed(searcher))
    assert len(found) == len(set(found))
    expected = {
        min(
            ((stage_of, tuple(tuple(image[d] for d in group) for group in groups), flags) for image in images), key=rank
        )
        for stage_of, groups, flags in every_joint(problem)
    }
    assert sorted(found) == sorted(expected)


@settings(max_examples=examples(30))
@given(randoms)
def test_floors_hold_for_every_order(rng: Random):
    """Tests that no order of a case beats its floor, and that cases that do not fit into memory are gone."""
    problem = random_case(rng, is_tight=True, num_layers=3, num_devices=2, num_microbatches=2).problem
    problem = replace(problem, options=replace(problem.options, max_stages_per_device=2))
    searcher = Case(problem, ()).searcher
    cases = listed(searcher)
    for case in rng.sample(cases, min(20, len(cases))):
        candidate = searcher.rate(case.stage_of, case.groups, modes=case.modes)
        assert not candidate.is_feasible or candidate.objective >= case.lower_bound
        is_done, best = searcher.enumerate_orders(candidate, threshold=LATEST, most_orders=500, most_plays=5000)
        if is_done and best is not None:
            assert case.lower_bound <= best.objective
            assert best.sort_key <= candidate.sort_key


FLOOR = HeldTogether.lower_bound


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(randoms)
def test_compiled_floor_is_the_schedule_bound(rng: Random):
    """Tests that the compiled schedule bound is at least the planner's, and equal to it where every stage has a W.

    What two stages of one device hold of the same microbatches is the planner's alone, and only raises its bound; so is
    what more than two have room for together.
    """
    case = random_case(rng, is_tight=rng.random() < 0.5)
    if case.problem.options.objective == "makespan":
        floor = int(schedule_lower_bound(case.net, LATEST))
        has_many = np.diff(case.net.device_start).max() > 2
        with (
            patch.object(HeadsAndTails, "_within", return_value=[]),
            patch.object(
                HeldTogether, "lower_bound", lambda *given, **times: 0 if has_many else FLOOR(*given, **times)
            ),
        ):
            bound = schedule_bound(case.problem, case.stages, costs=case.costs)
        assert floor >= bound
        assert floor == bound or has_many or not np.all(case.net.has_weight)
        assert schedule_bound(case.problem, case.stages, costs=case.costs) >= bound


@given(randoms)
def test_symmetries_leave_the_instance_alone(rng: Random):
    """Tests that permuting the devices of any case by a symmetry changes neither its floor nor what policies make."""
    problem = small_problem(rng)
    problem = replace(problem, cluster=alike(problem, rng))
    searcher = Case(problem, ()).searcher
    images = automorphisms(searcher.instance).tolist()
    for case in listed(searcher)[:20]:
        rated = searcher.rate(case.stage_of, case.groups, modes=case.modes)
        for image in images:
            groups = tuple(tuple(image[d] for d in group) for group in case.groups)
            assert searcher.lower_bound(case.stage_of, groups, modes=case.modes) is not None
            assert searcher.rate(case.stage_of, groups, modes=case.modes).sort_key == rated.sort_key


def alike(problem: Problem, rng: Random):
    """The cluster with devices of one kind, and now and then links of one kind."""
    first = problem.cluster.devices[0]
    devices = tuple(replace(d, type=first.type, memory_bytes=AMPLE) for d in problem.cluster.devices)
    links = problem.cluster.links
    if rng.random() < 0.7:
        own = links[:1]
        links = tuple(
            replace(link, bandwidth_bytes_per_s=own[0].bandwidth_bytes_per_s, latency_ns=own[0].latency_ns, duplex=True)
            for link in links
        )
    return replace(problem.cluster, devices=devices, links=links)


def test_equal_devices_are_permuted_freely():
    """Tests that equal devices have all symmetries, and with one slow link only the one that turns it around."""
    problem = make_problem([make_layer("x")], [make_link("a b"), make_link("b c"), make_link("a c")])
    assert len(automorphisms(Case(problem, ()).instance)) == 5
    unlike = make_problem([make_layer("x")], [make_link("a b"), make_link("b c", latency=1), make_link("a c")])
    (image,) = automorphisms(Case(unlike, ()).instance).tolist()
    names = [device.name for device in unlike.cluster.devices]
    assert [names[device] for device in image] == [{"a": "a", "b": "c", "c": "b"}[name] for name in names]


def test_many_layers_have_no_space():
    """Tests that a problem with more layers than bits is left to other methods."""
    searcher = Case(make_problem([make_layer(f"l{i}") for i in range(63)], [make_link("a b")]), ()).searcher
    assert make_space(searcher.instance) is None

"""Tests of solver_models/joint/partition_enumeration.py."""

from collections.abc import Iterator
from itertools import permutations, product
from random import Random

from hypothesis import given

from planner.problem import Problem
from solver_models.joint.search_space import automorphisms
from solver_models.joint.subproblems import OpenCase
from tests.solver_models.exact_order.test_lower_bounds import listed, randoms
from tests.solver_models.nets import Case, keeps_options, random_restrictions

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


def joints(cases: tuple[OpenCase, ...]) -> list[Joint]:
    return [(tuple(case.stage_of.tolist()), case.groups, tuple(case.modes.tolist())) for case in cases]


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

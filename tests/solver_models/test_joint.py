"""The exact joint search looks at every partition and mapping that the options allow, and at no other."""

from collections.abc import Iterator
from itertools import permutations, product
from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.problem import Problem
from solver_models.joint import enumerate_joint, open_cases
from tests.planner.builders import make_layer, make_link, make_problem
from tests.solver_models.nets import Case, keeps_options, random_restrictions

randoms = st.randoms(use_true_random=False)

Joint = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]


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
                    yield stage_of, groups


def small_problem(rng: Random) -> Problem:
    """At most three layers on two devices, or two on three, with restrictions of every kind."""
    num_layers, num_devices = rng.choice([(3, 2), (2, 3), (4, 1)])
    return random_restrictions(
        rng, num_layers=num_layers, num_devices=num_devices, num_microbatches=2, may_recompute=False
    )


@given(randoms)
def test_nothing_is_left_out_or_made_up(rng: Random):
    """Tests that the enumeration lists exactly the partitions and mappings that the options allow, each once."""
    problem = small_problem(rng)
    found = enumerate_joint(Case(problem, ()).searcher, limit=10**6)
    assert found is not None
    listed = [(tuple(stage_of.tolist()), groups) for stage_of, groups in found]
    assert sorted(listed) == sorted(every_joint(problem))


@settings(max_examples=20)
@given(randoms)
def test_cases_are_sorted_by_a_true_floor(rng: Random):
    """Tests that no order of a case beats its floor, that the least floor comes first, and that some may be gone."""
    problem = small_problem(rng)
    searcher = Case(problem, ()).searcher
    cases, everything = open_cases(searcher, limit=10**6), enumerate_joint(searcher, limit=10**6)
    assert cases is not None
    assert everything is not None
    assert len(cases) <= len(everything)
    assert [case.floor for case in cases] == sorted(case.floor for case in cases)
    for case in cases[:30]:
        candidate = searcher.rate(case.stage_of, case.groups)
        assert candidate.objective >= case.floor
        is_done, best = searcher.enumerate_orders(candidate, threshold=1 << 60, most_words=500, most_plays=5000)
        assert not is_done or best is None or case.floor <= best.objective <= candidate.objective


@given(randoms)
def test_too_much_is_refused(rng: Random):
    """Tests that a limit below the number of partitions times mappings gives nothing at all."""
    problem = small_problem(rng)
    searcher = Case(problem, ()).searcher
    found = enumerate_joint(searcher, limit=10**6)
    assert found is not None
    assume(found)
    assert enumerate_joint(searcher, limit=len(found) - 1) is None
    assert open_cases(searcher, limit=len(found) - 1) is None


def test_more_to_decide_is_refused():
    """Tests that the exact search leaves problems alone in which recomputation or given stages come in."""
    layers, links = [make_layer("x"), make_layer("y")], [make_link("a b")]
    for options in ({"recompute": True}, {"partition": (("x",), ("y",))}):
        searcher = Case(make_problem(layers, links, **options), ()).searcher
        assert enumerate_joint(searcher, limit=10**6) is None

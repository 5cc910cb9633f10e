"""Tests of solver_models/joint/subproblems.py."""

from random import Random

from hypothesis import given, settings

from solver_models.joint.search_space import make_space
from solver_models.joint.subproblems import open_cases
from tests.long_runs import examples
from tests.planner.builders import make_layer, make_link, make_problem
from tests.solver_models.exact_order.test_lower_bounds import listed, randoms
from tests.solver_models.joint.test_partition_enumeration import joints, small_problem
from tests.solver_models.nets import Case, is_ordered


@settings(max_examples=examples(30))
@given(randoms)
def test_cases_below_a_threshold_are_those_with_a_lower_floor(rng: Random):
    """Tests that the tree cuts off exactly what its leaves would: nothing below the threshold is lost on the way."""
    problem = small_problem(rng)
    searcher = Case(problem, ()).searcher
    everything = listed(searcher)
    assert [case.lower_bound for case in everything] == sorted(case.lower_bound for case in everything)
    for case in rng.sample(everything, min(3, len(everything))):
        below = [other.lower_bound for other in everything if other.lower_bound < case.lower_bound]
        assert [other.lower_bound for other in listed(searcher, threshold=case.lower_bound)] == below


def test_given_stages_leave_only_mappings():
    """Tests that with the stages given only their devices are tried, and with both given only one case is left."""
    layers, links = [make_layer("x"), make_layer("y"), make_layer("z")], [make_link("a b")]
    partition = (("x",), ("y", "z"))
    problem = make_problem(layers, links, partition=partition, max_stages_per_device=1, max_replicas=1)
    assert [case.stage_of.tolist() for case in listed(Case(problem, ()).searcher)] == [[0, 1, 1]]
    problem = make_problem(
        layers, links, partition=partition, placement=((("b",),), (("a",),)), max_stages_per_device=1, max_replicas=1
    )
    assert joints(listed(Case(problem, ()).searcher)) == [((0, 1, 1), ((1,), (0,)), (0, 0))]


def test_too_much_is_refused():
    """Tests that a limit on nodes or cases gives nothing rather than a part."""
    layers, links = [make_layer(name) for name in "wxyz"], [make_link("a b")]
    searcher = Case(make_problem(layers, links), ()).searcher
    space = make_space(searcher.instance)
    assert space is not None
    everything = open_cases(searcher, space)
    assert everything is not None
    assert open_cases(searcher, space, most_nodes=20) is None
    assert open_cases(searcher, space, most_cases=len(everything) - 1) is None
    enough = open_cases(searcher, space, most_cases=len(everything))
    assert enough is not None
    assert joints(enough) == joints(everything)


def test_partitions_are_monotone():
    """Tests that stages never decrease along an edge, whatever the graph."""
    for seed in range(10):
        searcher = Case(small_problem(Random(seed)), ()).searcher
        assert all(is_ordered(searcher.instance, case.stage_of) for case in listed(searcher))

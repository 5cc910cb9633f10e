"""Bounds of one layer: tests of planner/bounds/paths.py."""

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bounds.minimum_costs import Least
from planner.bounds.paths import find_layer, layer_bound, path_bound
from planner.layout.costs import CostModel
from tests.long_runs import examples
from tests.planner.evidence.test_certificate import (
    restricted_problem,
)
from tests.strategies import with_memory


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

"""Stages that the classes bound leaves possible: whole, on different devices, and close to the bound."""

from dataclasses import replace

import pytest

from benchmarks.chains import make_one_by_one
from benchmarks.generate import parse_family
from planner.certificate import make_bound, schedule_bound
from planner.costs import CostModel
from planner.planning.class_layouts import class_layouts
from planner.planning.planning_params import NearBoundParams
from planner.problem import Options, PinnedLayer, Problem
from tests.planner.test_certificate import make_chain
from tests.planner.test_device_classes import ONE_EACH, unlike


@pytest.fixture(name="family")
def two_hosts() -> Problem:
    """A chain over two hosts of two speeds."""
    return make_one_by_one(parse_family("chain-24x4-m8-tight-two-level-classes"))


def test_layouts_are_partitions_close_to_the_bound(family):
    """Tests that every layer is in one stage, every stage on its own device, and the best within 5 % of the bound."""
    costs = CostModel(family)
    bound = make_bound(family, costs)
    found = class_layouts(family, costs, value_ns=bound.value_ns, seed=1)
    assert 0 < len(found) <= NearBoundParams().layouts
    for stages in found:
        assert [name for stage in stages for name in stage.layers] == list(family.profile.topological_order)
        devices = [stage.replicas[0][0] for stage in stages]
        assert len(set(devices)) == len(devices)
    values = [schedule_bound(family, stages, costs=costs) for stages in found]
    assert values == sorted(values)
    assert bound.value_ns <= values[0] <= 1.05 * bound.value_ns


def test_layouts_are_the_same_for_a_seed(family):
    """Tests that the same seed gives the same layouts."""
    costs = CostModel(family)
    value_ns = make_bound(family, costs).value_ns
    first, second = (class_layouts(family, costs, value_ns=value_ns, seed=3) for _ in range(2))
    assert first == second


def test_no_layouts_where_something_is_decided(family):
    """Tests that pinned layers, given stages, chunks and replicas have no layouts from classes."""
    costs = CostModel(family)
    name, device = family.profile.layers[0].name, family.cluster.devices[0].name
    for options in (
        replace(family.options, pinned=(PinnedLayer(layer=name, device=device),)),
        replace(family.options, partition=(family.profile.topological_order,)),
        Options(),
    ):
        assert class_layouts(replace(family, options=options), costs, value_ns=10**9, seed=0) == []


def test_the_optimum_is_among_them():
    """Tests that for one fast and one slow device the first layout may be as good as the optimum, by its own bound."""
    problem = unlike(make_chain([(10, 10, 10)] * 3, num_devices=2, num_microbatches=4, options=ONE_EACH), slow=1)
    costs = CostModel(problem)
    found = class_layouts(problem, costs, value_ns=360, seed=0)
    assert schedule_bound(problem, found[0], costs=costs) == 360

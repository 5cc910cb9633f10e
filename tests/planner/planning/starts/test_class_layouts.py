"""Stages that the classes bound leaves possible: whole, on different devices, and close to the bound."""

import math
from dataclasses import replace

import pytest

from benchmarks.generate import parse_family
from planner.bounds.classes.classes_bound import SWEEPS, Sequence, effort
from planner.bounds.classes.device_classes import Classes, propose
from planner.bounds.heaviest_path import Trunk
from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import make_bound, schedule_bound
from planner.layout.costs import CostModel
from planner.planning.runs import run as driver
from planner.planning.search_state import SearchState
from planner.planning.starts.class_layouts import NEAR_BOUND, class_layouts
from planner.problem import Options, PinnedLayer, Problem
from planner.progress import Limits
from tests.planner.bounds.classes.test_device_classes import ONE_EACH, unlike
from tests.planner.evidence.test_certificate import make_chain
from tests.planner.generated_chains import make_one_by_one


@pytest.fixture(name="family")
def two_hosts() -> Problem:
    """A chain over two hosts of two speeds."""
    return make_one_by_one(parse_family("chain-24x4-m8-tight-two-level-classes"))


def test_layouts_are_partitions_close_to_the_bound(family):
    """Tests that every layer is in one stage, every stage on its own device, and the best within 5 % of the bound."""
    costs = CostModel(family)
    bound = make_bound(family, costs)
    found = class_layouts(family, costs, value_ns=bound.value_ns, seed=1)
    assert 0 < len(found) <= 40
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


def test_a_limit_on_figures_leaves_times_by_rank_out(family):
    """Tests that with too few figures for times by rank there are layouts all the same, by sums, for less work."""
    costs = CostModel(family)
    value_ns = make_bound(family, costs).value_ns
    classes = Classes(trunk := Trunk(Least(family, costs)), propose(trunk)[0])
    deadline = int(1.01 * value_ns)
    whole, least = Sequence(classes, deadline), Sequence(classes, deadline, most_figures=0)
    assert not whole.is_out_of_reach()
    assert not least.is_out_of_reach()
    assert least.cost == SWEEPS * effort(classes, deadline) < whole.cost
    limited = Sequence(classes, deadline, most_figures=2 * whole.cost)
    assert not limited.is_out_of_reach()
    assert limited.cost == whole.cost
    kept, all_of_them = (sum(len(steps.after) for steps in each.steps) for each in (whole, least))
    assert 0 < kept < all_of_them
    found = class_layouts(family, costs, value_ns=value_ns, seed=1, figures=0)
    assert found
    assert min(schedule_bound(family, stages, costs=costs) for stages in found) >= value_ns


@pytest.mark.parametrize("max_rounds", [None, 2])
def test_looking_for_them_takes_a_part_of_the_time_left(family, monkeypatch, max_rounds):
    """Tests that work is limited to a part of the time left, as a turn, and not where rounds are counted."""
    asked: list[float] = []
    monkeypatch.setattr(driver, "class_layouts", lambda *_, figures, **__: asked.append(figures) or [])
    limits = Limits(time_limit_s=1000, max_rounds=max_rounds)
    run = SearchState(family, limits, on_progress=lambda _: None, should_stop=lambda: False)
    driver.add_class_layouts(run, CostModel(family), value_ns=1)
    expected = math.inf if max_rounds else 0.2 * 1000 * 10_000_000
    assert asked == [pytest.approx(expected, rel=0.1)]
    assert NEAR_BOUND in {each.name for each in run.improvers}


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

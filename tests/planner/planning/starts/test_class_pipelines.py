"""First plans on classes of many like devices."""

from dataclasses import replace
from math import inf

import pytest

from benchmarks.generate import make_workload, parse_family
from planner.batch_problem import BatchProblem, question_of_workload
from planner.evidence.certificate import make_bound
from planner.layout.costs import CostModel
from planner.layout.device_groups import has_listed_groups
from planner.planning.planning_params import SearchParams
from planner.planning.runs.run import begin_run, ignore, never
from planner.planning.starts.class_pipelines import (
    CLASS_PIPELINES,
    begin_with_classes,
    class_pipelines,
    may_have_classes,
)
from planner.planning.starts.conversions import rate
from planner.planning.starts.first_starts import propose_best_seed
from planner.problem import Options, PinnedLayer, Problem
from planner.progress import Limits
from solver_models.local_search.search import Searcher
from tests.planner.planning.starts.two_type_cluster import make_question


@pytest.fixture(name="mixed", scope="module")
def mixed_problem() -> Problem:
    """Two types of devices, several widths, microbatches of 32 samples."""
    return make_question(16, 32).at(32)


def test_stages_are_possible(mixed):
    """Tests that layers are all there in order, groups are listed ones, shares whole and measured."""
    costs = CostModel(mixed)
    found = class_pipelines(mixed, costs, known=inf)
    assert found
    assert [estimate for estimate, _ in found] == sorted(estimate for estimate, _ in found)
    for _, stages in found:
        assert tuple(name for stage in stages for name in stage.layers) == mixed.profile.topological_order
        assert has_listed_groups(mixed, stages)
        assert all(32 % len(stage.replicas) == 0 for stage in stages)
        assert not costs.unmeasured_costs(stages)


def test_best_becomes_the_incumbent(mixed):
    """Tests that the first plan is verified, close to its estimate, and made once."""
    run = begin_run(
        mixed, Limits(time_limit_s=60.0), on_progress=ignore, should_stop=never, target=None, params=SearchParams()
    )
    begin_with_classes(run)
    propose_best_seed(run)
    assert run.plan is not None
    assert run.source == CLASS_PIPELINES
    best = class_pipelines(mixed, run.costs, known=inf)[0][0]
    assert 0.8 * best <= (run.incumbent_ns or 0) <= 1.2 * best
    improvements = run.tallies[CLASS_PIPELINES].improvements
    begin_with_classes(run)
    propose_best_seed(run)
    assert run.tallies[CLASS_PIPELINES].improvements == improvements > 0
    run.window.close()


def test_steps_from_the_best_one(mixed):
    """Tests that pipelines a step from the best of the first are played, and a better one is found where there is."""
    run = begin_run(
        mixed, Limits(time_limit_s=600.0), on_progress=ignore, should_stop=never, target=None, params=SearchParams()
    )
    searcher = Searcher(run.instance)
    first = [rate(mixed, searcher, stages=stages) for _, stages in class_pipelines(mixed, run.costs, known=inf)[:3]]
    begin_with_classes(run)
    assert run.seeds[-1].is_feasible
    assert run.seeds[-1].objective < min(each.objective for each in first if each.is_feasible)
    run.window.close()


def test_where_there_are_none(mixed):
    """Tests that few devices, pinned layers and single replicas are left to others."""
    assert may_have_classes(mixed)
    assert not may_have_classes(mixed, least_devices=49)
    pinned = (PinnedLayer(layer="layer 0", device=mixed.cluster.devices[0].name),)
    for options in (replace(mixed.options, pinned=pinned), replace(mixed.options, max_replicas=1)):
        assert not may_have_classes(replace(mixed, options=options))


@pytest.mark.parametrize("speeds", ["four", "different"])
def test_many_classes(speeds: str):
    """Tests that where tables would fill the memory, or have more sides than there are, pipelines are found by trying.

    None is far from all devices being filled, and replicas are of one speed or of speeds next to each other.
    """
    family = parse_family(f"chain-40x128-g512-mid-sparse-{speeds}")
    question = question_of_workload(make_workload(family), Options())
    assert isinstance(question, BatchProblem)
    problem = question.candidates[-1]
    costs = CostModel(problem)
    assert may_have_classes(problem)
    found = class_pipelines(problem, costs, known=inf)
    assert found
    for _, stages in found[:3]:
        assert tuple(name for stage in stages for name in stage.layers) == problem.profile.topological_order
        used = [device for stage in stages for group in stage.replicas for device in group]
        assert len(set(used)) == len(used)
        assert not costs.unmeasured_costs(stages)
    reached = make_bound(problem, costs, time_limit_s=0.0).value_ns
    assert found[0][0] <= 2 * reached
    assert not class_pipelines(problem, costs, known=reached / 2)


def test_first_plan_is_spread_over_the_links():
    """Tests that the first plan on hundreds of sparsely linked devices is no slower than its estimate by much."""
    problem = question_of_workload(make_workload(parse_family("chain-40x128-m64-mid-sparse-four")), Options())
    assert isinstance(problem, Problem)
    run = begin_run(
        problem, Limits(time_limit_s=60.0), on_progress=ignore, should_stop=never, target=None, params=SearchParams()
    )
    begin_with_classes(run)
    propose_best_seed(run)
    best = class_pipelines(problem, run.costs, known=inf)[0][0]
    assert run.plan is not None
    assert (run.incumbent_ns or 0) <= 1.25 * best
    run.window.close()

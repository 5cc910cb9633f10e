"""Tests of solver_models/local_search/order_search.py."""

from dataclasses import replace

import pytest

from benchmarks import orders
from benchmarks.zero_bubble import METHOD_OF, SPAN_ROWS, Setting, make_problem
from planner.baselines.layouts import EVEN
from planner.baselines.registry import make_method_plan
from planner.layout.costs import CostModel
from planner.lowering import make_instance, make_schedule_instance
from planner.plan import Stage
from planner.problem import Problem
from solver_models.local_search.order_search import OrderSearch, _OrderRound
from solver_models.local_search.search import Searcher
from solver_models.schedule import large_neighbourhood_search
from solver_models.schedule.cp_neighbourhood import play_orders
from solver_models.starts.first_candidates import make_seeds


def given_problem(setting: Setting, *, limit: int) -> Problem:
    """The setting with its even stages given, the span minimised."""
    problem = make_problem(setting, limit=limit, objective="span")
    stages = make_method_plan(CostModel(problem), METHOD_OF["1F1B"], cut=EVEN).stages
    options = replace(
        problem.options,
        partition=tuple(stage.layers for stage in stages),
        placement=tuple(stage.replicas for stage in stages),
    )
    return replace(problem, options=options)


def test_filling_up_leaves_the_first_device_its_only_wait():
    """Tests that with twice 1F1B's memory the published 28.3B setting loses what its first gradient takes, no more."""
    setting = SPAN_ROWS[-1][0]
    problem = given_problem(setting, limit=2)
    searcher = Searcher(make_instance(problem, CostModel(problem)))
    candidate = make_seeds(searcher)[0]
    search = OrderSearch(searcher, candidate)
    search.add_filled()
    f, i, w, c = setting.forward_us, setting.input_grad_us, setting.weight_grad_us, setting.transfer_us
    first_gradient = 32 * f + 31 * (i + 2 * c)
    wait = first_gradient - 64 * f
    assert search.pool[0].objective == 1000 * (256 * (f + i + w) + wait)


def test_what_a_window_leaves_is_polished_in_the_same_task(monkeypatch: pytest.MonkeyPatch):
    """Tests that a task whose windows change nothing still returns a shorter order, and one that fits."""
    monkeypatch.setattr(large_neighbourhood_search, "sweep", lambda instance, known, **_: play_orders(instance, known))
    problem = orders.make_problem(orders.uneven_times(4, seed=1), num_microbatches=12, memory=0.5)
    costs = CostModel(problem)
    searcher = Searcher(make_instance(problem, costs))
    candidate = make_seeds(searcher)[0]
    stages = tuple(
        Stage(layers=layers, replicas=groups)
        for layers, groups in zip(problem.options.partition or (), problem.options.placement or (), strict=True)
    )
    schedule = make_schedule_instance(problem, stages, costs=costs)
    search = OrderSearch(searcher, candidate, schedule=schedule)
    search.add([searcher.device_orders(candidate)[0]])
    start = search.pool[0].objective
    found = search._task(4, _OrderRound(pool=tuple(search.pool), work=500_000))
    assert found is not None
    assert found.objective < start
    again = search._rate(found.device_orders, found.lengths, origin=0)
    assert again is not None
    assert again.objective == found.objective

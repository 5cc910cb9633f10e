"""Tests of solver_models/local_search/order_search.py."""

from dataclasses import replace

from benchmarks.zero_bubble import METHOD_OF, SPAN_ROWS, Setting, make_problem
from planner.baselines.layouts import EVEN
from planner.baselines.registry import make_method_plan
from planner.layout.costs import CostModel
from planner.lowering import make_instance
from planner.problem import Problem
from solver_models.local_search.order_search import OrderSearch
from solver_models.local_search.search import Searcher
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

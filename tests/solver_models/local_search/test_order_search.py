"""Tests of solver_models/local_search/order_search.py."""

from benchmarks.zero_bubble import SPAN_ROWS, given_problem
from planner.layout.costs import CostModel
from planner.lowering import make_instance
from solver_models.local_search.order_search import OrderSearch
from solver_models.local_search.search import Searcher
from solver_models.starts.first_candidates import make_seeds


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

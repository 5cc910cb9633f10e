"""Plans to candidates of the search and back: tests of planner/planning/starts/conversions.py."""

from planner.planning.improvers.near_bound_trials import try_orders
from planner.planning.starts.conversions import rate
from solver_models.local_search.multistart import JointSearch
from tests.long_runs import long_only
from tests.planner.planning.improvers.test_near_bound_trials import begin


@long_only
def test_orders_of_their_own_beat_the_policies():
    """Tests that the best order is better than what policies reach with any of the stages, and the same every time."""
    run, search = begin(size="48x8-m16")
    policies = [rate(run.problem, search.searcher, stages=stages).objective for stages in run.near_bound]
    again = JointSearch(run.instance)
    for one in (search, again):
        try_orders(run, one)
    best = search.polished[0]
    assert search.searcher.device_orders(best)[1] == best.objective < 0.99 * min(policies)
    assert (again.polished[0].objective, again.polished[0].device_orders) == (best.objective, best.device_orders)

"""Orders for stages near the bound: all are tried briefly, the better half for twice as long, until one is left.

What policies reach says little about stages whose best orders no policy plays: those end up behind others in the pool
of the joint search, which only looks at the orders of the first few.
"""

from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import rate
from solver_models.local_search.multistart import JointSearch
from solver_models.precompile import FIRST


def try_orders(run: SearchState, search: JointSearch) -> None:
    """Offer the best orders found for the stages near the bound to the search."""
    params = run.params.near_bound
    if run.near_bound:
        run.make_ready(*FIRST)
    until = run.elapsed_s + params.trial_share * run.seconds_left
    most = max(1, params.turn_actions // (params.first_plays * run.num_actions))
    rated = (rate(run.problem, search.searcher, stages=stages) for stages in run.near_bound[:most])
    live, plays = [candidate for candidate in rated if candidate.is_feasible], params.first_plays
    while live and not run.should_stop() and (run.limits.max_rounds is not None or run.elapsed_s < until):
        live = search.polish_each(live, iterations=plays)
        search.take(live[:1])
        live, plays = live[: len(live) // 2], 2 * plays

"""Orders for stages near the bound: all are tried briefly, the better half for twice as long, until one is left.

What policies reach says little about stages whose best orders no policy plays: those end up behind others in the pool
of the joint search, which only looks at the orders of the first few.
"""

from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import rate
from solver_models.local_search.multistart import JointSearch
from solver_models.precompile import FIRST

_TRIAL_SHARE = 0.2
"""Part of the time that is left after which no step begins."""
_STEP_ACTIONS = 60_000_000
"""Most work of a step on all of them, in played actions."""
_FIRST_PLAYS = 900
"""Work on the orders of each of them in the first step, in plays; doubled for the better half."""


def try_orders(run: SearchState, search: JointSearch) -> None:
    """Offer the best orders found for the stages near the bound to the search."""
    if run.near_bound:
        run.make_ready(*FIRST)
    until = run.elapsed_s + _TRIAL_SHARE * run.seconds_left
    most = max(1, _STEP_ACTIONS // (_FIRST_PLAYS * run.num_actions))
    rated = (rate(run.problem, search.searcher, stages=stages) for stages in run.near_bound[:most])
    live, plays = [candidate for candidate in rated if candidate.is_feasible], _FIRST_PLAYS
    while live and not run.should_stop() and (run.limits.max_rounds is not None or run.elapsed_s < until):
        live = search.polish_each(live, iterations=plays)
        search.take(live[:1])
        live, plays = live[: len(live) // 2], 2 * plays

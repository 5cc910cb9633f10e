"""Orders for stages near the bound: all are tried briefly, the better half for twice as long, until one is left.

What policies reach says little about stages whose best orders no policy plays: those end up behind others in the pool
of the joint search, which only looks at the orders of the first few.
"""

from planner.planning.conversions import rate
from planner.planning.run import Run
from solver_models.portfolio import JointSearch

FIRST_PLAYS = 900
"""Work on every order in the first turn, in plays."""

TRIAL_SHARE = 0.2
"""Part of the time limit after which no turn begins."""


def try_orders(run: Run, search: JointSearch) -> None:
    """Offer the best orders found for the stages near the bound to the search."""
    rated = (rate(run.problem, search.searcher, stages=stages) for stages in dict.fromkeys(run.near_bound))
    live, plays = [candidate for candidate in rated if candidate.is_feasible], FIRST_PLAYS
    while live and _has_time(run):
        live = search.polish_each(live, iterations=plays)
        search.take(live[:1])
        live, plays = live[: len(live) // 2], 2 * plays


def _has_time(run: Run) -> bool:
    if run.limits.max_rounds is None and run.elapsed_s > TRIAL_SHARE * run.limits.time_limit_s:
        return False
    return not run.should_stop()

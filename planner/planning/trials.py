"""Orders for stages near the bound: all are tried briefly, the better half for twice as long, until one is left.

What policies reach says little about stages whose best orders no policy plays: those end up behind others in the pool
of the joint search, which only looks at the orders of the first few.
"""

from planner.planning.conversions import rate
from planner.planning.run import Run
from solver_models.portfolio import JointSearch

MAX_FIRST_PLAYS, TURN_ACTIONS = 900, 60_000_000
"""Most work on an order in the first turn, in plays; and work of a turn on all of them, in played actions."""

TRIAL_SHARE = 0.2
"""Part of the time that is left after which no turn begins."""


def try_orders(run: Run, search: JointSearch) -> None:
    """Offer the best orders found for the stages near the bound to the search."""
    rated = (rate(run.problem, search.searcher, stages=stages) for stages in dict.fromkeys(run.near_bound))
    until = run.elapsed_s + TRIAL_SHARE * run.seconds_left
    live = [candidate for candidate in rated if candidate.is_feasible]
    plays = min(MAX_FIRST_PLAYS, TURN_ACTIONS // (run.num_actions * max(len(live), 1)))
    while live and not run.should_stop() and (run.limits.max_rounds is not None or run.elapsed_s < until):
        live = search.polish_each(live, iterations=plays)
        search.take(live[:1])
        live, plays = live[: len(live) // 2], 2 * plays

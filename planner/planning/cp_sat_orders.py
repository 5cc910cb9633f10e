"""Small open orders for CP-SAT, between the rounds of the search."""

from planner.certificate import schedule_bound
from planner.lowering import make_plan_from_words, make_schedule_instance
from planner.plan import Plan
from planner.planning.conversions import stages_of
from planner.planning.search_state import SearchState
from planner.planning.sessions import Key, key_of
from solver_models.search import Candidate, Searcher

ORDER_LIMIT_S, MAX_ORDER_ACTIONS = 5.0, 300
"""Seconds that CP-SAT gets for one order, and the largest number of actions it is given."""


class OrderSolver:
    """Gives each partition and mapping to CP-SAT once."""

    def __init__(self, run: SearchState, searcher: Searcher) -> None:
        self.run, self.searcher = run, searcher
        self.ordered: set[Key] = set()

    def better_order(self, candidate: Candidate) -> Plan | None:
        """A better order of the best partition and mapping, if it is small enough for CP-SAT and open."""
        run = self.run
        num_actions = 3 * run.problem.num_microbatches * sum(len(group) for group in candidate.groups)
        key = key_of(candidate)
        if num_actions > MAX_ORDER_ACTIONS or key in self.ordered or run.incumbent_ns is None or run.plan is None:
            return None
        self.ordered.add(key)
        if schedule_bound(run.problem, run.plan.stages, costs=run.costs) >= run.incumbent_ns:
            return None
        return self._solve(candidate, below=run.incumbent_ns)

    def _solve(self, candidate: Candidate, *, below: int) -> Plan | None:
        """What CP-SAT makes of the order."""
        # takes a second to import, and most problems never need it
        from solver_models.schedule.solve import solve_order

        run, stages = self.run, stages_of(self.run.problem, candidate)
        result = solve_order(
            make_schedule_instance(run.problem, stages, costs=run.costs),
            hint=self.searcher.words(candidate)[0],
            upper_bound=below - 1,
            time_limit_s=min(ORDER_LIMIT_S, max(0.1, run.seconds_left / 4)),
            seed=run.limits.seed,
            should_stop=run.should_stop,
        )
        run.solvers["ortools"] = result.solver
        return None if result.words is None else make_plan_from_words(run.problem, stages, words=result.words)

"""The search as a stream of proposals: seeds, intervals, rounds of joint search, sessions on orders, exact search."""

from collections.abc import Iterator

from planner.clock import while_time
from planner.plan import Plan
from planner.planning.conversions import candidate_of, plan_of, played_candidates, rate
from planner.planning.cp_sat_orders import MAX_ORDER_ACTIONS, OrderSolver
from planner.planning.exact_improver import ExactTurns
from planner.planning.intervals import add_intervals
from planner.planning.search_state import SearchState
from planner.planning.sequential_improver import SequentialTurns
from planner.planning.sessions import SESSION_EVERY_ROUNDS, Sessions
from planner.planning.split_placement_improver import EVERY_ROUNDS as APART_EVERY_ROUNDS
from planner.planning.split_placement_improver import ApartTurns
from planner.planning.successive_halving import try_orders
from solver_models.construction import make_seeds
from solver_models.multistart import JointSearch
from solver_models.search import Candidate

EXACT_AFTER_ROUNDS = 3
"""Rounds of joint search before a small problem is searched exactly."""

ORDER_EVERY_ROUNDS = 12
"""Rounds between two orders given to CP-SAT."""

MAX_SEED_ACTIONS, ALL_SEEDS, SEED_ACTIONS_PER_S = 200_000_000, 1_000, 3_000_000
"""Actions that all seeds of a large problem may be in all, how many plays all seeds take, and how many actions of seeds
a slow machine plays in a second."""

SEED_SHARE = 0.3
"""Part of the time left that first candidates may take, once without and once with orders of their own."""

Proposal = tuple[Plan | None, str]
"""A plan to consider, None where nothing new was found, and its source."""


class Proposals:
    """Plans to consider, one every fraction of a second."""

    def __init__(self, run: SearchState) -> None:
        self.run = run
        self.search = JointSearch(run.instance, seed=run.limits.seed)
        self.sessions = Sessions(run, self.search)
        self.sequential = SequentialTurns(run, self.search)
        self.apart = ApartTurns(run, self.search)
        self.offered: Candidate | None = run.seeds[-1] if run.seeds else None
        """The last candidate whose plan was proposed."""

    def all(self) -> Iterator[Proposal]:
        """Everything there is to consider until the rounds are over; threads are let go of at the end."""
        try:
            yield from self._seeded()
        finally:
            self.search.close()
            self.sessions.close()
            self.sequential.close()

    def _seeded(self) -> Iterator[Proposal]:
        seeds = self._add_seeds()
        yield self._best_plan(), "balanced seeds"
        instance = self.run.instance
        if instance.given_groups is not None and not instance.recompute:
            yield from self._orders()
            return
        self.sessions.note_vees(seeds)
        for source in add_intervals(self.run, self.search):
            yield self._best_plan(), source
        if self.run.has_time_for_round(self.search.round_s):
            self.sequential.begin()
            yield self._best_plan(), "sequential planner"
        try_orders(self.run, self.search)
        yield self._best_plan(), "stages near the bound"
        yield from self._rounds()

    def _add_seeds(self) -> list[Candidate]:
        """Balanced cuts, the stages of the baselines, and their orders where there is time for it."""
        run, search, searcher = self.run, self.search, self.search.searcher
        search.add(run.seeds)
        has_time = run.time_until(SEED_SHARE)
        seeds = []
        if self._has_time_for_all_seeds():
            seeds = make_seeds(searcher, has_time=has_time if self._may_take_long() else None)
        search.add(seeds)
        if run.has_time_for_round(search.round_s):
            rated = (rate(run.problem, searcher, stages=stages) for stages in dict.fromkeys(run.layouts))
            search.add(while_time(rated, has_time=has_time))
        if run.start is not None:
            search.keep(candidate_of(run.problem, searcher, plan=run.start))
        if run.has_time_for_round(search.round_s):
            played = played_candidates(run.problem, searcher, plans=run.played)
            search.take(while_time(played, has_time=run.time_until(SEED_SHARE)))
        return seeds

    def _rounds(self) -> Iterator[Proposal]:
        """Rounds of joint search, and in between the exact search, single orders, and sessions."""
        if not self.search.pool:
            yield from self._exact()
            return
        exact = ExactTurns(self.run, self.search.searcher)
        try:
            yield from self._rounds_and(exact)
        finally:
            exact.close()

    def _rounds_and(self, exact: ExactTurns) -> Iterator[Proposal]:
        run, search, solver = self.run, self.search, OrderSolver(self.run, self.search.searcher)
        while not run.rounds_are_over(search.round, search.round_s):
            search.end_round(search.start_round())
            yield self._best_plan(), "joint search"
            yield from self.sequential.take_turn()
            if search.round % APART_EVERY_ROUNDS == 1:
                yield from self.apart.take_turn([*search.polished[:1], *search.pool])
            if search.round >= EXACT_AFTER_ROUNDS:
                yield from exact.take_turn()
            if search.round % ORDER_EVERY_ROUNDS == 0 and search.best is not None:
                yield solver.better_order(search.best), "CP-SAT order"
            if search.round % SESSION_EVERY_ROUNDS == 0 and run.has_time_for_round(search.round_s):
                yield from self.sessions.take_turn()

    def _orders(self) -> Iterator[Proposal]:
        """Partition and mapping are given: all time goes into the order."""
        seeds = make_seeds(self.search.searcher)[:1]
        if not seeds or not self.search.searcher.is_allowed(seeds[0]):
            return
        order = self.sessions.order_search(seeds[0])
        is_small = order.num_actions <= MAX_ORDER_ACTIONS
        yield self._to_plan(order.best), "order seeds"
        if not order.pool:
            yield from self._exact()
        while not self.run.rounds_are_over(order.round, order.round_s):
            before = order.pool[:1]
            order.run_round()
            yield (None if order.pool[:1] == before else self._to_plan(order.best)), "order search"
            if order.round % APART_EVERY_ROUNDS == 1:
                yield from self.apart.take_turn(seeds[:1])
            if is_small and order.round == EXACT_AFTER_ROUNDS:
                yield from self._exact()

    def _exact(self) -> Iterator[Proposal]:
        """The exact search to its end: where nothing else can find a plan, or where only the order is open."""
        turns = ExactTurns(self.run, self.search.searcher)
        try:
            yield from turns.to_the_end()
        finally:
            turns.close()

    def _may_take_long(self) -> bool:
        """Whether rating all balanced cuts could take much of the time that is left."""
        run = self.run
        seconds = ALL_SEEDS * run.num_actions / SEED_ACTIONS_PER_S
        return run.limits.max_rounds is None and seconds > SEED_SHARE * run.seconds_left

    def _has_time_for_all_seeds(self) -> bool:
        """Whether all balanced cuts can be played with all standard policies."""
        run = self.run
        actions = ALL_SEEDS * run.num_actions
        if not run.is_large or run.limits.max_rounds is not None:
            return actions <= MAX_SEED_ACTIONS or not run.is_large
        return run.elapsed_s + actions / SEED_ACTIONS_PER_S <= run.limits.time_limit_s

    def _best_plan(self) -> Plan | None:
        """The plan of the best candidate; None if it is the one that was proposed last."""
        if self.search.best is self.offered:
            return None
        self.offered = self.search.best
        return self._to_plan(self.offered)

    def _to_plan(self, candidate: Candidate | None) -> Plan | None:
        if candidate is None:
            return None
        return plan_of(self.run.problem, self.search.searcher, candidate=candidate)

"""The exact search in turns with the joint search: what it cannot list soon must not cost the others their time."""

import time
from collections.abc import Iterator

from planner.plan import Plan
from planner.planning.branch_and_check import ExactSearch
from planner.planning.search_state import COMPLETE, SearchState
from solver_models.search import Searcher

LISTING_STEPS, LISTING_SHARE = 2, 1 / 3
"""Attempts to list all open cases per turn, and the part of the search's time that they get, once one has failed."""

LISTING_NODES = 600_000
"""With a deterministic limit, nodes of the tree per turn that such attempts may look at; what is left is saved up."""


class ExactTurns:
    """An exact search that can be left and taken up again.

    As long as the open cases can be listed it goes on to its end; where they are too many, a turn is over after a few
    more attempts, or as soon as it has used its share of the time.
    """

    def __init__(self, run: SearchState, searcher: Searcher) -> None:
        self.run = run
        self.exact = ExactSearch(
            run.problem,
            run.costs,
            searcher=searcher,
            incumbent_ns=lambda: run.incumbent_ns,
            seconds_left=lambda: run.seconds_left,
            should_stop=run.should_stop,
            seed=run.limits.seed,
        )
        self.steps: Iterator[Plan | None] = self.exact.proposals(
            least=run.lower_bound.value_ns if run.lower_bound else 0
        )
        self.used_s, self.expected_s, self.begin, self.is_done = 0.0, 0.0, time.monotonic(), False
        self.num_turns = self.used_nodes = 0

    def close(self) -> None:
        """Note what it claims, and which solver it asked."""
        if self.exact.covers_all_plans:
            self.run.solver_bound_ns = self.exact.bound_ns
        if self.exact.solver:
            self.run.solvers["ortools"] = self.exact.solver

    def to_the_end(self) -> Iterator[tuple[Plan | None, str]]:
        """Close every partition and mapping of a small problem by its floor or by its best order."""
        while not self.is_done:
            yield self._step(), "exact search"

    def take_turn(self) -> Iterator[tuple[Plan | None, str]]:
        """Some steps, or all that are left."""
        failed, self.num_turns = 0, self.num_turns + 1
        while not self.is_done and failed < LISTING_STEPS and (not self.exact.is_listing or self._has_time()):
            yield self._step(), "exact search"
            failed += self.exact.is_listing

    def _step(self) -> Plan | None:
        begin, plan, nodes = time.monotonic(), None, self.exact.next_nodes
        try:
            plan = next(self.steps)
        except StopIteration:
            self.is_done = True
            if self.exact.is_closed:
                self.run.stopped_by = COMPLETE
        self.used_nodes += nodes * self.exact.is_listing
        seconds = time.monotonic() - begin
        self.used_s += seconds
        self.expected_s = seconds * self.exact.next_nodes / nodes
        return plan

    def _has_time(self) -> bool:
        """Whether the next attempt fits into its share; with a deterministic limit, nodes decide instead of seconds."""
        if self.run.limits.max_rounds is not None:
            return self.used_nodes + self.exact.next_nodes <= LISTING_NODES * self.num_turns
        return self.used_s + self.expected_s < LISTING_SHARE * (time.monotonic() - self.begin)

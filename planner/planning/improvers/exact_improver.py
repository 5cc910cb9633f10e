"""The exact search in turns with the joint search: what it cannot list soon must not cost the others their time."""

import time
from collections.abc import Iterator

from planner.plan import Plan
from planner.planning.improvers.branch_and_check import ExactSearch
from planner.planning.improvers.improver import Improver
from planner.planning.search_state import COMPLETE, SearchState
from solver_models.local_search.search import Searcher

_LISTING_STEPS = 2
"""Attempts to list all open cases per turn, once one has failed."""
_LISTING_NODES = 1_200_000
"""With a deterministic limit, nodes of the tree per turn that such attempts may look at; what is left is saved up."""
_LISTING_SHARE = 1 / 3
"""Part of the search's time that further attempts to list all cases get."""

_PAUSE_SHARE = 0.5
"""Part of the time after which it makes room for a bound that was put off."""


class ExactImprover(Improver):
    """An exact search that can be left and taken up again.

    As long as the open cases can be listed it continues to its end, but for one pause if the packing bound has not had
    its first step after half of the time. Where they are too many, a step is over after a few more attempts, or as soon
    as it has used its share of the time.
    """

    name = "exact search"
    is_final = False
    """Whether it has one step, to its end: where only the order is open."""

    def __init__(self, run: SearchState, searcher: Searcher, *, listing_nodes: int = _LISTING_NODES) -> None:
        self.run, self.params, self.listing_nodes = run, run.params.exact, listing_nodes
        self.exact = ExactSearch(
            run.costs,
            searcher=searcher,
            incumbent_ns=lambda: run.threshold_ns,
            seconds_left=lambda: 0.0 if run.should_stop() else run.seconds_left,
            seed=run.limits.seed,
            window=run.window,
            params=run.params,
        )
        self.steps: Iterator[Plan | None] = self.exact.proposals(
            least=lambda: run.lower_bound.value_ns if run.lower_bound else 0
        )
        self.used_s, self.expected_s, self.is_done, self.has_paused = 0.0, 0.0, False, False
        self.begin: float | None = None
        """When its first step began."""
        self.num_steps = self.used_nodes = 0

    def close(self) -> None:
        """Note what it claims, and which solver it asked."""
        if self.exact.covers_all_plans:
            self.run.solver_bound_ns, self.run.searched_ns = self.exact.bound_ns, self.exact.proved_ns
        self.run.tally(self.name).cases_closed = self.exact.num_closed
        if self.exact.solver:
            self.run.solvers["ortools"] = self.exact.solver

    def is_due(self, rounds: int) -> bool:
        """As soon as the other improvers had their first steps, until it is done; the final one once."""
        if self.is_final:
            return rounds == self.params.after_rounds
        return rounds >= self.params.after_rounds and not self.is_done

    def to_the_end(self) -> Iterator[None]:
        """Close every partition and mapping of a small problem by its lower bound or by its best order."""
        while not self.is_done:
            self.run.propose(self._step(), source=self.name)
            yield

    def close_again(self) -> Iterator[None]:
        """Close without CP-SAT what only it closed, as far as that is quick."""
        for plan in self.exact.close_again() if self.exact.covers_all_plans else ():
            self.run.propose(plan, source=self.name)
            yield
        self.close()

    def take_step(self) -> Iterator[None]:
        """Some steps, or all that are left."""
        if self.is_final:
            yield from self.to_the_end()
            return
        failed, self.num_steps = 0, self.num_steps + 1
        self.begin = time.monotonic() if self.begin is None else self.begin
        while not self.is_done and failed < _LISTING_STEPS:
            if self.exact.is_listing and not self._has_time(self.begin):
                break
            self.run.propose(self._step(), source=self.name)
            yield
            if self._must_pause:
                self.has_paused = True
                break
            failed += self.exact.is_listing

    @property
    def _must_pause(self) -> bool:
        late_s = _PAUSE_SHARE * self.run.limits.time_limit_s
        return self.run.pending_effort > 0 and not self.has_paused and self.run.elapsed_s >= late_s

    def _step(self) -> Plan | None:
        begin, plan, nodes = time.monotonic(), None, self.exact.next_nodes
        try:
            plan = next(self.steps)
        except StopIteration:
            self.is_done = True
            if self.exact.is_closed and self.run.problem.options.is_enumerated:
                self.run.stopped_by = COMPLETE
        self.used_nodes += nodes * self.exact.is_listing
        seconds = time.monotonic() - begin
        self.used_s += seconds
        self.expected_s = seconds * self.exact.next_nodes / nodes
        return plan

    def _has_time(self, begin: float) -> bool:
        """Whether the next attempt fits into its share; with a deterministic limit, nodes decide instead of seconds."""
        if self.run.limits.max_rounds is not None:
            return self.used_nodes + self.exact.next_nodes <= self.listing_nodes * self.num_steps
        return self.used_s + self.expected_s < _LISTING_SHARE * (time.monotonic() - begin)

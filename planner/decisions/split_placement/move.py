"""Split placement as a decision of the joint search: turns of annealing over partition, mapping, and where I and W are.

Every step begins from one of the good joint candidates and from one of the candidates with something elsewhere, in
turn, so that neither the partition nor the placement of W is ever settled before the other.
"""

from collections.abc import Iterator
from functools import partial

from planner.decisions.split_placement.option import DECISION
from planner.lowering import make_split_plan
from planner.planning.improvers.improver import DecisionImprover
from planner.planning.search_state import SearchState
from solver_models.local_search.multistart import JointSearch
from solver_models.local_search.search import Candidate
from solver_models.local_search.split_placement_search import SplitCandidate, SplitOrders, SplitSearcher

_EVERY_ROUNDS = 2
"""Joint rounds between two turns."""
_FRESH_STARTS = 3
"""How many of the joint pool are begun from in turn."""
_RANKS = 3
"""How many of the candidates kept are begun from in turn."""
_POLISH_TEMPERATURE = 0.0003
"""Temperature of the steps that improve orders."""
_POLISH_SHARE = 0.5
"""Part of a step's work that improve the orders of its best candidate."""
_POOL_SIZE = 6
"""Candidates kept."""


class SplitPlacementImprover(DecisionImprover):
    """Candidates with split placement, better with every step."""

    name = DECISION.part

    def __init__(self, run: SearchState, search: JointSearch) -> None:
        self.run, self.search = run, search
        self.searcher = SplitSearcher(search.narrow)
        self.pool: list[SplitCandidate] = []
        self.given: Candidate | None = None
        """What every fresh turn begins with, where partition and mapping are given."""
        self.step, self.turn_s = 0, 0.0
        """Turns so far, and seconds of the last task that was taken in."""

    @property
    def is_open(self) -> bool:
        """Whether the options leave open where I and W are, and plans are small enough to be played event by event."""
        run, options = self.run, self.run.problem.options
        may_move = options.split_placement and options.split_backward and len(run.problem.cluster.devices) > 1
        return may_move and not run.is_large

    def is_due(self, rounds: int) -> bool:
        """Once in a few rounds, where it is open."""
        return rounds % _EVERY_ROUNDS == 1 and self.is_open

    def begin(self, given: Candidate | None) -> Iterator[None]:
        """Note what every fresh turn begins with, where partition and mapping are given."""
        self.given = given
        yield from ()

    def take_step(self) -> Iterator[None]:
        """Anneal from a joint candidate, and from one of our own; what is found in better orders is proposed."""
        self.run.window.make_room(2)
        self.step += 1
        starts = [self.given] if self.given is not None else [*self.search.polished[:1], *self.search.pool]
        fresh = [each for each in starts if each.is_feasible and self._is_narrow(each)][:_FRESH_STARTS]
        chosen = []
        if fresh:
            chosen.append((self.searcher.begin(fresh[self.step % len(fresh)]), 2 * self.step))
        if self.pool:
            chosen.append((self.pool[self.step % min(_RANKS, len(self.pool))], 2 * self.step + 1))
        steps = self.search.steps
        tasks = [partial(self._anneal, start, number, steps=steps) for start, number in chosen]
        self.run.window.start(tasks, self._take_in, expected_s=self.turn_s)
        yield

    def _is_narrow(self, candidate: Candidate) -> bool:
        return all(max(group) < self.search.num_devices for group in candidate.groups)

    def _anneal(
        self, start: SplitCandidate, number: int, *, steps: int
    ) -> tuple[SplitCandidate, tuple[SplitOrders | None, ...]]:
        """A better candidate, and its orders as they are and improved."""
        seed = (self.run.limits.seed * 1_000_003 + number) % 2**31
        temperatures = self.run.params.anneal.heats
        found = self.searcher.anneal(
            start, iterations=steps, temperature=temperatures[number // 2 % len(temperatures)], seed=seed
        )
        order = partial(self.searcher.order, found, temperature=_POLISH_TEMPERATURE, seed=seed)
        return found, tuple(
            order(iterations=iterations) if found.base.is_feasible else None
            for iterations in (0, int(_POLISH_SHARE * steps))
        )

    def _take_in(self, result: tuple[SplitCandidate, tuple[SplitOrders | None, ...]], seconds: float) -> None:
        self.turn_s = seconds
        found, every = result
        if found.base.is_feasible:
            self.pool = _keep(self.pool, found, size=_POOL_SIZE)
        for orders in every:
            if orders is not None and (self.run.incumbent_ns is None or orders.objective < self.run.incumbent_ns):
                self.run.propose(make_split_plan(self.run.problem, orders), source=self.name)


make_improver = SplitPlacementImprover


def _keep(pool: list[SplitCandidate], found: SplitCandidate, *, size: int) -> list[SplitCandidate]:
    """The best candidates, at most one per objective."""
    others = [each for each in pool if each.base.sort_key != found.base.sort_key]
    return sorted([*others, found], key=lambda each: each.base.sort_key)[:size]

"""Split placement as a decision of the joint search: turns of annealing over partition, mapping, and where I and W are.

Every turn begins from one of the good joint candidates and from one of the candidates with something elsewhere, in
turn, so that neither the partition nor the placement of W is ever settled before the other.
"""

from collections.abc import Iterator

from planner.lowering import make_apart_plan
from planner.plan import Plan
from planner.planning.search_state import SearchState
from solver_models.multistart import HEATS, JointSearch
from solver_models.search import Candidate
from solver_models.split_placement_search import ApartCandidate, ApartSearcher

EVERY_ROUNDS = 2
"""Joint rounds between two turns."""

POOL_SIZE, FRESH_STARTS, RANKS = 6, 3, 3
"""Candidates kept, how many of the joint pool are begun from in turn, and from how many of those kept."""

POLISH_SHARE, POLISH_HEAT = 0.5, 0.0003
"""Part of a turn's steps that improve the orders of its best candidate, and their temperature."""


class ApartTurns:
    """Candidates with split placement, better with every turn."""

    def __init__(self, run: SearchState, search: JointSearch) -> None:
        self.run, self.search = run, search
        self.searcher = ApartSearcher(search.narrow)
        self.pool: list[ApartCandidate] = []
        self.turn = 0

    @property
    def is_open(self) -> bool:
        """Whether the options leave open where I and W are, and plans are small enough to be played event by event."""
        run, options = self.run, self.run.problem.options
        may_move = options.split_placement and options.split_backward and len(run.problem.cluster.devices) > 1
        return may_move and not run.is_large

    def take_turn(self, starts: list[Candidate]) -> Iterator[tuple[Plan | None, str]]:
        """Anneal from one of `starts`, then from one of our own; what is found in better orders is proposed."""
        if not self.is_open:
            return
        self.turn += 1
        fresh = [each for each in starts if each.is_feasible and self._is_narrow(each)][:FRESH_STARTS]
        if fresh:
            yield from self._anneal(self.searcher.begin(fresh[self.turn % len(fresh)]), number=2 * self.turn)
        if self.pool:
            rank = self.turn % min(RANKS, len(self.pool))
            yield from self._anneal(self.pool[rank], number=2 * self.turn + 1)

    def _is_narrow(self, candidate: Candidate) -> bool:
        return all(max(group) < self.search.num_devices for group in candidate.groups)

    def _anneal(self, start: ApartCandidate, *, number: int) -> Iterator[tuple[Plan | None, str]]:
        seed = (self.run.limits.seed * 1_000_003 + number) % 2**31
        steps, heat = self.search.steps, HEATS[number // 2 % len(HEATS)]
        found = self.searcher.anneal(start, iterations=steps, heat=heat, seed=seed)
        if not found.base.is_feasible:
            return
        self.pool = _keep(self.pool, found)
        for iterations in (0, int(POLISH_SHARE * steps)):
            orders = self.searcher.order(found, iterations=iterations, heat=POLISH_HEAT, seed=seed)
            if orders is not None and (self.run.incumbent_ns is None or orders.objective < self.run.incumbent_ns):
                yield make_apart_plan(self.run.problem, orders), "split placement"


def _keep(pool: list[ApartCandidate], found: ApartCandidate) -> list[ApartCandidate]:
    """The best candidates, at most one per objective."""
    others = [each for each in pool if each.base.objective != found.base.objective]
    return sorted([*others, found], key=lambda each: each.base.objective)[:POOL_SIZE]

"""The joint search as a sequence of rounds: each anneals or polishes from a pool of good candidates, on all threads.

Rounds are synchronous and their seeds fixed, so that the same number of rounds gives the same result everywhere.
"""

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from solver_models.instance import Instance
from solver_models.kernels import FAR
from solver_models.scopes import Scope, narrowed
from solver_models.search import Candidate, Searcher

ROUND_TICKS = 2_000_000
"""Work of one round of one thread, in played actions (about a fifth of a second)."""

RANK_WEIGHT = 0.7
"""How much less likely each next candidate of the pool is to be started from."""

ROUNDS_PER_STEP, MOST_STEPS = 8, 6
"""Every so many rounds, rounds become one step longer, up to so many steps: late improvements need long anneals."""

FLOOR_HEATS, FLOOR_TICKS = ((0.01, 0.0005), (0.03, 0.0005), (0.003, 0.0002), (0.1, 0.0005)), 1_000
"""Temperatures of anneals on the floor, which take turns; and the work of such a step, in played actions."""

PARTS = 2
"""Anneals that follow each other within a round, each from the best of those before."""

HEATS = ((0.03, 0.0005), (0.01, 0.0002), (0.1, 0.0005), (0.003, 0.0001), (0.3, 0.001))
"""First and last temperature of a round, as parts of the objective; rounds take turns."""


class JointSearch:
    """Candidates for partition, mapping and order, better with every round.

    Where widths or recomputation are open, rounds take turns between scopes with and without them: every other one goes
    on where the best candidate is, the narrowest scope first. What is found counts in all wider scopes, never in
    narrower ones: the narrowest search walks as it would if nothing more were open.
    """

    def __init__(self, instance: Instance, *, seed: int = 0, num_threads: int = 2) -> None:
        self.scopes = [Scope(searcher=Searcher(narrow)) for narrow in narrowed(instance)]
        self.searcher = self.scopes[-1].searcher
        self.seed = seed
        self.num_threads = num_threads
        self.round = 0
        self.round_s = 0.0
        self.num_actions = 3 * instance.num_microbatches * min(len(instance.capacity), len(instance.state))
        self.iterations = int(min(max(ROUND_TICKS // (self.num_actions + 150), 2), 20_000))
        self._executor = ThreadPoolExecutor(num_threads)
        self._begin = 0.0
        self._current = self.scopes[0]

    @property
    def pool(self) -> list[Candidate]:
        """Good candidates of different shapes, the best first, of all scopes."""
        return self.scopes[-1].pool

    @property
    def polished(self) -> list[Candidate]:
        """The best candidates with orders of their own, of all scopes."""
        return self.scopes[-1].polished

    @property
    def best(self) -> Candidate | None:
        """The best feasible candidate so far."""
        return self.scopes[-1].best

    def add(self, candidates: Iterable[Candidate]) -> None:
        """Offer candidates to the pools; those that break a rule are dropped."""
        offered = list(candidates)
        for scope in self.scopes:
            scope.add(offered)

    def keep(self, candidate: Candidate) -> None:
        """Offer a candidate that has orders of its own."""
        for scope in self.scopes:
            scope.keep(candidate)

    def take(self, candidates: Iterable[Candidate]) -> None:
        """Offer candidates with words, found elsewhere."""
        for candidate in candidates:
            self.keep(candidate)

    def start_round(self) -> list["Future[Candidate]"]:
        """Begin one round on every thread."""
        self.round += 1
        self._begin = time.monotonic()
        scope = self._current = self._next_scope()
        scope.round += 1
        numbers = [scope.round * self.num_threads + k for k in range(self.num_threads)]
        return [self._executor.submit(self._task, number) for number in numbers]

    def end_round(self, futures: list["Future[Candidate]"]) -> None:
        """Wait for the whole round, so that no task sees what another one found, and take it in."""
        wider = self.scopes[self.scopes.index(self._current) :]
        for candidate in [future.result() for future in futures]:
            for scope in wider:
                if candidate.words is None:
                    scope.add([candidate])
                else:
                    scope.keep(candidate)
        self.round_s = time.monotonic() - self._begin

    def close(self) -> None:
        """Let go of the threads."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def _steps(self) -> int:
        """Steps of an anneal in the round that runs."""
        return self.iterations * min(1 + self._current.round // ROUNDS_PER_STEP, MOST_STEPS)

    def _next_scope(self) -> Scope:
        """The narrowest scope with the best candidate, and every other round the one of the others that had least."""
        filled = [scope for scope in self.scopes if scope.pool]
        leader = min(filled, key=lambda scope: FAR if scope.best is None else scope.best.objective)
        others = [scope for scope in filled if scope is not leader]
        if self.round % 2 or not others:
            return leader
        return min(others, key=lambda scope: scope.round)

    def _task(self, number: int) -> Candidate:
        """One thread's share of a round: every third polishes words, the others anneal."""
        seed = (self.seed * 1_000_003 + number) % 2**31
        feasible = [candidate for candidate in self._current.pool if candidate.is_feasible]
        if number % 3 == 2 and feasible:
            return self._polish(feasible, number, seed=seed)
        if number % 4 == 1 or number < 2 * self.num_threads:
            return self._restart(number, seed=seed)
        return self._anneal(self._draw(seed), number, seed=seed)

    def _draw(self, seed: int) -> Candidate:
        """A candidate of the pool, the better the likelier."""
        pool = self._current.pool
        weights = RANK_WEIGHT ** np.arange(len(pool))
        return pool[int(np.random.default_rng(seed).choice(len(pool), p=weights / weights.sum()))]

    def _anneal(self, start: Candidate, number: int, *, seed: int) -> Candidate:
        """The best of a few anneals in a row, on what the policies reach."""
        best = start
        for part in range(PARTS):
            heat = HEATS[(number // 2 + part) % len(HEATS)]
            found = self._current.searcher.anneal(best, iterations=self._steps // PARTS, heat=heat, seed=seed + part)
            best = min(best, found, key=lambda candidate: candidate.objective)
        return best

    def _restart(self, number: int, *, seed: int) -> Candidate:
        """Somewhere else: first annealed on the floor, many times as fast, then as the others."""
        iterations = max(self._steps * (self.num_actions + 150) // FLOOR_TICKS, self._steps) // 2
        heat = FLOOR_HEATS[(number // 4) % len(FLOOR_HEATS)]
        searcher = self._current.searcher
        found = searcher.anneal(self._draw(seed), iterations=iterations, heat=heat, seed=seed, by_floor=True)
        start = searcher.rate(found.stage_of, found.groups, recompute=found.recompute)
        return self._anneal(start, number, seed=seed)

    def _polish(self, feasible: list[Candidate], number: int, *, seed: int) -> Candidate:
        turn = (number // 3) % 4
        heat = (0.0, 0.0003, 0.001, 0.0001)[(number // 3) % 4]
        polished = self._current.polished
        if polished and turn % 2:
            start = polished[(number // 6) % len(polished)]
        else:
            start = feasible[(number // 6) % min(3, len(feasible))]
        return self._current.searcher.polish(start, iterations=2 * self._steps, heat=heat, seed=seed)

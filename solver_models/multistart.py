"""The joint search as a sequence of rounds: each anneals or polishes from a pool of good candidates, on all threads.

Rounds are synchronous and their seeds fixed, so that the same number of rounds gives the same result everywhere.
"""

import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from solver_models.instance import Instance
from solver_models.search import Candidate, Searcher

POOL_SIZE, PER_SHAPE = 12, 2
"""Candidates kept to start from, and how many of them may have the same numbers of replicas stage by stage."""

ROUND_TICKS = 2_000_000
"""Work of one round of one thread, in played actions (about a fifth of a second)."""

RANK_WEIGHT = 0.7
"""How much less likely each next candidate of the pool is to be started from."""

ROUNDS_PER_STEP, MOST_STEPS = 8, 6
"""Every so many rounds, rounds become one step longer, up to so many steps: late improvements need long anneals."""

STALE_ROUNDS, PROGRESS = 5, 1000
"""Rounds without progress after which the pool begins afresh; progress is one part in so many of the objective."""

FLOOR_HEATS, FLOOR_TICKS = ((0.01, 0.0005), (0.03, 0.0005), (0.003, 0.0002), (0.1, 0.0005)), 1_000
"""Temperatures of anneals on the floor, which take turns; and the work of such a step, in played actions."""

PARTS = 2
"""Anneals that follow each other within a round, each from the best of those before."""

NARROW_ROUNDS, WIDE_EVERY_ROUNDS = 8, 2
"""Where widths are open: first rounds on single devices alone; after those, one round in so many looks at groups."""

POLISH_HEATS, MOST_POLISHED = (0.0, 0.0003, 0.001, 0.0001), 3
"""Temperatures of polishing, which take turns, and how many of the pool it chooses from."""

HEATS = ((0.03, 0.0005), (0.01, 0.0002), (0.1, 0.0005), (0.003, 0.0001), (0.3, 0.001))
"""First and last temperature of a round, as parts of the objective; rounds take turns."""


class JointSearch:
    """Candidates for partition, mapping and order, better with every round."""

    def __init__(self, instance: Instance, *, seed: int = 0, num_threads: int = 2) -> None:
        self.searcher = Searcher(instance)
        self.narrow = self.searcher if instance.wide is None else Searcher(replace(instance, wide=None))
        """The search without groups of several devices, of which there are so many that it gets lost among them."""
        self.num_devices = len(instance.capacity)
        self.seed = seed
        self.num_threads = num_threads
        self.pool: list[Candidate] = []
        self.polished: list[Candidate] = []
        self.starts: list[Candidate] = []
        """What was offered before the first round."""
        self.elite: list[Candidate] = []
        """The best of the pools that were left."""
        self.epoch = self.epoch_begin = self.progress_round = self.round = 0
        self.round_s = 0.0
        self.num_actions = 3 * instance.num_microbatches * min(len(instance.capacity), len(instance.state))
        self.iterations = int(min(max(ROUND_TICKS // (self.num_actions + 150), 2), 20_000))
        self._executor = ThreadPoolExecutor(num_threads)
        self._begin = 0.0

    def add(self, candidates: Iterable[Candidate]) -> None:
        """Offer candidates to the pool; those that break a rule are dropped, the best of different shapes are kept."""
        allowed = [candidate for candidate in candidates if self.searcher.is_allowed(candidate)]
        if not self.round:
            self.starts += allowed
        self.pool = _best_shapes([*self.pool, *allowed])

    def keep(self, candidate: Candidate) -> None:
        """Offer a candidate that has orders of its own."""
        if candidate.is_feasible and self.searcher.is_allowed(candidate):
            self.polished = _keep(self.polished, candidate)

    @property
    def steps(self) -> int:
        """Steps of an anneal in the round that runs."""
        return self.iterations * min(1 + self.round // ROUNDS_PER_STEP, MOST_STEPS)

    @property
    def best(self) -> Candidate | None:
        """The best feasible candidate so far."""
        found = [c for c in (*self.pool[:1], *self.polished[:1], *self.elite[:1]) if c.is_feasible]
        return min(found, key=lambda candidate: candidate.objective, default=None)

    def polish_each(self, candidates: Iterable[Candidate], *, iterations: int) -> list[Candidate]:
        """The candidates with words of their own, each polished for the work of `iterations` plays, the best first."""
        polish = partial(self.searcher.polish, iterations=iterations, heat=0.0, seed=self.seed)
        return sorted(self._executor.map(polish, candidates), key=lambda candidate: candidate.objective)

    def start_round(self) -> list["Future[Candidate]"]:
        """Begin one round on every thread."""
        self.round += 1
        self._begin = time.monotonic()
        return [self._executor.submit(self._task, self.round * self.num_threads + k) for k in range(self.num_threads)]

    def end_round(self, futures: list["Future[Candidate]"]) -> None:
        """Wait for the whole round, so that no task sees what another one found, and take it in."""
        before = self.pool[0].objective
        for candidate in [future.result() for future in futures]:
            if candidate.words is None:
                self.add([candidate])
            else:
                self.polished = _keep(self.polished, candidate)
        if before - self.pool[0].objective > before // PROGRESS or not self.pool[0].is_feasible:
            self.progress_round = self.round
        elif self.round - self.progress_round >= STALE_ROUNDS:
            self._begin_afresh()
        self.round_s = time.monotonic() - self._begin

    def _begin_afresh(self) -> None:
        """Leave a pool that finds nothing better: for one of other starts, and every other time for all pools' best."""
        self.epoch += 1
        self.epoch_begin = self.progress_round = self.round
        self.elite = _best_shapes([*self.elite, *self.pool])
        if self.epoch % 2:
            rng = np.random.default_rng((self.seed * 1_000_003 + self.epoch) % 2**31)
            chosen = rng.choice(len(self.starts), size=-(-len(self.starts) // 2), replace=False)
            self.pool = _best_shapes(self.starts[index] for index in chosen.tolist())
        else:
            self.pool = self.elite

    def take(self, candidates: Iterable[Candidate]) -> None:
        """Offer candidates with words, found elsewhere."""
        for candidate in candidates:
            if candidate.is_feasible and self.searcher.is_allowed(candidate):
                self.polished = _keep(self.polished, candidate)

    def close(self) -> None:
        """Let go of the threads."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _task(self, number: int) -> Candidate:
        """One thread's share of a round: every third polishes words if any are open, the others anneal."""
        seed = (self.seed * 1_000_003 + number) % 2**31
        start = self._choose_polish(number) if number % 3 == 2 else None
        if start is not None:
            heat = POLISH_HEATS[number // 3 % len(POLISH_HEATS)]
            return self.searcher.polish(start, iterations=2 * self.steps, heat=heat, seed=seed)
        searcher, pool = self._scope()
        start = _draw(pool, seed=seed)
        if number % 4 == 1 or self.round == self.epoch_begin + 1:
            return self._restart(start, number, searcher=searcher, seed=seed)
        return self._anneal(start, number, searcher=searcher, seed=seed)

    def _scope(self) -> tuple[Searcher, list[Candidate]]:
        """What the round searches, and the candidates to start from: single devices alone, or groups as well."""
        single = [c for c in self.pool if all(max(group) < self.num_devices for group in c.groups)]
        is_narrow = self.round <= NARROW_ROUNDS or self.round % WIDE_EVERY_ROUNDS
        return (self.narrow, single) if is_narrow and any(c.is_feasible for c in single) else (self.searcher, self.pool)

    def _anneal(self, start: Candidate, number: int, *, searcher: Searcher, seed: int) -> Candidate:
        """The best of a few anneals in a row, on what the policies reach."""
        best = start
        for part in range(PARTS):
            heat = HEATS[(number // 2 + part) % len(HEATS)]
            found = searcher.anneal(best, iterations=self.steps // PARTS, heat=heat, seed=seed + part)
            best = min(best, found, key=lambda candidate: candidate.objective)
        return best

    def _restart(self, start: Candidate, number: int, *, searcher: Searcher, seed: int) -> Candidate:
        """Somewhere else: first annealed on the floor, many times as fast, then as the others."""
        iterations = max(self.steps * (self.num_actions + 150) // FLOOR_TICKS, self.steps) // 2
        heat = FLOOR_HEATS[(number // 4) % len(FLOOR_HEATS)]
        found = searcher.anneal(start, iterations=iterations, heat=heat, seed=seed, by_floor=True)
        rated = searcher.rate(found.stage_of, found.groups, recompute=found.recompute)
        return self._anneal(rated, number, searcher=searcher, seed=seed)

    def _choose_polish(self, number: int) -> Candidate | None:
        """The candidate whose words are polished; None where no other order can be better, and annealing is."""
        best = [candidate for candidate in self.pool if candidate.is_feasible][:MOST_POLISHED]
        sources = [[each for each in found if self.searcher.is_open(each)] for found in (best, self.polished)]
        found = sources[number // 3 % 2] or sources[0] or sources[1]
        return found[number // 6 % len(found)] if found else None


def _draw(pool: list[Candidate], *, seed: int) -> Candidate:
    """A candidate of a pool, the better the likelier."""
    weights = RANK_WEIGHT ** np.arange(len(pool))
    return pool[int(np.random.default_rng(seed).choice(len(pool), p=weights / weights.sum()))]


def _best_shapes(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The best of different shapes, each partition and mapping once."""
    best: dict[tuple[bytes, tuple[tuple[int, ...], ...], bytes], Candidate] = {}
    for candidate in candidates:
        key = _signature(candidate)
        if key not in best or candidate.objective < best[key].objective:
            best[key] = candidate
    shapes: Counter[tuple[int, ...]] = Counter()
    kept = []
    for candidate in sorted(best.values(), key=lambda candidate: candidate.objective):
        shape = tuple(len(group) for group in candidate.groups)
        shapes[shape] += 1
        if shapes[shape] <= PER_SHAPE:
            kept.append(candidate)
    return kept[:POOL_SIZE]


def _signature(candidate: Candidate) -> tuple[bytes, tuple[tuple[int, ...], ...], bytes]:
    return candidate.stage_of.tobytes(), candidate.groups, candidate.recompute.tobytes()


def _keep(polished: list[Candidate], candidate: Candidate) -> list[Candidate]:
    """The best polished candidates, at most one per partition and mapping."""
    others = [c for c in polished if _signature(c) != _signature(candidate)]
    same = [c for c in polished if _signature(c) == _signature(candidate)]
    winner = min([*same, candidate], key=lambda c: c.objective)
    return sorted([*others, winner], key=lambda c: c.objective)[:MOST_POLISHED]

"""The joint search as a sequence of rounds: each anneals and polishes from a pool of good candidates, on all threads.

What a round begins with, its seeds and its work are fixed by its number (`task_window`), so that the same number of
rounds gives the same result everywhere.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from solver_models.instance import Instance
from solver_models.local_search.portable_tasks import PortableTask
from solver_models.local_search.search import Candidate, Searcher
from solver_models.local_search.task_window import TaskWindow
from solver_models.search_params import SolverParams, SuccessiveHalving

_MOST_STEPS = 6
"""Steps of `round_ticks` up to which rounds grow."""
_PROGRESS_PARTS = 1000
"""Progress is one part in so many of the objective."""
_RANK_WEIGHT = 0.7
"""How likely each next candidate of the pool is to be started from, relative to the one before."""
_NARROW_ROUNDS = 8
"""Where widths are open: first rounds on single devices alone."""
_WIDE_EVERY_ROUNDS = 2
"""After these rounds, one in so many looks at groups of devices."""
_PER_SHAPE = 2
"""How many candidates of the pool may have the same numbers of replicas stage by stage."""
_POLISH_TEMPERATURES = (0.0, 0.0003, 0.001, 0.0001)
"""Temperatures of polishing orders, which take turns."""
_NEAR_TEMPERATURES: SuccessiveHalving = ((0.01, 0.0003), (0.003, 0.0001))
"""Temperatures of anneals by the estimate that begin with a candidate whose orders are good; they take turns."""
_ESTIMATE_TICKS = 200
"""Work of a step by the estimate, in played actions, on up to `_ESTIMATE_DEVICES` devices."""
_ESTIMATE_DEVICES = 16
"""With more devices the work of a step by the estimate grows in proportion."""
_MOST_FLOORED_ACTIONS = 30_000
"""Actions of the largest candidate whose schedule bound is asked for before its orders are polished."""
_MOST_POLISHED = 3
"""Of how many polished candidates, and of the pool, orders are polished beside annealing what policies reach."""
_KEPT_POLISHED = 12
"""Candidates with orders of their own that are kept."""
_READ_BY_TASKS = ("params", "annealing", "searcher", "narrow", "num_devices", "seed", "num_actions", "iterations")
"""Fields that do not change from round to round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoundStart:
    """What the tasks of a round know."""

    round: int
    epoch: int
    """Pools that were left before."""
    is_first: bool
    """Whether it is the first round of its epoch."""
    steps: int
    """Steps of an anneal."""
    pool: tuple[Candidate, ...]
    """Candidates, the best first."""
    polished: tuple[Candidate, ...]
    """Candidates with device orders of their own, the best first."""
    starts: tuple[Candidate, ...]
    """What was offered before the first round."""


class JointSearch:
    """Candidates for partition, mapping and order, better with every round."""

    def __init__(
        self,
        instance: Instance,
        *,
        seed: int = 0,
        window: TaskWindow | None = None,
        params: SolverParams = SolverParams(),
    ) -> None:
        self.params, self.annealing = params.multistart, params.anneal
        self.searcher = Searcher(instance, params=params)
        self.narrow = self.searcher if instance.wide is None else Searcher(replace(instance, wide=None), params=params)
        """The search without groups of several devices, of which there are so many that it gets lost among them."""
        self.num_devices = instance.num_devices
        self.seed = seed
        self.window = window or TaskWindow()
        self.pool: list[Candidate] = []
        self.polished: list[Candidate] = []
        self.starts: list[Candidate] = []
        """What was offered before the first round."""
        self.elite: list[Candidate] = []
        """The best of the pools that were left."""
        self.epoch = self.epoch_begin = self.progress_round = self.round = 0
        self.round_s = 0.0
        """Seconds of the last task that was taken in."""
        self.num_actions = 3 * instance.num_microbatches * min(instance.num_devices, instance.num_layers)
        self.iterations = int(
            min(max(params.multistart.round_ticks // (self.num_actions + 150), 2), params.multistart.max_iterations)
        )
        self._before: Candidate | None = None
        """The best of the pool before the first result of the round that is being taken in."""

    def __getstate__(self) -> dict[str, Any]:
        """What its tasks read; they are all that it does on another machine."""
        return {name: getattr(self, name) for name in _READ_BY_TASKS}

    def add(self, candidates: Iterable[Candidate]) -> None:
        """Offer candidates to the pool; those that break a rule are dropped, the best of different shapes are kept.

        Before the first round they are starts.
        """
        allowed = self._allowed(candidates)
        if not self.round:
            self.starts += allowed
        self.pool = self._best_shapes([*self.pool, *allowed])

    def _allowed(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        return [candidate for candidate in candidates if self.searcher.is_allowed(candidate)]

    @property
    def steps(self) -> int:
        """Steps of an anneal in the round that runs."""
        return self.iterations * min(1 + self.round // self.params.rounds_per_step, _MOST_STEPS)

    @property
    def best(self) -> Candidate | None:
        """The best feasible candidate so far."""
        found = [c for c in (*self.pool[:1], *self.polished[:1], *self.elite[:1]) if c.is_feasible]
        return min(found, key=lambda candidate: candidate.objective, default=None)

    def run_round(self, done: Callable[[], None] | None = None) -> None:
        """Take in what the next round has to know, and start it; `done` is called with every result of its own.

        Every result is taken in by a later round, or by `window.drain`.
        """
        num_tasks = self.params.tasks_per_round
        self.window.make_room(num_tasks)
        self.round += 1
        start = self._round_start()
        numbers = range(self.round * num_tasks, (self.round + 1) * num_tasks)

        left = iter(reversed(range(num_tasks)))

        def take(candidate: Candidate, seconds: float) -> None:
            self.round_s = seconds
            self._before = self.pool[0] if self._before is None else self._before
            self._take_in(candidate, start)
            if not next(left):
                self._end_round(start)
            if done is not None:
                done()

        tasks = [PortableTask(self, "_task", (number, start)) for number in numbers]
        self.window.start(tasks, take, expected_s=self.round_s)

    def _round_start(self) -> _RoundStart:
        return _RoundStart(
            round=self.round,
            epoch=self.epoch,
            is_first=self.round == self.epoch_begin + 1,
            steps=self.steps,
            pool=tuple(self.pool),
            polished=tuple(self.polished),
            starts=tuple(self.starts),
        )

    def _take_in(self, candidate: Candidate, start: _RoundStart) -> None:
        """A result of a round; one that began before the pool was left is none of the new pool's."""
        if candidate.device_orders is not None:
            self.polished = self._keep(self.polished, candidate)
        elif start.epoch == self.epoch:
            self.add([candidate])
        else:
            self.elite = self._best_shapes([*self.elite, *self._allowed([candidate])])

    def _end_round(self, start: _RoundStart) -> None:
        """Leave the pool if too many rounds ended without progress, those not counted that could not know of it."""
        before, self._before = self._before, None
        if start.epoch != self.epoch or before is None:
            return
        patience = self.params.stale_rounds - 1 + self.window.width // self.params.tasks_per_round
        if self._is_progress(before, self.pool[0]):
            self.progress_round = start.round
        elif start.round - self.progress_round >= patience:
            self._begin_afresh()

    def _is_progress(self, before: Candidate, now: Candidate) -> bool:
        """Whether a pool's best has gained enough, or is the first that fits; while none fits, every round counts."""
        if not (before.is_feasible and now.is_feasible):
            return True
        return before.objective - now.objective > before.objective // _PROGRESS_PARTS

    def _begin_afresh(self) -> None:
        """Leave a pool that finds nothing better: for one of other starts, and every other time for all pools' best."""
        self.epoch += 1
        self.epoch_begin = self.progress_round = self.round
        self.elite = self._best_shapes([*self.elite, *self.pool])
        if self.epoch % 2:
            rng = np.random.default_rng((self.seed * 1_000_003 + self.epoch) % 2**31)
            chosen = rng.choice(len(self.starts), size=-(-len(self.starts) // 2), replace=False)
            self.pool = self._best_shapes(self.starts[index] for index in chosen.tolist())
        else:
            self.pool = self.elite

    def take(self, candidates: Iterable[Candidate]) -> None:
        """Offer candidates with device orders, found elsewhere."""
        for candidate in candidates:
            if candidate.is_feasible and self.searcher.is_allowed(candidate):
                self.polished = self._keep(self.polished, candidate)

    def _task(self, number: int, start: _RoundStart) -> Candidate:
        """One task of a round: some look for stages with low bounds, the others anneal what policies reach.

        Of these every third polishes device orders if any are open, but for the first rounds. Once annealing what
        policies reach is stuck for the first time, most tasks look for low bounds.
        """
        seed = (self.seed * 1_000_003 + number) % 2**31
        by_lower_bound, number = _split_task(number, are_most_by_lower_bound=start.epoch > 0)
        if by_lower_bound and not (start.is_first or self.searcher.by_span):
            return self._estimate_task(number, start, seed=seed)
        polishes = number % 3 == 2 and start.round >= self.annealing.first_polish_round
        chosen = self._choose_polish(number, start) if polishes else None
        if chosen is not None:
            temperature = _POLISH_TEMPERATURES[number // 3 % len(_POLISH_TEMPERATURES)]
            return self.searcher.polish(chosen, iterations=2 * start.steps, temperature=temperature, seed=seed)
        searcher, pool = self._scope(start)
        candidate = _draw(pool, seed=seed, weight=_RANK_WEIGHT)
        if number % 4 == 1 or start.is_first:
            return self._restart(candidate, number, searcher=searcher, seed=seed, steps=start.steps)
        return self._anneal(candidate, number, searcher=searcher, seed=seed, steps=start.steps)

    def _estimate_task(self, number: int, start: _RoundStart, *, seed: int) -> Candidate:
        """Stages with low estimates and polished orders: new ones, some near good ones, or good ones, in turn.

        Policies play many stages badly whose best orders are the best of all, and annealing what policies reach leaves
        those behind.
        """
        searcher, pool = self._scope(start)
        polished = self._within(searcher, start.polished)
        if number % 3 == 2 and polished:
            chosen = _draw(polished, seed=seed, weight=_RANK_WEIGHT)
            if self.searcher.is_open(chosen):
                return self.searcher.polish(chosen, iterations=2 * start.steps, temperature=0.0, seed=seed)
        is_near = number % 3 == 1 and bool(polished)
        begins = polished if is_near else self._within(searcher, start.starts) or pool
        begin = _draw(begins, seed=seed, weight=_RANK_WEIGHT if is_near else 1.0)
        temperatures = _NEAR_TEMPERATURES if is_near else self.annealing.floor_heats
        temperature = temperatures[number // 3 % len(temperatures)]
        tries = (
            self._from_estimate(begin, start, searcher=searcher, temperature=temperature, seed=seed + part)
            for part in range(max(1, start.steps // self.iterations))
        )
        return min(tries, key=lambda candidate: candidate.sort_key)

    def _from_estimate(
        self, begin: Candidate, start: _RoundStart, *, searcher: Searcher, temperature: tuple[float, float], seed: int
    ) -> Candidate:
        """What annealing by the estimate leads to; its orders are polished unless its schedule bound is too high."""
        steps = self._estimate_steps(self.iterations)
        found = searcher.anneal(begin, iterations=steps, temperature=temperature, seed=seed, by_estimate=True)
        rated = searcher.rate(found.stage_of, found.groups, modes=found.modes)
        if not rated.is_feasible or self._is_hopeless(rated, start):
            return rated
        return self.searcher.polish(rated, iterations=self.iterations, temperature=0.0, seed=seed)

    def _estimate_steps(self, steps: int) -> int:
        """Steps by the estimate that take half as long as so many steps of an anneal."""
        ticks = _ESTIMATE_TICKS * max(1, self.num_devices // _ESTIMATE_DEVICES)
        return max(steps * (self.num_actions + 150) // ticks, steps) // 2

    def _is_hopeless(self, candidate: Candidate, start: _RoundStart) -> bool:
        """Whether no order of a candidate's stages is better than what the round began with."""
        known = [each.objective for each in (*start.pool[:1], *start.polished[:1]) if each.is_feasible]
        replicas = sum(map(len, candidate.groups))
        if not known or 3 * self.searcher.instance.num_microbatches * replicas > _MOST_FLOORED_ACTIONS:
            return False
        lower_bound = self.searcher.exact_lower_bound(candidate)
        return lower_bound is None or lower_bound >= min(known)

    def _scope(self, start: _RoundStart) -> tuple[Searcher, Sequence[Candidate]]:
        """What the round searches, and the candidates to start from: single devices alone, or groups as well."""
        single = self._within(self.narrow, start.pool)
        is_narrow = start.round <= _NARROW_ROUNDS or start.round % _WIDE_EVERY_ROUNDS
        is_possible = is_narrow and any(c.is_feasible for c in single)
        return (self.narrow, single) if is_possible else (self.searcher, start.pool)

    def _within(self, searcher: Searcher, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Those that this search can begin with: the narrow one knows no groups of several devices."""
        most = self.num_devices if searcher is self.narrow else len(searcher.layers.devices)
        return [each for each in candidates if all(max(group) < most for group in each.groups)]

    def _anneal(self, start: Candidate, number: int, *, searcher: Searcher, seed: int, steps: int) -> Candidate:
        """The best of a few anneals in a row, on what the policies reach."""
        best, temperatures, parts = start, self.annealing.heats, self.annealing.parts
        for part in range(parts):
            temperature = temperatures[(number // 2 + part) % len(temperatures)]
            found = searcher.anneal(best, iterations=steps // parts, temperature=temperature, seed=seed + part)
            best = min(best, found, key=lambda candidate: candidate.sort_key)
        return best

    def _restart(self, start: Candidate, number: int, *, searcher: Searcher, seed: int, steps: int) -> Candidate:
        """Somewhere else: first annealed by the estimate, many times as fast, then as the others."""
        temperatures = self.annealing.floor_heats
        temperature = temperatures[(number // 4) % len(temperatures)]
        found = searcher.anneal(
            start, iterations=self._estimate_steps(steps), temperature=temperature, seed=seed, by_estimate=True
        )
        rated = searcher.rate(found.stage_of, found.groups, modes=found.modes)
        return self._anneal(rated, number, searcher=searcher, seed=seed, steps=steps)

    def _choose_polish(self, number: int, start: _RoundStart) -> Candidate | None:
        """The candidate whose device orders are polished; None where no other order can be better, and annealing is."""
        best = [candidate for candidate in start.pool if candidate.is_feasible][:_MOST_POLISHED]
        known = start.polished[:_MOST_POLISHED]
        sources = [[each for each in found if self.searcher.is_open(each)] for found in (best, known)]
        found = sources[number // 3 % 2] or sources[0] or sources[1]
        return found[number // 6 % len(found)] if found else None

    def _best_shapes(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """The best of different shapes, each partition and mapping once."""
        best: dict[tuple[bytes, tuple[tuple[int, ...], ...], bytes], Candidate] = {}
        for candidate in candidates:
            key = _signature(candidate)
            if key not in best or candidate.sort_key < best[key].sort_key:
                best[key] = candidate
        shapes: Counter[tuple[int, ...]] = Counter()
        kept = []
        for candidate in sorted(best.values(), key=lambda candidate: candidate.sort_key):
            shape = tuple(len(group) for group in candidate.groups)
            shapes[shape] += 1
            if shapes[shape] <= _PER_SHAPE:
                kept.append(candidate)
        return kept[: self.params.pool_size]

    def _keep(self, polished: list[Candidate], candidate: Candidate) -> list[Candidate]:
        """The best polished candidates, at most one per partition and mapping."""
        others = [c for c in polished if _signature(c) != _signature(candidate)]
        same = [c for c in polished if _signature(c) == _signature(candidate)]
        winner = min([*same, candidate], key=lambda c: c.sort_key)
        return sorted([*others, winner], key=lambda c: c.sort_key)[:_KEPT_POLISHED]


def _split_task(number: int, *, are_most_by_lower_bound: bool) -> tuple[bool, int]:
    """Whether a task looks for low bounds, and its number among those that do as it does."""
    if are_most_by_lower_bound:
        row, place = divmod(number, 3)
        return (True, 2 * row + place - 1) if place else (False, row)
    row, place = divmod(number, 4)
    return (True, row) if place == 3 else (False, 3 * row + place)


def _draw(pool: Sequence[Candidate], *, seed: int, weight: float) -> Candidate:
    """A candidate of a pool, the better the likelier."""
    weights = weight ** np.arange(len(pool))
    return pool[int(np.random.default_rng(seed).choice(len(pool), p=weights / weights.sum()))]


def _signature(candidate: Candidate) -> tuple[bytes, tuple[tuple[int, ...], ...], bytes]:
    return candidate.stage_of.tobytes(), candidate.groups, candidate.modes.tobytes()

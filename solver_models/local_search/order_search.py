"""The order of one partition and mapping as a sequence of rounds: policies, tabu search on device orders, CP-SAT
windows.

What a round begins with, its seeds and its work are fixed by its number (`task_window`), so that the same number of
rounds gives the same result everywhere. Threads, not processes: the kernels and CP-SAT run without the interpreter
lock, and so nothing is copied, compiled or imported twice.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from solver_models.instance import DeviceOrder, Integers, ScheduleInstance, ShortIntegers
from solver_models.local_search.critical_path_search import TabuSearch, follows_orders, improve, polish
from solver_models.local_search.list_policies import Tuning, play_filled, tune
from solver_models.local_search.portable_tasks import PortableTask
from solver_models.local_search.search import Candidate, Searcher, decode, encode
from solver_models.local_search.task_window import TaskWindow
from solver_models.moves.annealing import Cooling, longest_order
from solver_models.moves.lower_bounds import net_lower_bound
from solver_models.simulation.evaluator import FAR, MICROBATCHES, Net, Policy, peak_excess, play

MOST_ACTIONS = 16_000_000
"""Work up to which it doubles, where partition and mapping are given or come from the sequential planner."""
_EXTRAS = (0, 1)
"""Microbatches beyond the caps that fill the pipeline."""
_TASKS_PER_ROUND = 2
"""Tasks of a round; the number of threads is another matter."""
_POOL_SIZE = 8
"""Orders that are kept, at most one of each origin."""
_RANK_WEIGHT = 0.6
"""How likely each next order of the pool is to be started from, relative to the one before."""
_SLOPES = (4, 8, 6, 2, 12, 5, 0)
"""Slopes of the in-flight caps that policies are annealed from, in quarters; 0: caps that fill the pipeline."""
_MAX_ACTIONS = 30_000
"""Longer orders have no windows for CP-SAT, which otherwise gets every other task."""
_SAMPLES = (60, 30, 120, 200)
"""Moves judged per step of the tabu search; tasks take turns."""
_PATIENCE = (300, 1000, 200, 3000)
"""Steps without success before it goes back to the best order; tasks take turns."""
_TEMPERATURES = (0.0, 0.0003, 0.001, 0.0001)
"""Temperatures where a tabu search does not know the critical path (shared links); tasks take turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order of every device and what they are worth."""

    objective: int
    """Ticks."""
    total: int
    """Sum of the devices' last ends."""
    device_orders: ShortIntegers
    """[D, longest] replica * 4 + kind."""
    lengths: Integers
    """[D] how many."""
    origin: int
    """Index of the start from which it descends."""


class _OrderRound(NamedTuple):
    """What the tasks of a round know."""

    pool: tuple[Order, ...]
    """Orders, the best first."""
    work: int
    """Of a task, in played actions."""


class OrderSearch:
    """Orders for one net, better with every round."""

    def __init__(
        self,
        searcher: Searcher,
        candidate: Candidate,
        *,
        seed: int = 0,
        window: TaskWindow | None = None,
        schedule: ScheduleInstance | None = None,
        lower_bound: int = 0,
        most_actions: int | None = None,
    ) -> None:
        self.searcher, self.candidate, self.seed = searcher, candidate, seed
        self.params, self.cp_window = searcher.params.order_search, searcher.params.cp_window
        self.by_span, self.schedule = searcher.by_span, schedule
        self.most_actions = most_actions or MOST_ACTIONS
        self.net: Net = searcher.net_of(candidate)
        self.is_exact = bool(follows_orders(self.net))
        self.lower_bound = lower_bound if self.by_span else max(lower_bound, int(net_lower_bound(self.net)))
        self.pool: list[Order] = []
        self.round, self.num_ended, self.num_origins = 0, 0, 0
        """Rounds started, tasks taken in, and seeds numbered."""
        self.task_s = [0.0] * _TASKS_PER_ROUND
        """Seconds of the last task that was taken in, by place in its round: windows take longer than tabu search."""
        self.window = window or TaskWindow()

    def __getstate__(self) -> dict[str, Any]:
        """What its tasks read; they are all that it does on another machine."""
        return {name: value for name, value in vars(self).items() if name not in ("pool", "window")}

    @property
    def best(self) -> Candidate | None:
        """The candidate with the best order so far."""
        if not self.pool:
            return None
        order = self.pool[0]
        device_orders = decode(self.net, order.device_orders, lengths=order.lengths, first=self.searcher.first_member)
        return self.candidate.with_orders(device_orders, objective=order.objective)

    @property
    def round_s(self) -> float:
        """Seconds that a round takes at least; 0.0: none has ended."""
        return min(self.task_s)

    @property
    def num_actions(self) -> int:
        """Actions of the fullest order: F, I and W of every stage replica."""
        return 3 * int(self.net.scalars[MICROBATCHES]) * len(self.net.replica_stage)

    def add(self, orders: Iterable[dict[int, DeviceOrder]]) -> None:
        """Offer orders to the pool; those that deadlock or break the memory are dropped."""
        for device_orders in orders:
            codes, lengths = self._room()
            if any(len(device_order) > codes.shape[1] for device_order in device_orders.values()):
                continue
            encode(self.net, device_orders, device_orders=codes, lengths=lengths, first=self.searcher.first_member)
            self._offer(codes, lengths)

    def add_filled(self) -> None:
        """Offer the orders in which every device runs as many F as end before the first gradient can be back."""
        for extra in _EXTRAS:
            device_orders, lengths = self._room()
            if play_filled(self.net, device_orders, lengths, extra, self.by_span)[0] < FAR:
                self._offer(device_orders, lengths)

    def run_round(self, on_better: Callable[[], None] | None = None) -> None:
        """Take in what the next round has to know, and start it; `on_better` is called when it has found a new best.

        Every result is taken in by a later round, or by `window.drain`.
        """
        self.window.make_room(_TASKS_PER_ROUND)
        numbers = range(self.round * _TASKS_PER_ROUND, (self.round + 1) * _TASKS_PER_ROUND)

        def take(place: int, order: Order | None, seconds: float) -> None:
            best, self.task_s[place], self.num_ended = self.pool[:1], seconds, self.num_ended + 1
            self._keep([] if order is None else [order])
            if on_better is not None and (not best or self.pool[0] is not best[0]):
                on_better()

        work, pool = min(self.most_actions, self.params.first_actions << min(self.round, 10)), tuple(self.pool)
        start = _OrderRound(pool=pool, work=work)
        for place, number in enumerate(numbers):
            task = PortableTask(self, "_task", (number, start))
            self.window.start([task], partial(take, place), expected_s=self.task_s[place])
        self.round += 1

    def _room(self) -> tuple[ShortIntegers, Integers]:
        num_devices = len(self.net.devices)
        return np.zeros((num_devices, longest_order(self.net)), np.int32), np.zeros(num_devices, np.int64)

    def _offer(self, device_orders: ShortIntegers, lengths: Integers) -> None:
        """Take in an order of a new origin, if it plays to its end within the memory."""
        order = self._rate(device_orders, lengths, origin=self.num_origins)
        self.num_origins += 1
        if order is not None:
            self._keep([order])

    def _rate(self, device_orders: ShortIntegers, lengths: Integers, *, origin: int) -> Order | None:
        """What an order is worth; None if it deadlocks or exceeds the memory."""
        policy = Policy(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64), None)
        makespan, span, total = play(self.net, policy, device_orders, lengths, True, FAR, None)
        if makespan >= FAR or peak_excess(self.net, device_orders, lengths) > 0:
            return None
        objective = int(span if self.by_span else makespan)
        return Order(objective=objective, total=int(total), device_orders=device_orders, lengths=lengths, origin=origin)

    def _keep(self, found: list[Order]) -> None:
        """Take orders in: the best of every origin, the best of all."""
        best: dict[int, Order] = {}
        for order in [*self.pool, *found]:
            old = best.get(order.origin)
            if old is None or _objective(order) < _objective(old):
                best[order.origin] = order
        self.pool = sorted(best.values(), key=_objective)[:_POOL_SIZE]

    def _task(self, number: int, begin: "_OrderRound") -> Order | None:
        """An order from policies, a window or tabu search: the task's number says which."""
        pool, work = begin.pool, begin.work
        seed = (self.seed * 1_000_003 + number) % 2**31
        round_number = sum(divmod(number, _TASKS_PER_ROUND))
        if number < 4 or not pool:
            return self._tuned(number, work=work, seed=seed)
        if number % 2 == 0 and self.schedule is not None and self.num_actions <= _MAX_ACTIONS:
            return self._windowed(pool[0], number, work=work, seed=seed)
        if round_number % 5 == 3:
            return self._tuned(number, work=work, seed=seed)
        rng = np.random.default_rng(seed)
        weights = _RANK_WEIGHT ** np.arange(len(pool))
        start = pool[int(rng.choice(len(pool), p=weights / weights.sum()))]
        return self._improved(start, number, work=work, seed=seed)

    def _tuned(self, number: int, *, work: int, seed: int) -> Order | None:
        device_orders, lengths = self._room()
        iterations = max(10, work // 2 // (self.num_actions + 100))
        slope = _SLOPES[number % len(_SLOPES)]
        tuning = Tuning(slope=slope, steps=iterations, temperature=0.02, lower_bound=self.lower_bound, seed=seed)
        value, total = tune(self.net, device_orders, lengths, tuning, self.by_span)
        if value >= FAR:
            return None
        order = Order(
            objective=int(value), total=int(total), device_orders=device_orders, lengths=lengths, origin=-1 - number
        )
        return self._improved(order, number, work=work // 2, seed=seed)

    def _improved(self, order: Order, number: int, *, work: int, seed: int) -> Order:
        device_orders, lengths = order.device_orders.copy(), order.lengths.copy()
        round_number = number // _TASKS_PER_ROUND
        if self.is_exact:
            samples, patience = (each[round_number % len(each)] for each in (_SAMPLES, _PATIENCE))
            iterations = max(10, work // (2 * self.num_actions + 20 * samples))
            search = TabuSearch(
                steps=iterations, samples=samples, patience=patience, lower_bound=self.lower_bound, seed=seed
            )
            value, total = improve(self.net, device_orders, lengths, search, self.by_span, np.zeros(1, np.int64))
        else:
            temperature = _TEMPERATURES[round_number % len(_TEMPERATURES)]
            iterations = max(10, work // (self.num_actions + 100))
            cooling = Cooling(steps=iterations, first=temperature, last=temperature, seed=seed)
            value, total = polish(self.net, device_orders, lengths, cooling, self.by_span, np.zeros(1, np.int64))
        return replace(order, objective=int(value), total=int(total), device_orders=device_orders, lengths=lengths)

    def _windowed(self, order: Order, number: int, *, work: int, seed: int) -> Order | None:
        # takes a second to import, and many problems never need it
        from solver_models.schedule.large_neighbourhood_search import sweep

        assert self.schedule is not None
        first = self.searcher.first_member
        known = decode(self.net, order.device_orders, lengths=order.lengths, first=first)
        better = sweep(self.schedule, known, time_limit_s=60.0, params=self.cp_window, seed=seed)
        if better is None:
            return None
        device_orders, lengths = self._room()
        encode(self.net, better.device_orders, device_orders=device_orders, lengths=lengths, first=first)
        found = self._rate(device_orders, lengths, origin=order.origin)
        # windows make room that moves on the critical path use in a tenth of the time
        return None if found is None else self._improved(found, number, work=work, seed=seed)


def _objective(order: Order) -> tuple[int, int]:
    return order.objective, order.total

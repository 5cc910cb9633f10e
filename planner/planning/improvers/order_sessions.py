"""Sessions of order search within a joint search: on its best candidate, and on contenders of their own."""

from collections.abc import Iterator

from planner.lowering import make_orders, make_schedule_instance
from planner.plan import Plan
from planner.planning.improvers.improver import Improver, Leader
from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import is_laid_out, stages_of
from solver_models.local_search.multistart import JointSearch
from solver_models.local_search.order_search import MOST_ACTIONS, OrderSearch
from solver_models.local_search.search import Candidate, Searcher
from solver_models.schedule.serial_schedule import one_by_one
from solver_models.simulation.evaluator import FAR

_EVERY_ROUNDS = 4
"""Joint rounds between two sessions."""
_MAX_VEE_ACTIONS = 30_000
"""Actions of the largest two-chunk V that gets a session."""
_MAX_VEES = 2
"""Two-chunk V that get sessions of their own."""
_HOPELESS = 1.05
"""The ratio to the incumbent that ends their sessions."""
_ROUNDS = 2
"""Rounds of a session."""
_MAX_SESSIONS = 4
"""Order searches that are under way at once."""
_SESSION_MOST_ACTIONS = 4_000_000
"""Work up to which that of a round doubles, in played actions."""

Key = tuple[bytes, tuple[tuple[int, ...], ...]]
"""A partition and a mapping: stage of every layer, and devices per stage."""


class Sessions(Improver):
    """Order searches that are under way, and whose turn it is."""

    name = "order search"

    def __init__(self, run: SearchState, search: JointSearch, *, leader: Leader) -> None:
        self.run, self.search, self.leader = run, search, leader
        self.orders: dict[Key, OrderSearch] = {}
        self.contenders: dict[Key, Candidate] = {}
        """Candidates that get sessions although they may not be the best ones."""

    def is_due(self, rounds: int) -> bool:
        """Once in a while, if there is time."""
        return rounds % _EVERY_ROUNDS == 0 and self.run.has_time_for_round(self.search.round_s)

    def note_vees(self, seeds: list[Candidate]) -> None:
        """Remember the two-chunk V with the least lower bounds: in little memory policies play them badly."""
        searcher, rated = self.search.searcher, list[tuple[int, int, Candidate]]()
        for seed in seeds:
            half = len(seed.groups) // 2
            is_vee = half and len(set(seed.groups)) == half and seed.groups[half:] == seed.groups[:half][::-1]
            num_actions = 3 * self.run.problem.num_microbatches * len(seed.groups)
            if is_vee and num_actions <= _MAX_VEE_ACTIONS and searcher.is_allowed(seed):
                lower_bound = searcher.lower_bound(seed.stage_of, seed.groups, modes=seed.modes)
                if lower_bound is not None:
                    rated.append((lower_bound, len(rated), seed))
        self.contenders = {key_of(seed): seed for *_, seed in sorted(rated)[:_MAX_VEES]}

    def take_step(self) -> Iterator[None]:
        """In turn, the order of the best candidate, and that of every contender that is not hopeless yet."""
        step = self.search.round // _EVERY_ROUNDS - 1
        self.contenders = {key: each for key, each in self.contenders.items() if not self._is_hopeless(key)}
        best = self.search.best
        if best is not None and (not self.contenders or step % 2):
            if self.search.searcher.is_open(best):
                yield from self._session(best)
        elif self.contenders:
            key = list(self.contenders)[step // 2 % len(self.contenders)]
            yield from self._session(self.contenders[key])

    def _is_hopeless(self, key: Key) -> bool:
        """Whether the order search of a contender has shown that there is nothing to hope for."""
        order, incumbent = self.orders.get(key), self.run.incumbent_ns
        if order is None or not order.num_ended or incumbent is None:
            return False
        reached = order.pool[0].objective if order.pool else FAR
        return reached > _HOPELESS * incumbent or order.lower_bound >= incumbent

    def _session(self, candidate: Candidate) -> Iterator[None]:
        """A few rounds on the order of a good candidate; the next session of the same one continues from there."""
        order = self.order_search(candidate)
        self.leader.take_best(order, source=self.name)
        for _ in range(_ROUNDS):
            if not self.run.has_time_for_round(order.round_s):
                break
            if order.pool and order.pool[0].objective <= order.lower_bound:
                break
            order.run_round(lambda: self.leader.take_best(order, source=self.name))
            yield

    def order_search(self, candidate: Candidate) -> OrderSearch:
        """The order search of a candidate's partition and mapping, with everything known about their orders."""
        key = key_of(candidate)
        if key not in self.orders:
            while len(self.orders) >= _MAX_SESSIONS:
                self.orders.pop(next(old for old in self.orders if old not in self.contenders))
            self.orders[key] = self._begin(candidate)
        self.orders[key].add([self.search.searcher.device_orders(candidate)[0]])
        return self.orders[key]

    def _begin(self, candidate: Candidate) -> OrderSearch:
        is_given = self.run.problem.options.placement is not None
        most_actions = MOST_ACTIONS if is_given else _SESSION_MOST_ACTIONS
        return begin_order_search(
            self.run, self.search.searcher, candidate=candidate, plans=self.run.played, most_actions=most_actions
        )


def begin_order_search(
    run: SearchState, searcher: Searcher, *, candidate: Candidate, plans: list[Plan], most_actions: int
) -> OrderSearch:
    """The order search of a candidate's partition and mapping, with the orders of those of `plans` that share them."""
    stages = stages_of(run.problem, candidate)
    schedule = make_schedule_instance(run.problem, stages, costs=run.costs)
    assert run.lower_bound is not None
    lower_bound = searcher.exact_lower_bound(candidate) if searcher.is_floored(candidate) else None
    order = OrderSearch(
        searcher,
        candidate,
        seed=run.limits.seed,
        window=run.window,
        schedule=schedule,
        lower_bound=max(run.lower_bound.value_ns, lower_bound or 0),
        most_actions=most_actions,
    )
    same = (plan for plan in plans if is_laid_out(plan, stages))
    order.add([one_by_one(schedule), *(make_orders(run.problem, plan) for plan in same)])
    order.add_filled()
    return order


def key_of(candidate: Candidate) -> Key:
    """What two candidates with the same partition and mapping share."""
    return candidate.stage_of.tobytes(), candidate.groups

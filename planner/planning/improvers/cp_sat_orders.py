"""Small open orders for CP-SAT, between the rounds of the search."""

from collections.abc import Callable, Iterator, Sequence

from planner.evidence.certificate import schedule_bound
from planner.lowering import make_orders, make_plan_from_orders, make_schedule_instance
from planner.plan import Plan, Stage
from planner.planning.improvers.improver import Improver
from planner.planning.improvers.order_sessions import Key, key_of
from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import candidate_of, stages_of
from solver_models.instance import DeviceOrder
from solver_models.local_search.multistart import JointSearch
from solver_models.local_search.order_search import OrderSearch
from solver_models.local_search.search import Candidate
from solver_models.result import ScheduleResult

_AFTER_ROUNDS, _AFTER_TIMED_ROUNDS, _EVERY_ROUNDS = 12, 4, 2
"""Rounds before the first order that CP-SAT is given, while the exact search closes small questions: where rounds are
counted, where time is; and between two of them."""
_FIRST_GIVEN_ROUNDS = 2
"""Rounds of order search before CP-SAT is given an order of stages that are given."""
_SHARE = 0.2
"""Part of the search's time that it gets at most, where rounds are not counted."""
MAX_ACTIONS = 300
"""The largest number of actions that CP-SAT is given."""
MAX_GIVEN_ACTIONS = 1_000
"""The same where stages and devices are given."""
_WORK = 5.0
"""CP-SAT's deterministic limit, and seconds at most where rounds are not counted."""

Take = Callable[[Plan | None, float], None]
"""Is handed what was found, and the seconds that it took."""


class SingleOrders(Improver):
    """Gives each partition and mapping to CP-SAT once, the best first.

    Where a whole backward is shorter than its I and W, the best order of some stages runs whole ones for a part of the
    microbatches only. Neither policies nor moves along the critical path find that, so that such stages look worse than
    they are.
    """

    name = "CP-SAT order"

    def __init__(self, run: SearchState, search: JointSearch) -> None:
        self.run, self.search = run, search
        self.ordered: set[Key] = set()
        self.used_s, self.begin_s = 0.0, run.elapsed_s

    def is_due(self, rounds: int) -> bool:
        """Once in a while, as long as it has used no more than its share of the time."""
        is_timed = self.run.limits.max_rounds is None
        is_paid = not is_timed or self.used_s <= _SHARE * self._search_s
        patience = _AFTER_TIMED_ROUNDS if is_timed else _AFTER_ROUNDS
        after = patience if self.run.limits.method == "auto" else 0
        return is_paid and rounds >= max(1, after) and rounds % _EVERY_ROUNDS == 0

    @property
    def _search_s(self) -> float:
        return self.run.elapsed_s - self.begin_s

    def take_step(self) -> Iterator[None]:
        """A better order of the next partition and mapping that is small enough for CP-SAT and open."""
        self.run.window.make_room(1)
        known = (*self.search.polished, *self.search.pool, *self.search.elite)
        for candidate in sorted((each for each in known if each.is_feasible), key=lambda each: each.sort_key):
            if self._is_open(candidate):
                self._solve(candidate)
                break
        yield

    def _is_open(self, candidate: Candidate) -> bool:
        """Whether some order could be better than the incumbent; asked once per partition and mapping."""
        run, key = self.run, key_of(candidate)
        if key in self.ordered or not _is_small(run, candidate.groups) or run.incumbent_ns is None:
            return False
        self.ordered.add(key)
        stages = stages_of(run.problem, candidate)
        return schedule_bound(run.problem, stages, costs=run.costs) < run.incumbent_ns

    def _solve(self, candidate: Candidate) -> None:
        """Have CP-SAT look for an order better than the incumbent."""
        device_orders = self.search.searcher.device_orders(candidate)[0]
        stages = stages_of(self.run.problem, candidate)
        start_orders(self.run, stages, hint=device_orders, source=self.name, work=_WORK, take=self._take)

    def _take(self, plan: Plan | None, seconds: float) -> None:
        """The search continues from what was found."""
        self.used_s += seconds
        if plan is not None:
            self.search.take([candidate_of(self.run.problem, self.search.searcher, plan=plan)])


class GivenOrder(Improver):
    """Gives the order of stages that are given to CP-SAT, again and again for twice as long.

    Every other time it shall halve the gap: far from a known order CP-SAT soon finds what no small step leads to.

    Where a transfer takes no time at all, F and I of neighbours mesh without a gap; a short one delays each of them a
    little more than the one before. The best order then runs some W in between, on several devices at once.
    """

    name = SingleOrders.name

    def __init__(self, run: SearchState, order: OrderSearch) -> None:
        self.run, self.order, self.turns = run, order, 0

    def is_due(self, rounds: int) -> bool:
        """After 2, 4, 8, 16 rounds and so on."""
        return rounds == _FIRST_GIVEN_ROUNDS << self.turns

    def take_step(self) -> Iterator[None]:
        """A better order, if they are few enough actions for CP-SAT and open."""
        if self.run.plan is not None:
            work, halves_gap = _WORK * 2**self.turns, self.turns % 2 == 0
            source, take = self.name, self._take
            order_by_cp_sat(self.run, self.run.plan, source=source, work=work, take=take, halves_gap=halves_gap)
        self.turns += 1
        yield

    def _take(self, plan: Plan | None, seconds: float) -> None:
        """The search continues from what was found."""
        del seconds
        if plan is not None:
            self.order.add([make_orders(self.run.problem, plan)])


def order_by_cp_sat(
    run: SearchState, plan: Plan, *, source: str, work: float, take: Take | None = None, halves_gap: bool | None = None
) -> bool:
    """Have CP-SAT look for an order of a plan's stages better than the incumbent, unless they are large or closed.

    `work`: CP-SAT's deterministic limit, and seconds at most. `halves_gap`: of stages that are given, whether only an
    order as near to the bound as to the incumbent is of use. Returns whether it was asked.
    """
    most = MAX_ACTIONS if halves_gap is None else MAX_GIVEN_ACTIONS
    if not _is_small(run, [stage.replicas for stage in plan.stages], most=most) or run.incumbent_ns is None:
        return False
    bound, below = schedule_bound(run.problem, plan.stages, costs=run.costs), run.incumbent_ns - 1
    if bound > below:
        return False
    if run.lower_bound is not None:
        bound = max(bound, run.lower_bound.value_ns)
    run.window.make_room(1)
    hint, most_ns = make_orders(run.problem, plan), (bound + below) // 2 if halves_gap else below
    start_orders(run, plan.stages, hint=hint, source=source, work=work, most_ns=most_ns, take=take)
    return True


def _is_small(run: SearchState, groups: Sequence[Sequence[object]], *, most: int = MAX_ACTIONS) -> bool:
    """Whether CP-SAT is given so many actions."""
    return 3 * run.problem.num_microbatches * sum(map(len, groups)) <= most


def start_orders(
    run: SearchState,
    stages: tuple[Stage, ...],
    *,
    hint: dict[int, DeviceOrder],
    source: str,
    work: float,
    most_ns: int | None = None,
    take: Take | None = None,
) -> None:
    """Give the orders of stages to CP-SAT; what it finds is proposed, and handed to `take` with the seconds.

    `work`: its deterministic limit; where rounds are not counted seconds too, and at most a quarter of those left.
    `most_ns`: no order above it is of use; if not given, less than the incumbent's.
    """
    if most_ns is None and run.incumbent_ns is not None:
        most_ns = run.incumbent_ns - 1
    instance = make_schedule_instance(run.problem, stages, costs=run.costs)
    limit_s = run.seconds_left
    if run.limits.max_rounds is None:
        limit_s = min(work, 0.25 * run.seconds_left)

    def solve() -> ScheduleResult:
        # takes a second to import, and most problems never need it
        from solver_models.schedule.effort import SolveEffort
        from solver_models.schedule.solve import solve_order

        effort = SolveEffort(
            time_limit_s=max(0.1, limit_s),
            deterministic_limit=work,
            seed=run.limits.seed,
            should_stop=run.should_stop,
        )
        return solve_order(instance, hint=hint, upper_bound=most_ns, effort=effort)

    def propose(result: ScheduleResult, seconds: float) -> None:
        run.solvers["ortools"] = result.solver
        found = result.device_orders
        plan = None if found is None else make_plan_from_orders(run.problem, stages, device_orders=found)
        if plan is not None:
            run.propose(plan, source=source)
        if take is not None:
            take(plan, seconds)

    run.window.start([solve], propose)

"""Which microbatches recompute in given orders, by an integer programme of HiGHS: the least end at which all fits.

Recomputing as few as memory allows is not it. Microbatches that recompute at several stages, one behind the other, cost
more than those whose longer I fall into waiting. With the orders given, actions end after those before them, and what a
device holds is a sum: some hundred to thousand rows, which take a fraction of a second. Relaxed, the same says which
orders are worth it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import gcd

import highspy
import numpy as np

from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD
from solver_models.recomputation.microbatch_recomputation import MicrobatchRecomputation, RecomputedOrders
from solver_models.time_indexed import run_highs

_MOST, _MOST_S = 4, 60.0
"""Orders whose whole programme is solved; and seconds of one, of which it takes a few."""

_FEASIBLE = int(highspy.SolutionStatus.kSolutionStatusFeasible)

Key = tuple[int, int, int]
"""Kind, stage replica, microbatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEffort:
    """When HiGHS gives up on a programme, or on all that are left."""

    most_nodes: int
    """Of the search of one; the same on every machine."""
    has_time: Callable[[], bool]
    """Whether another may begin, and this one continue; asked several times a second."""


@dataclass(slots=True)
class _ProgramRows:
    """Sums of terms between two limits."""

    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)

    def add(
        self, terms: dict[int, float], *, lower: float = -highspy.kHighsInf, upper: float = highspy.kHighsInf
    ) -> None:
        """Append one, with these coefficients by column."""
        self.columns += terms
        self.values += terms.values()
        self.starts.append(len(self.columns))
        self.lower.append(lower)
        self.upper.append(upper)


class OrderProgram:
    """The programme of one set of orders: a flag per stage and microbatch, the end of every action, and that of all."""

    def __init__(self, search: MicrobatchRecomputation, start: RecomputedOrders) -> None:
        self.search, self.tables, self.start = search, search.tables, start
        self.orders = search.replica_orders(start)
        self.num_flags = start.recomputed.size
        keys = [key for order in self.orders.values() for key in order]
        self.columns = {key: self.num_flags + number for number, key in enumerate(keys)}
        self.last = self.num_flags + len(keys)
        self.rows = _ProgramRows()
        for device, order in self.orders.items():
            self._keep_order(order)
            self._stay_within_budget(device, order)
        self._wait_for_what_comes()

    def _flag(self, n: int, m: int) -> int:
        return int(self.tables.stage[n]) * self.search.num_microbatches + m

    def _after(self, key: Key, *, before: Key | None, lag: float = 0.0) -> None:
        """An action ends no sooner than another, and then its lag and its own time."""
        kind, n, m = key
        kept, recomputed = (self.tables.ticks[n, :, kind] / self.search.mean_ticks).tolist()
        terms = {self.columns[key]: 1.0, self._flag(n, m): kept - recomputed}
        if before is not None:
            terms[self.columns[before]] = -1.0
        self.rows.add(terms, lower=kept + lag)

    def _keep_order(self, order: list[Key]) -> None:
        """Actions of a device come one after the other; the iteration ends after them."""
        for number, key in enumerate(order):
            self._after(key, before=order[number - 1] if number else None)
        for n, key in {key[1]: key for key in order}.items():
            closing = float(self.tables.closing[self.tables.stage[n]] / self.search.mean_ticks)
            self.rows.add({self.last: 1.0, self.columns[key]: -1.0}, lower=closing)

    def _wait_for_what_comes(self) -> None:
        """An action begins once what other stage replicas send has come."""
        for transfer in self.search.kept.transfers:
            kinds = (INPUT_GRAD, BACKWARD) if transfer.is_backward else (FORWARD,)
            for m in range(self.search.num_microbatches):
                one, two = (
                    next(key for kind in kinds if (key := (kind, n, m)) in self.columns)
                    for n in (transfer.sender, transfer.receiver)
                )
                self._after(two, before=one, lag=transfer.duration / self.search.mean_ticks)

    def _stay_within_budget(self, device: int, order: list[Key]) -> None:
        """What is held when an action runs, and from its end on, fits; in the largest units that all are made of."""
        own = sorted({n for _, n, _ in order})
        unit = max(1, gcd(*self.tables.steps[own].ravel().tolist()))
        budget, held, flags = int(self.tables.budget[device]) // unit, 0, dict[int, int]()
        for kind, n, m in order:
            (during, after), others = (self.tables.steps[n, :, kind] // unit).tolist()
            flag = self._flag(n, m)
            for added, other in ((during, others[0]), (after, others[1])):
                terms = {**flags, flag: flags.get(flag, 0) + other - added}
                if held + added + sum(max(0, each) for each in terms.values()) > budget:
                    self.rows.add({c: float(v) for c, v in terms.items() if v}, upper=float(budget - held - added))
            held, flags[flag] = held + after, flags.get(flag, 0) + others[1] - after
            if not flags[flag]:
                del flags[flag]

    def _run(self, *, below: float, effort: ProgramEffort, is_whole: bool) -> highspy.Highs | None:
        """The solver with a solution that ends at `below` at most; None if it has none."""
        model, size = highspy.HighsLp(), self.last + 1
        model.num_col_, model.num_row_ = size, len(self.rows.lower)
        model.col_cost_ = np.append(np.zeros(self.last), 1.0)
        model.col_lower_ = np.zeros(size)
        model.col_upper_ = np.append(np.ones(self.num_flags), np.full(size - self.num_flags, below))
        model.row_lower_, model.row_upper_ = np.array(self.rows.lower), np.array(self.rows.upper)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.array(self.rows.starts)
        model.a_matrix_.index_ = np.array(self.rows.columns)
        model.a_matrix_.value_ = np.array(self.rows.values)
        if is_whole:
            kinds = [highspy.HighsVarType.kInteger] * self.num_flags
            model.integrality_ = kinds + [highspy.HighsVarType.kContinuous] * (size - self.num_flags)
        solver = run_highs(
            model,
            time_limit_s=_MOST_S,
            should_stop=lambda: not effort.has_time(),
            most_nodes=effort.most_nodes,
        )
        has_any = solver is not None and solver.getInfo().primal_solution_status == _FEASIBLE
        return solver if has_any else None

    def least(self, effort: ProgramEffort) -> float:
        """Ticks below which no choice ends these orders; those of the start where there is no time to tell."""
        solver = self._run(below=highspy.kHighsInf, effort=effort, is_whole=False)
        if solver is None or solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return float(self.start.end)
        return float(solver.getInfo().objective_function_value * self.search.mean_ticks)

    def solve(self, effort: ProgramEffort) -> RecomputedOrders | None:
        """The orders with the best choice that is found, if they end sooner than they did."""
        solver = self._run(below=(self.start.end - 1) / self.search.mean_ticks, effort=effort, is_whole=True)
        if solver is None:
            return None
        flags = np.array(solver.getSolution().col_value[: self.num_flags]).reshape(self.start.recomputed.shape) > 0.5
        recomputed = [np.flatnonzero(row).tolist() for row in flags]
        return self.search.of_orders(self.search.device_orders(self.start), recomputed)


def choose_recomputed(
    search: MicrobatchRecomputation, starts: Iterable[RecomputedOrders], *, effort: ProgramEffort
) -> list[RecomputedOrders]:
    """Of these orders the most hopeful, with other microbatches that recompute; those that end sooner than they did."""
    programs = [OrderProgram(search, each) for each in starts]
    best = min(program.start.end for program in programs)
    found: list[RecomputedOrders] = []
    for least, _, program in sorted((each.least(effort), number, each) for number, each in enumerate(programs)):
        if least >= best or len(found) == _MOST or not effort.has_time():
            break
        chosen = program.solve(effort)
        if chosen is not None:
            found.append(chosen)
            best = min(best, chosen.end)
    return found

"""The interval formulation: one binary per stage (layers i to j on r devices of class c), bisected over the load.

Given to HiGHS in this process as arrays: a programme has up to 200,000 columns. Columns longer than the limit in
question are left out, which is what makes both the relaxation and the integer programme strong.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

import highspy
import numpy as np
from highspy import HighsModelStatus

from solver_models.instance import Integers
from solver_models.interruptible import run_stoppable
from solver_models.partition.dynamic import Partitioner, Stages
from solver_models.partition.interval_kernels import columns
from solver_models.partition.partition_instance import Interval, PartitionInstance
from solver_models.result import PartitionResult, Status

SOLVER = f"HiGHS {version('highspy')}"

FIRST, END, CLASS, REPLICAS, LOAD = range(5)
"""Columns of the table of stages."""

MAX_COLUMNS = 200_000
"""Largest programme that is built."""

GRACE_S = 1.0
"""Seconds beyond its time limit after which HiGHS is told to stop."""

Answer = Stages | Literal[False] | None
"""Stages (none of them if only the relaxation was asked for); False if there is no solution; None if it was stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConstraintRows:
    """A family of constraints: entries of the matrix and the limits of every row."""

    row: Integers
    """Row of every entry, from 0 within the family."""
    column: Integers
    value: Integers
    lower: Integers
    """Least value of every row."""
    upper: Integers
    """Largest value of every row."""


class IntervalProgram:
    """The integer programme for one limit: each rule is one sentence, one method and one family of constraints.

    Everything is an array with an entry per column, so that 100,000 columns are made in a fraction of a second.
    """

    NAMES = ("layers_are_covered_in_order", "devices_suffice")

    def __init__(self, instance: PartitionInstance, table: Integers) -> None:
        """`table` lists the stages allowed: first, end, class, replicas, load."""
        self.instance = instance
        self.stage = table[:, : REPLICAS + 1]
        """First, end, class and replicas of every column."""
        self.rules = [found for name in self.NAMES if (found := getattr(self, name)()) is not None]

    def layers_are_covered_in_order(self) -> _ConstraintRows | None:
        """The chosen stages form a path from the first cut to the last."""
        first, end = self.stage[:, FIRST], self.stage[:, END]
        source, sink = 0, self.instance.num_layers
        names, rows = np.unique(np.concatenate([first, end, [source, sink]]), return_inverse=True)
        count = len(self.stage)
        amount = (names == source).astype(np.int64) - (names == sink)
        return _ConstraintRows(
            row=rows[: 2 * count],
            column=np.tile(np.arange(count), 2),
            value=np.repeat(np.array([1, -1]), count),
            lower=amount,
            upper=amount,
        )

    def devices_suffice(self) -> _ConstraintRows | None:
        """The chosen stages use no more devices of a class than there are."""
        return _ConstraintRows(
            row=self.stage[:, CLASS],
            column=np.arange(len(self.stage)),
            value=self.stage[:, REPLICAS],
            lower=np.zeros_like(self.instance.count),
            upper=self.instance.count,
        )

    def make_model(self, *, is_relaxed: bool) -> highspy.HighsLp:
        """What HiGHS is given: nothing to minimise, columns of 0 or 1."""
        model, count = highspy.HighsLp(), len(self.stage)
        starts = np.cumsum([0, *(len(rule.lower) for rule in self.rules)]).tolist()
        rows = np.concatenate([rule.row + start for rule, start in zip(self.rules, starts[:-1], strict=True)])
        columns = np.concatenate([rule.column for rule in self.rules])
        values = np.concatenate([rule.value for rule in self.rules])
        order = np.argsort(columns, kind="stable")
        model.num_col_, model.num_row_ = count, starts[-1]
        model.col_cost_, model.col_lower_, model.col_upper_ = np.zeros(count), np.zeros(count), np.ones(count)
        model.row_lower_ = np.concatenate([rule.lower for rule in self.rules]).astype(np.float64)
        model.row_upper_ = np.concatenate([rule.upper for rule in self.rules]).astype(np.float64)
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_ = np.searchsorted(columns[order], np.arange(count + 1))
        model.a_matrix_.index_ = rows[order]
        model.a_matrix_.value_ = values[order].astype(np.float64)
        if not is_relaxed:
            model.integrality_ = [highspy.HighsVarType.kInteger] * count
        return model

    def read(self, values: Sequence[float]) -> Stages:
        """The stages chosen."""
        chosen = self.stage[np.asarray(values) > 0.5]
        return tuple(sorted(Interval(*stage) for stage in chosen.tolist()))


@dataclass(slots=True, kw_only=True)
class _Clock:
    """When to stop."""

    end: float
    should_stop: Callable[[], bool] | None

    @property
    def left_s(self) -> float:
        return self.end - time.monotonic()

    @property
    def is_over(self) -> bool:
        return self.left_s <= 0 or (self.should_stop is not None and self.should_stop())


def solve_partition(
    instance: PartitionInstance,
    *,
    incumbent: Stages | None = None,
    time_limit_s: float = 10.0,
    max_nodes: int | None = None,
    seed: int = 0,
    should_stop: Callable[[], bool] | None = None,
) -> PartitionResult:
    """The partition with the least largest load, and a bound on it; `incumbent` is what is to be beaten.

    `max_nodes` limits HiGHS's tree for every load that is tried, such that the answer does not depend on the clock.
    """
    clock = _Clock(end=time.monotonic() + time_limit_s, should_stop=should_stop)
    options = {"output_flag": False, "threads": 1, "random_seed": seed}
    if max_nodes is not None:
        options |= {"mip_max_nodes": max_nodes}
    return _Bisection(instance, clock=clock, options=options).solve(incumbent)


class _Bisection:
    """The search for the least limit that has a solution."""

    def __init__(self, instance: PartitionInstance, *, clock: _Clock, options: Mapping[str, int]) -> None:
        self.instance, self.clock, self.options = instance, clock, options
        self.partitioner = Partitioner(instance)

    def solve(self, incumbent: Stages | None) -> PartitionResult:
        best = incumbent if incumbent is not None and self.partitioner.is_feasible(incumbent) else None
        limit = self.partitioner.ceiling() if best is None else self.partitioner.largest_load(best) - 1
        self.table = columns(self.partitioner.tables, limit, self.instance.allowed)
        if len(self.table) > MAX_COLUMNS:
            return _result("unknown" if best is None else "feasible", best, partitioner=self.partitioner, bound=None)
        levels = np.unique(self.table[:, LOAD]).tolist()
        low, high = self._least_relaxed(levels), len(levels)
        while low < high and not self.clock.is_over:
            middle = (low + high) // 2
            answer = self._ask(levels[middle])
            if answer is None:
                break
            if answer is False:
                low = middle + 1
            else:
                best = answer
                high = bisect_left(levels, self.partitioner.largest_load(answer))
        bound = levels[low] if low < len(levels) else None if best is None else self.partitioner.largest_load(best)
        status: Status = "feasible" if low < high else "optimal"
        if best is None:
            status = "unknown" if low < high else "infeasible"
        return _result(status, best, partitioner=self.partitioner, bound=bound)

    def _least_relaxed(self, levels: list[int]) -> int:
        """Index of the least limit at which the relaxation has a solution, sought from the top in growing steps."""
        low, high, step = bisect_left(levels, self.partitioner.lower_bound()), len(levels), 1 + len(levels) // 256
        while low < high and not self.clock.is_over:
            middle = max(high - step, (low + high) // 2)
            answer = self._ask(levels[middle], is_relaxed=True)
            if answer is None:
                break
            low, high = (middle + 1, high) if answer is False else (low, middle)
            step *= 4
        return low

    def _ask(self, limit: int, *, is_relaxed: bool = False) -> Answer:
        """Whether stages within `limit` cover the layers; what HiGHS finds is checked before it is believed."""
        program = IntervalProgram(self.instance, self.table[self.table[:, LOAD] <= limit])
        if not program.rules or self.clock.is_over:
            return None
        left_s = max(0.0, self.clock.left_s)
        highs = highspy.Highs()
        for name, value in (*self.options.items(), ("time_limit", left_s)):
            highs.setOptionValue(name, value)
        highs.passModel(program.make_model(is_relaxed=is_relaxed))
        highs.HandleUserInterrupt = True
        is_done = run_stoppable(
            lambda: highs.run() is not None,
            stop=highs.cancelSolve,
            should_stop=self.clock.should_stop,
            deadline_s=left_s + GRACE_S,
        )
        if not is_done:
            return None
        outcome = highs.getModelStatus()
        if outcome in (HighsModelStatus.kInfeasible, HighsModelStatus.kUnboundedOrInfeasible):
            return False
        if is_relaxed:
            return () if outcome == HighsModelStatus.kOptimal else None
        stages = program.read(highs.getSolution().col_value)
        is_believed = self.partitioner.is_feasible(stages) and self.partitioner.largest_load(stages) <= limit
        return stages if is_believed else None


def _result(status: Status, best: Stages | None, *, partitioner: Partitioner, bound: int | None) -> PartitionResult:
    objective = None if best is None else partitioner.largest_load(best)
    return PartitionResult(status=status, objective=objective, bound=bound, stages=best, solver=SOLVER)

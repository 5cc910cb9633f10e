"""The interval formulation: one binary per stage (layers i to j on r devices of class c), bisected over the load.

In PuLP, solved by HiGHS in this process. Columns longer than the limit in question are left out, which is what makes
both the relaxation and the integer programme strong.
"""

import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

import numpy as np
import pulp
from highspy import HighsModelStatus

from solver_models.instance import Integers
from solver_models.partition.dynamic import Partitioner, Stages
from solver_models.partition.instance import Interval, PartitionInstance
from solver_models.partition.kernels import columns
from solver_models.result import PartitionResult, Status
from solver_models.stoppable import run_stoppable

SOLVER = f"HiGHS {version('highspy')} through PuLP {version('pulp')}"

MAX_COLUMNS = 200_000
"""Largest programme that is built."""

GRACE_S = 1.0
"""Seconds beyond its time limit after which HiGHS is told to stop."""

Answer = Stages | Literal[False] | None
"""Stages (none of them if only the relaxation was asked for); False if there is no solution; None if it was stopped."""


class IntervalProgram:
    """The integer programme for one limit: each rule is one sentence, one method and one family of constraints."""

    NAMES = ("layers_are_covered_in_order", "devices_suffice")

    def __init__(self, instance: PartitionInstance, table: Integers) -> None:
        """`table` lists the stages allowed: first, end, class, replicas, load, most stages after it."""
        self.instance = instance
        last = len(instance.in_flight) - 1
        most_stages = min(instance.num_layers, instance.num_devices)
        self.columns: list[tuple[Interval, int]] = []
        for first, end, device_class, replicas, _, after in table.tolist():
            levels = range(1) if last == 0 else range(most_stages if after == last else after + 1)
            stage = Interval(first, end, device_class, replicas)
            self.columns.extend((stage, level) for level in levels)
        self.program = pulp.LpProblem("partition", pulp.LpMinimize)
        self.is_layered = last > 0
        self.use = [
            self.program.add_variable(
                f"layers_{s.first}_{s.end}_class_{s.device_class}_x{s.replicas}_before_{level}", cat="Binary"
            )
            for s, level in self.columns
        ]
        self.program += pulp.lpSum([])
        for name in self.NAMES:
            getattr(self, name)()

    def layers_are_covered_in_order(self) -> None:
        """The chosen stages form a path from the first cut to the last; the number of stages left counts down."""
        balance: dict[tuple[int, int], dict[pulp.LpVariable, int]] = {}
        end = self.instance.num_layers
        for (stage, level), variable in zip(self.columns, self.use, strict=True):
            before, after = (level + 1, level) if self.is_layered else (0, 0)
            start_node = (stage.first, before if stage.first else -1)
            end_node = (stage.end, after)
            balance.setdefault(start_node, {})[variable] = 1
            balance.setdefault(end_node, {})[variable] = -1
        source, sink = (0, -1), (end, 0)
        for node in sorted({*balance, source, sink}):
            amount = int(node == source) - int(node == sink)
            self.program += (
                pulp.LpAffineExpression(balance.get(node, {})) == amount,
                f"cut_{node[0]}_left_{node[1] + 1}",
            )

    def devices_suffice(self) -> None:
        """The chosen stages use no more devices of a class than there are."""
        for device_class, count in enumerate(self.instance.count.tolist()):
            pairs = zip(self.columns, self.use, strict=True)
            used = {variable: stage.replicas for (stage, _), variable in pairs if stage.device_class == device_class}
            if used:
                self.program += pulp.LpAffineExpression(used) <= count, f"class_{device_class}"

    def read(self) -> Stages:
        """The stages chosen."""
        pairs = zip(self.columns, self.use, strict=True)
        return tuple(sorted(stage for (stage, _), variable in pairs if (variable.value() or 0) > 0.5))


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
    allowed: Integers | None = None,
    time_limit_s: float = 10.0,
    seed: int = 0,
    should_stop: Callable[[], bool] | None = None,
) -> PartitionResult:
    """The partition with the least largest load, and a bound on it; `incumbent` is what is to be beaten.

    `allowed` [R + 1] says which numbers of replicas may be used.
    """
    clock = _Clock(end=time.monotonic() + time_limit_s, should_stop=should_stop)
    return _Bisection(instance, allowed=allowed, clock=clock, seed=seed).solve(incumbent)


class _Bisection:
    """The search for the least limit that has a solution."""

    def __init__(self, instance: PartitionInstance, *, allowed: Integers | None, clock: _Clock, seed: int) -> None:
        self.instance, self.clock, self.seed = instance, clock, seed
        self.partitioner = Partitioner(instance)
        self.allowed = np.ones(instance.most_replicas + 1, np.int64) if allowed is None else allowed

    def solve(self, incumbent: Stages | None) -> PartitionResult:
        best = incumbent if incumbent is not None and self.partitioner.is_feasible(incumbent) else None
        limit = self.partitioner.ceiling() if best is None else self.partitioner.largest_load(best) - 1
        self.table = columns(self.partitioner.tables, limit, self.allowed)
        if len(self.table) > MAX_COLUMNS:
            return _result("unknown" if best is None else "feasible", best, partitioner=self.partitioner, bound=None)
        levels = np.unique(self.table[:, 4]).tolist()
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
        low, high, step = bisect_left(levels, self.partitioner.floor()), len(levels), 1 + len(levels) // 256
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
        program = IntervalProgram(self.instance, self.table[self.table[:, 4] <= limit])
        left_s = max(0.0, self.clock.left_s)
        solver = pulp.HiGHS(mip=not is_relaxed, msg=False, threads=1, timeLimit=left_s, random_seed=self.seed)
        solver.createAndConfigureSolver(program.program)
        solver.buildSolverModel(program.program)
        highs = program.program.solverModel
        highs.HandleUserInterrupt = True
        is_done = run_stoppable(
            lambda: solver.callSolver(program.program) is None,
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
        solver.findSolutionValues(program.program)
        stages = program.read()
        is_believed = self.partitioner.is_feasible(stages) and self.partitioner.largest_load(stages) <= limit
        return stages if is_believed else None


def _result(status: Status, best: Stages | None, *, partitioner: Partitioner, bound: int | None) -> PartitionResult:
    objective = None if best is None else partitioner.largest_load(best)
    return PartitionResult(status=status, objective=objective, bound=bound, stages=best, solver=SOLVER)

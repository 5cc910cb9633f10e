"""CP-SAT's orders of given stages in which some microbatches recompute.

As in `microbatch_orders`, microbatches come in order within a stage replica, links are never busy, and what is one B
stays one.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from typing import Any

from ortools.sat.python import cp_model

from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, DeviceOrder
from solver_models.recomputation.microbatch_orders import KEPT, RECOMPUTED
from solver_models.recomputation.microbatch_recomputation import MicrobatchRecomputation, RecomputedOrders
from solver_models.schedule.effort import SolveEffort, run_model

_MOST_UNITS = 1 << 20
"""Memory is counted in at most so many units per device."""
_DURING, _AFTER = 0, 1

Key = tuple[int, int, int]
"""Kind, stage replica, microbatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """An action: ticks of its start and end, which depends on whether its microbatch recomputes."""

    start: cp_model.IntVar
    end: Any
    interval: cp_model.IntervalVar


def solve_orders(
    search: MicrobatchRecomputation, start: RecomputedOrders, *, effort: SolveEffort
) -> tuple[RecomputedOrders, bool]:
    """Orders no worse than those it begins with, and whether the model allows none that are better."""
    model = _RecomputationModel(search, start)
    solver, status = run_model(model.model, effort)
    found = model.read(solver) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None
    is_closed = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return start if found is None or found.end > start.end else found, is_closed


class _RecomputationModel:
    """The model of the orders that take less time than those it begins with."""

    def __init__(self, search: MicrobatchRecomputation, start: RecomputedOrders) -> None:
        self.search, self.tables, self.start = search, search.tables, start
        self.tick = max(1, gcd(*self.tables.ticks.ravel().tolist(), *self.tables.moving.tolist()))
        self.before = search.times(start)
        self.horizon = start.end // self.tick - 1
        self.model = cp_model.CpModel()
        self.flags = {
            (stage, m): self._hinted(self.model.new_bool_var(""), int(start.recomputed[stage, m]))
            for stage in range(search.num_stages)
            for m in range(search.num_microbatches)
        }
        self.keys = search.replica_orders(start)
        self.tasks = {key: self._task(key) for keys in self.keys.values() for key in keys}
        self._replicas_keep_their_order()
        self._actions_wait_for_what_they_need()
        for device, keys in self.keys.items():
            self.model.add_no_overlap([self.tasks[key].interval for key in keys])
            self._memory_stays_within_budget(device, keys)
        makespan = self._number(start.end)
        for key, task in self.tasks.items():
            closing = int(self.tables.closing[self.tables.stage[key[1]]]) // self.tick
            self.model.add(makespan >= task.end + closing)
        self.model.minimize(makespan)

    def _hinted(self, variable: cp_model.IntVar, value: int) -> cp_model.IntVar:
        self.model.add_hint(variable, value)
        return variable

    def _number(self, ticks: int) -> cp_model.IntVar:
        return self._hinted(self.model.new_int_var(0, self.horizon, ""), min(ticks // self.tick, self.horizon))

    def _flag(self, n: int, m: int) -> cp_model.IntVar:
        """Whether a microbatch recomputes."""
        return self.flags[int(self.tables.stage[n]), m]

    def _task(self, key: Key) -> _Task:
        kind, n, m = key
        kept, recomputed = (int(ticks) // self.tick for ticks in self.tables.ticks[n, :, kind])
        begin, finish = self.before[kind, n, m]
        start = self._number(begin)
        if kept == recomputed:
            interval = self.model.new_fixed_size_interval_var(start, kept, "")
            return _Task(start=start, end=start + kept, interval=interval)
        end, size = self._number(finish), kept + (recomputed - kept) * self._flag(n, m)
        return _Task(start=start, end=end, interval=self.model.new_interval_var(start, size, end, ""))

    def _replicas_keep_their_order(self) -> None:
        """Microbatches come in order, F before I or B, I before W."""
        for n in range(len(self.tables.stage)):
            own = [[self.tasks[key] for key in self._all_of(n, kind)] for kind in (FORWARD, INPUT_GRAD, WEIGHT_GRAD)]
            for tasks in own:
                for one, two in pairwise(tasks):
                    self.model.add(one.end <= two.start)
            for forward, back in zip(own[0], own[1], strict=True):
                self.model.add(forward.end <= back.start)
            for kind, _, m in self._all_of(n, WEIGHT_GRAD):
                self.model.add(self.tasks[INPUT_GRAD, n, m].end <= self.tasks[kind, n, m].start)

    def _all_of(self, n: int, kind: int) -> list[Key]:
        """The actions of a stage replica; where B is asked for as I."""
        alike = (INPUT_GRAD, BACKWARD) if kind == INPUT_GRAD else (kind,)
        keys = ((each, n, m) for m in range(self.search.num_microbatches) for each in alike)
        return [key for key in keys if key in self.tasks]

    def _actions_wait_for_what_they_need(self) -> None:
        """An action begins once what other stage replicas send has come."""
        for transfer in self.search.kept.transfers:
            kind = INPUT_GRAD if transfer.is_backward else FORWARD
            sent, awaited = self._all_of(transfer.sender, kind), self._all_of(transfer.receiver, kind)
            for one, two in zip(sent, awaited, strict=True):
                self.model.add(self.tasks[one].end + transfer.duration // self.tick <= self.tasks[two].start)

    def _memory_stays_within_budget(self, device: int, keys: list[Key]) -> None:
        """What microbatches hold from F to I and from I to W, and actions while they run, is never too much."""
        budget = int(self.tables.budget[device])
        unit = max(1, budget // _MOST_UNITS)
        holds: list[tuple[cp_model.IntervalVar, int]] = []
        for kind, n, m in keys:
            task, steps, flag = self.tasks[kind, n, m], self.tables.steps[n].tolist(), self._flag(n, m)
            if kind == FORWARD:
                back = next(self.tasks[each, n, m] for each in (INPUT_GRAD, BACKWARD) if (each, n, m) in self.tasks)
                held = [steps[variant][FORWARD][_AFTER] for variant in (KEPT, RECOMPUTED)]
                holds += self._hold(task.start, back.end, units=held, flag=flag)
                more = [steps[variant][FORWARD][_DURING] - held[variant] for variant in (KEPT, RECOMPUTED)]
            else:
                more = [steps[variant][kind][_DURING] for variant in (KEPT, RECOMPUTED)]
            holds += self._hold(task.start, task.end, units=more, flag=flag)
            if kind == WEIGHT_GRAD:
                held = [-steps[variant][WEIGHT_GRAD][_AFTER] for variant in (KEPT, RECOMPUTED)]
                holds += self._hold(self.tasks[INPUT_GRAD, n, m].end, task.end, units=held, flag=flag)
        demands = [-(-units // unit) for _, units in holds]
        if sum(demands) > budget // unit:
            self.model.add_cumulative([interval for interval, _ in holds], demands, budget // unit)

    def _hold(
        self, start: Any, end: Any, *, units: list[int], flag: cp_model.IntVar
    ) -> list[tuple[cp_model.IntervalVar, int]]:
        """What is held for some time: so much if a microbatch is kept, or if it recomputes."""
        least, size = min(units), self.model.new_int_var(0, self.horizon, "")
        found = []
        if least > 0:
            found.append((self.model.new_interval_var(start, size, end, ""), least))
        for variant, presence in ((KEPT, ~flag), (RECOMPUTED, flag)):
            if units[variant] > max(least, 0):
                interval = self.model.new_optional_interval_var(start, size, end, presence, "")
                found.append((interval, units[variant] - max(least, 0)))
        return found

    def read(self, solver: cp_model.CpSolver) -> RecomputedOrders | None:
        """The orders, played anew."""
        orders: dict[int, DeviceOrder] = {}
        for device, keys in self.keys.items():
            place = {key: number for number, key in enumerate(keys)}
            ranked = sorted(
                keys,
                key=lambda key: (
                    solver.value(self.tasks[key].start), solver.value(self.tasks[key].end), place[key]
                ),
            )  # fmt: skip
            orders[device] = [(kind, int(self.tables.stage[n]), m) for kind, n, m in ranked]
        recomputed = [
            [m for m in range(self.search.num_microbatches) if solver.value(self.flags[stage, m])]
            for stage in range(self.search.num_stages)
        ]
        return self.search.of_orders(orders, recomputed)

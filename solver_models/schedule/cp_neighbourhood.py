"""A better order within a stretch of time, all else kept in order: for schedules that are too large for CP-SAT."""

from dataclasses import dataclass
from typing import Any

from ortools.sat.python import cp_model

from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, DeviceOrder, ScheduleInstance
from solver_models.schedule.effort import SolveEffort, run_model
from solver_models.schedule.evaluation import TimedOrders, duration_of, in_order, play
from solver_models.schedule.tails import Key, Tails

MAKESPAN_WEIGHT = 1000
"""How many ticks of the sum of the devices' ends one tick of makespan is worth."""

_SAFE = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Better:
    """Device orders no worse than before."""

    device_orders: dict[int, DeviceOrder]
    """Per device, the new order."""
    played: TimedOrders
    """The actions with their start and end ticks."""

    @property
    def makespan(self) -> int:
        """Ticks from 0 to the last end."""
        return self.played.makespan


def play_orders(instance: ScheduleInstance, device_orders: dict[int, DeviceOrder]) -> Better | None:
    """Device orders to improve; None if they cannot be played, or the span is minimised."""
    numbered = in_order(device_orders)
    played = None if instance.objective != "makespan" else play(instance, numbered)
    return None if played is None else Better(device_orders=numbered, played=played)


def improve_window(
    best: Better, *, start: int, end: int, effort: SolveEffort = SolveEffort(time_limit_s=2.0)
) -> Better | None:
    """Device orders in which what starts from `start` to `end` may be in another order; None if there are none as good.

    Among equally short schedules those with the least sum of the devices' ends are preferred, so that a later window
    finds room. Queues on links are left out of the model; the device orders are played, and kept only if they are no
    worse.
    """
    window = _Window(best.played, best.device_orders, start=start, end=end)
    if not window.free or window.total > _SAFE // MAKESPAN_WEIGHT:
        return None
    found = window.solve(effort)
    again = None if found is None else play_orders(best.played.instance, found)
    return None if again is None or again.makespan > window.makespan else again


class _Window:
    """The model of one window: only the free actions are in it, with heads and tails for the rest."""

    def __init__(self, played: TimedOrders, device_orders: dict[int, DeviceOrder], *, start: int, end: int) -> None:
        self.played, self.instance, self.device_orders = played, played.instance, device_orders
        self.free = {key for key, at in played.starts.items() if start <= at < end}
        self.past = {key for key, at in played.starts.items() if at < start}
        self.tails = Tails(played, set(played.starts) - self.free - self.past)
        self.makespan = played.makespan
        self.total = self.makespan * (1 + len(device_orders))
        self.model = cp_model.CpModel()
        self.hints: list[tuple[cp_model.IntVar, int]] = []
        self.starts: dict[Key, cp_model.IntVar] = {}
        self.intervals: dict[Key, cp_model.IntervalVar] = {}
        if self.free and self.total <= _SAFE // MAKESPAN_WEIGHT:
            self._build()

    def _build(self) -> None:
        for key in sorted(self.free):
            name = "{}{}m{}".format("FIWB"[key[0]], *key[1:])
            self.starts[key] = self._number(name, value=self.played.starts[key])
            duration = duration_of(self.instance.replicas[key[1]], key[0])
            self.intervals[key] = self.model.new_fixed_size_interval_var(self.starts[key], duration, name)
        self._actions_wait_for_what_they_need()
        self._replicas_keep_their_order()
        self._devices_run_one_at_a_time()
        for device in self.device_orders:
            self._memory_stays_within_budget(device)
        self._what_follows_is_kept()
        for variable, value in self.hints:
            self.model.add_hint(variable, value)

    def _number(self, name: str, *, value: int) -> cp_model.IntVar:
        variable = self.model.new_int_var(0, self.makespan, name)
        self.hints.append((variable, value))
        return variable

    def _end(self, key: Key) -> Any:
        """End of an action: a number in the past, an expression in the window."""
        duration = duration_of(self.instance.replicas[key[1]], key[0])
        return (self.starts[key] if key in self.free else self.played.starts[key]) + duration

    def _actions_wait_for_what_they_need(self) -> None:
        """Each waits for its own stage replica and for what other stage replicas send it."""
        for key in self.free | self.past:
            for waiting, delay in self.tails.waiting(key):
                if waiting in self.free:
                    self.model.add(self.starts[waiting] >= self._end(key) + delay)

    def _replicas_keep_their_order(self) -> None:
        """Microbatches come in order."""
        for key in self.free:
            later = [(kind, key[1], key[2] + 1) for kind in _alike(key[0])]
            for other in later:
                if other in self.free:
                    self.model.add(self.starts[other] >= self._end(key))

    def _devices_run_one_at_a_time(self) -> None:
        """Free actions of a device never overlap, and start after what is past."""
        for device in self.device_orders:
            own = self._keys(device)
            past = [self.instance.devices[device].free_from, *(self._end(key) for key in own if key in self.past)]
            for key in own:
                if key in self.free:
                    self.model.add(self.starts[key] >= max(past))
            self.model.add_no_overlap([self.intervals[key] for key in own if key in self.free])

    def _keys(self, device: int) -> list[Key]:
        replica_of = {replica.stage: n for n, replica in enumerate(self.instance.replicas) if replica.device == device}
        return [(kind, replica_of[stage], microbatch) for kind, stage, microbatch in self.device_orders[device]]

    def _memory_stays_within_budget(self, device: int) -> None:
        """What is held when the window begins, and every stash taken or given back in it, fits."""
        intervals, units, constant = [], [], 0
        for number, replica in enumerate(self.instance.replicas):
            if replica.device != device:
                continue
            for m in range(self.instance.num_microbatches):
                backward = (BACKWARD if self.played.is_fused(number, m) else INPUT_GRAD, number, m)
                spans = [((FORWARD, number, m), backward, replica.held)]
                if (WEIGHT_GRAD, number, m) in self.played.starts:
                    spans.append((backward, (WEIGHT_GRAD, number, m), replica.weight_stash))
                for taker, giver, size in spans:
                    span = self._span(taker, giver) if size else None
                    constant += size if span is True else 0
                    if span is not None and span is not True:
                        intervals.append(span)
                        units.append(size)
        for key in self._keys(device):
            rest = self.instance.replicas[key[1]].extra(key[0])
            if key in self.free and rest > 0:
                intervals.append(self.intervals[key])
                units.append(rest)
        if sum(units) > self.instance.devices[device].memory - constant:
            self.model.add_cumulative(intervals, units, self.instance.devices[device].memory - constant)

    def _span(self, taker: Key, giver: Key) -> Any:
        """While units are held that `taker` takes and the end of `giver` gives back; True if throughout, None if never.

        F takes at its start, I (what is kept for W) at its end.
        """
        if giver in self.past or (taker not in self.free and taker not in self.past):
            return None
        if taker in self.past and giver not in self.free:
            return True
        begin = 0 if taker in self.past else self.starts[taker] if taker[0] == FORWARD else self._end(taker)
        finish = self._end(giver) if giver in self.free else self.makespan + 1
        at = self.played.starts.get(taker, 0)
        at += 0 if taker[0] == FORWARD else duration_of(self.instance.replicas[taker[1]], taker[0])
        first = 0 if taker in self.past else at
        last = self.makespan + 1
        if giver in self.free:
            last = self.played.starts[giver] + duration_of(self.instance.replicas[giver[1]], giver[0])
        size = self.model.new_int_var(0, self.makespan + 1, "held")
        self.hints.append((size, last - first))
        return self.model.new_interval_var(begin, size, finish, "held")

    def _what_follows_is_kept(self) -> None:
        """The makespan covers every free action and, behind it, all that is kept; then the devices' ends count."""
        makespan = self._number("makespan", value=self.makespan)
        self.model.add(makespan >= max((self._end(key) + self.tails.after(key) for key in self.past), default=0))
        ends = []
        for device in self.device_orders:
            own = [key for key in self._keys(device) if key in self.free]
            if own:
                value = max(
                    self.played.starts[key] + duration_of(self.instance.replicas[key[1]], key[0]) for key in own
                )
                ends.append(self._number(f"device{device}", value=value))
            for key in own:
                self.model.add(ends[-1] >= self._end(key))
                self.model.add(makespan >= self._end(key) + self.tails.after(key))
        self.model.minimize(MAKESPAN_WEIGHT * makespan + sum(ends))

    def solve(self, effort: SolveEffort) -> dict[int, DeviceOrder] | None:
        """The device orders with the best order of the window; None if the solver had no time for one."""
        solver, status = run_model(self.model, effort)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        return {device: self._reordered(device, solver) for device in self.device_orders}

    def _reordered(self, device: int, solver: cp_model.CpSolver) -> DeviceOrder:
        keys = self._keys(device)
        rank = {key: place for place, key in enumerate(keys)}
        free = sorted(
            (key for key in keys if key in self.free),
            key=lambda key: (
                solver.value(self.starts[key]),
                solver.value(self.starts[key]) + duration_of(self.instance.replicas[key[1]], key[0]),
                rank[key],
            ),
        )
        order = [key for key in keys if key in self.past] + free
        order += [key for key in keys if key not in self.past and key not in self.free]
        return [(kind, self.instance.replicas[number].stage, microbatch) for kind, number, microbatch in order]


def _alike(kind: int) -> tuple[int, ...]:
    """Kinds that share a stage replica's queue with `kind`."""
    return (INPUT_GRAD, BACKWARD) if kind in (INPUT_GRAD, BACKWARD) else (kind,)

"""One period of a steady state, found by CP-SAT, and the device orders that repeat it.

Microbatch m runs every action m periods after microbatch 0 does, so that a pattern is the start of each F, I and W of
microbatch 0: start = phase + period * offset. On a device the phases share a circle as long as the period; a stash
held for k whole periods and a rest takes k units all the time and one more for the rest. Device orders follow by
sorting all starts, those of microbatches outside 0 .. M - 1 left out, and are therefore free of deadlock; in memory
they need no more than the pattern. Times are rounded and links never queue: orders to begin a search with, nothing
else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import gcd

from ortools.sat.python import cp_model

from solver_models.instance import (
    BACKWARD,
    FORWARD,
    INPUT_GRAD,
    WEIGHT_GRAD,
    DeviceOrder,
    ScheduleInstance,
    StageReplica,
)

_MAX_ACTIONS = 256
"""Largest patterns looked for, in actions of one microbatch."""
_SLOTS = 120
"""Ticks of the fullest device's work on one microbatch are rounded so that it has at most about so many."""
_STRETCHES = (100, 102, 104, 107, 110, 114, 118, 122, 127, 133, 140, 150, 165, 200)
"""Periods tried, in percent of the fullest device's work, until one is possible in the memory."""
_MORE_PERIODS = 1
"""Longer periods tried after the first possible one: they need a shorter fill."""
_MOST_FAILURES = 2
"""Periods that are given up before no more are tried."""
_WORK = 0.25
"""CP-SAT's deterministic limit of one period."""

Key = tuple[int, int]
"""Stage replica and kind (`BACKWARD` for I and W at once)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repetend:
    """A pattern that repeats."""

    period: int
    """Slots between two microbatches."""
    start: dict[Key, int]
    """Slot in which microbatch 0 runs an action of a stage replica."""
    end: int
    """Slot after its last action."""


def find_repetends(instance: ScheduleInstance, *, seed: int = 0) -> Iterator[_Repetend]:
    """Patterns of ever longer periods, the shortest possible one first; none for nets above `_MAX_ACTIONS`."""
    if sum(len(_kinds(instance, replica)) for replica in instance.replicas) > _MAX_ACTIONS:
        return
    model = _Model(instance, most_slots=_SLOTS)
    found = failures = 0
    for period in dict.fromkeys(-(-model.load * stretch // 100) for stretch in _STRETCHES):
        if found > _MORE_PERIODS or failures >= _MOST_FAILURES:
            return
        pattern, is_settled = model.solve(period, seed=seed, work=_WORK)
        failures += pattern is None and not is_settled
        if pattern is not None:
            found += 1
            yield pattern


def repeat(instance: ScheduleInstance, pattern: _Repetend) -> dict[int, DeviceOrder]:
    """The device orders of all microbatches, per device."""
    placed: dict[int, list[tuple[int, tuple[int, int, int]]]] = {}
    for (index, kind), start in pattern.start.items():
        replica = instance.replicas[index]
        placed.setdefault(replica.device, []).extend(
            (start + pattern.period * m, (kind, replica.stage, m)) for m in range(instance.num_microbatches)
        )
    return {device: [action for _, action in sorted(actions)] for device, actions in placed.items()}


def _kinds(instance: ScheduleInstance, replica: StageReplica) -> tuple[int, ...]:
    if not replica.has_weight_grad:
        return FORWARD, INPUT_GRAD
    return (FORWARD, INPUT_GRAD, WEIGHT_GRAD) if instance.can_split else (FORWARD, BACKWARD)


def _ticks(replica: StageReplica, kind: int) -> int:
    return (replica.forward, replica.input_grad, replica.weight_grad, replica.backward)[kind]


def _back(kinds: tuple[int, ...]) -> int:
    """The kind that runs the gradient of the input."""
    return BACKWARD if BACKWARD in kinds else INPUT_GRAD


class _Model:
    """What every period shares: times in slots, and how long a microbatch is kept at least."""

    def __init__(self, instance: ScheduleInstance, *, most_slots: int) -> None:
        self.instance, self.most_slots = instance, most_slots
        self.kinds = [_kinds(instance, replica) for replica in instance.replicas]
        ticks = [
            _ticks(replica, kind)
            for replica, kinds in zip(instance.replicas, self.kinds, strict=True)
            for kind in kinds
        ]
        unit = self._unit([*ticks, *(transfer.duration for transfer in instance.transfers)])
        self.span: dict[Key, int] = {
            (n, kind): max(1, round(_ticks(replica, kind) / unit))
            for n, replica in enumerate(instance.replicas)
            for kind in self.kinds[n]
        }
        self.delay = [-(-transfer.duration // unit) for transfer in instance.transfers]
        self.load = max(self._load(self.span).values())
        self.next = self._arcs()

    def _unit(self, ticks: list[int]) -> int:
        common = max(1, gcd(*ticks))
        load = max(self._load({key: _ticks(self.instance.replicas[key[0]], key[1]) for key in self._keys()}).values())
        return common if load <= self.most_slots * common else max(1, load // self.most_slots)

    def _keys(self) -> list[Key]:
        return [(n, kind) for n, kinds in enumerate(self.kinds) for kind in kinds]

    def _load(self, span: dict[Key, int]) -> dict[int, int]:
        load: dict[int, int] = {}
        for (n, _), ticks in span.items():
            device = self.instance.replicas[n].device
            load[device] = load.get(device, 0) + ticks
        return load

    def _arcs(self) -> dict[Key, list[tuple[Key, int]]]:
        """Per action, what waits for it, and the slots from its start to the other's."""
        arcs: dict[Key, list[tuple[Key, int]]] = {key: [] for key in self.span}
        for n, kinds in enumerate(self.kinds):
            for before, after in pairwise(kinds):
                arcs[n, before].append(((n, after), self.span[n, before]))
        for transfer, delay in zip(self.instance.transfers, self.delay, strict=True):
            kind, other = FORWARD, FORWARD
            if transfer.is_backward:
                kind, other = _back(self.kinds[transfer.sender]), _back(self.kinds[transfer.receiver])
            key = transfer.sender, kind
            arcs[key].append(((transfer.receiver, other), self.span[key] + delay))
        return arcs

    def distances(self, origin: Key) -> dict[Key, int]:
        """Least slots from the start of an action to that of every one after it."""

        @cache
        def longest(key: Key) -> dict[Key, int]:
            found = {key: 0}
            for other, gap in self.next[key]:
                for last, more in longest(other).items():
                    found[last] = max(found.get(last, 0), gap + more)
            return found

        return longest(origin)

    def solve(self, period: int, *, seed: int, work: float) -> tuple[_Repetend | None, bool]:
        """The pattern of this period that ends first, as far as `work` allows; whether none exists, or it is proved."""
        model = cp_model.CpModel()
        horizon = 4 * period + 2 * sum(self.distances((0, FORWARD))[0, kind] for kind in self.kinds[0][-1:])
        phase = {key: model.new_int_var(0, period - 1, "") for key in self.span}
        start = {key: model.new_int_var(0, horizon + period, "") for key in self.span}
        for key, slot in start.items():
            model.add(slot == phase[key] + period * model.new_int_var(0, horizon // period, ""))
        for key, arcs in self.next.items():
            for other, gap in arcs:
                model.add(start[other] >= start[key] + gap)
        for device in sorted({replica.device for replica in self.instance.replicas}):
            self._forbid_overlap(model, phase, device=device, period=period)
            self._keep_memory(model, phase, start=start, device=device, period=period)
        end = model.new_int_var(0, 2 * horizon, "")
        for key, slots in self.span.items():
            model.add(end >= start[key] + slots)
        model.add(start[0, FORWARD] == 0)
        model.minimize(end)
        return self._read(model, start, period=period, seed=seed, work=work)

    def _forbid_overlap(
        self, model: cp_model.CpModel, phase: dict[Key, cp_model.IntVar], *, device: int, period: int
    ) -> None:
        """One action at a time on the circle: each of them twice in a row."""
        intervals = []
        for key, slots in self.span.items():
            if self.instance.replicas[key[0]].device == device:
                intervals += [model.new_fixed_size_interval_var(phase[key] + shift, slots, "") for shift in (0, period)]
        model.add_no_overlap(intervals)

    def _keep_memory(
        self,
        model: cp_model.CpModel,
        phase: dict[Key, cp_model.IntVar],
        *,
        start: dict[Key, cp_model.IntVar],
        device: int,
        period: int,
    ) -> None:
        """Stashes of whole periods take memory for good, the rests where they lie on the circle."""
        parts, own = list[tuple[int, int, int]](), self.instance.replicas
        for n, replica in enumerate(own):
            if replica.device == device:
                kept = replica.weight_stash if WEIGHT_GRAD in self.kinds[n] else 0
                back = _back(self.kinds[n])
                during = replica.whole_backward if back == BACKWARD else replica.stash
                parts += [(n, back, max(replica.held, during) - kept), (n, WEIGHT_GRAD, kept)]
        parts = [part for part in parts if part[2] > 0]
        spare = max((replica.workspace for replica in own if replica.device == device), default=0)
        budget = self.instance.devices[device].memory - spare
        unit = max(1, gcd(*(size for *_, size in parts)))
        intervals, demands, whole, lives = [], [], [], []
        for n, kind, size in parts:
            least = self.distances((n, FORWARD))[n, kind] + self.span[n, kind]
            rounds, rest = model.new_int_var(0, 1 << 16, ""), model.new_int_var(0, period - 1, "")
            model.add(start[n, kind] + self.span[n, kind] - start[n, FORWARD] == rounds * period + rest)
            model.add(rounds * period + rest >= least)
            last = model.new_int_var(0, 2 * period, "")
            model.add(last == phase[n, FORWARD] + rest)
            for shift in (0, period):
                intervals.append(model.new_interval_var(phase[n, FORWARD] + shift, rest, last + shift, ""))
                demands.append(size // unit)
            whole.append(rounds * (size // unit))
            lives.append((rounds * period + rest) * (size // unit))
        if parts:
            room = max(0, budget // unit)
            model.add(sum(lives) <= room * period)
            free = model.new_int_var(0, room, "")
            model.add(free + sum(whole) == room)
            model.add_cumulative(intervals, demands, free)

    def _read(
        self, model: cp_model.CpModel, start: dict[Key, cp_model.IntVar], *, period: int, seed: int, work: float
    ) -> tuple[_Repetend | None, bool]:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers, solver.parameters.random_seed = 1, seed
        solver.parameters.max_deterministic_time = work
        status = solver.solve(model)
        if status == cp_model.MODEL_INVALID:
            raise ValueError(
                f"CP-SAT refuses the model of a period ({model.validate()[:300]}); please report this question"
            )
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, status == cp_model.INFEASIBLE
        found = {key: int(solver.value(each)) for key, each in start.items()}
        end = max(found[key] + self.span[key] for key in found)
        return _Repetend(period=period, start=found, end=end), status == cp_model.OPTIMAL

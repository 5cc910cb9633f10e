"""Orders of given stages, together with the microbatches of each that recompute: starts, and steps of annealing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from solver_models.device_rows import column
from solver_models.instance import (
    BACKWARD,
    FORWARD,
    INPUT_GRAD,
    WEIGHT_GRAD,
    DeviceOrder,
    Flags,
    Integers,
    ScheduleInstance,
    ShortIntegers,
    Transfer,
)
from solver_models.recomputation.microbatch_orders import (
    FAR,
    KEPT,
    RECOMPUTED,
    OrderState,
    OrderTables,
    anneal_orders,
    choose_recomputed,
    play_orders,
)
from solver_models.schedule.evaluation import duration_of
from solver_models.simulation.job_list import list_jobs, stage_jobs

_KINDS = range(4)

_CAPS = 16
"""List schedules of each kind, at most."""

_PARTS = 8
"""Of an annealing, between which the time is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputedOrders:
    """Device orders that fit, with what recomputes."""

    end: int
    """End of the iteration, where links are never busy."""
    orders: ShortIntegers
    """[D, longest] stage replica * 4 + kind."""
    lengths: Integers
    """[D] actions."""
    wanted: Integers
    """[S, M] 1: a microbatch recomputes although there may be room; -1: only if no other is left; 0: neither."""
    recomputed: Flags
    """[S, M] whether it recomputes."""


class MicrobatchRecomputation:
    """Given stages on devices, of which every microbatch may recompute."""

    def __init__(self, kept: ScheduleInstance, recomputed: ScheduleInstance) -> None:
        """The same stages where no microbatch recomputes, and where all do; groups do not overlap."""
        self.kept = kept
        self.num_microbatches = kept.num_microbatches
        self.tables = _make_tables(kept, recomputed)
        self.replica_of = {(replica.device, replica.stage): n for n, replica in enumerate(kept.replicas)}
        self.num_stages = len(kept.synchronisation)
        self.mean_ticks = float(self.tables.ticks[:, 0, :3].mean())

    @property
    def num_actions(self) -> int:
        """Of a plan, with I and W split where they can be."""
        return self._num_actions(self.kept.can_split)

    def _num_actions(self, splits: bool) -> int:
        kinds = sum(3 if splits and replica.has_weight_grad else 2 for replica in self.kept.replicas)
        return kinds * self.num_microbatches

    def greedy(self) -> Iterator[RecomputedOrders]:
        """List schedules with ever more microbatches in flight, then one F for one backward; those that fit."""
        saves = any(replica.backward < replica.input_grad + replica.weight_grad for replica in self.kept.replicas)
        most = min(self.num_microbatches, 2 * len(self.kept.devices))
        caps = sorted({1 + number * most // _CAPS for number in range(_CAPS)})
        for splits in {self.kept.can_split, self.kept.can_split and not saves}:
            for cap in caps:
                state = self._list_schedule(cap, splits=splits)
                if state.lengths.sum() == self._num_actions(splits) and self._fits(state):
                    yield self._read(state)

    def _list_schedule(self, cap: int, *, splits: bool) -> OrderState:
        """Orders in which every microbatch could recompute; they may stop before the end.

        A device runs what can begin first: of several a backward, then an F where fewer than `cap` microbatches are in
        flight, then a W. Actions take what they take where everything is kept.
        """
        tables, count, state = self.tables, self.num_microbatches, self._make_state()
        wholes = [(FORWARD, INPUT_GRAD), (FORWARD, INPUT_GRAD, WEIGHT_GRAD) if splits else (FORWARD, BACKWARD)]
        sent = [(each.sender, each.receiver, each.is_backward) for each in self.kept.transfers]
        kinds = [wholes[has_weight] for has_weight in tables.has_weight]
        of = stage_jobs(kinds, sent, caps=[cap] * len(kinds), count=count)
        jobs = of.table(
            tables.device,
            ticks=tables.ticks[of.stage, KEPT, of.kind],
            steps=tables.steps[of.stage, RECOMPUTED, of.kind],
            lag=column([*(each.duration for each in self.kept.transfers), 0])[of.transfer],
            budget=tables.budget,
        )
        order = list_jobs(jobs)[0]
        for device in range(len(state.lengths)):
            own = order[jobs.device[order] == device]
            state.orders[device, : len(own)], state.lengths[device] = 4 * of.stage[own] + of.kind[own], len(own)
        return state

    def alternating(self, lateness: float) -> Iterator[RecomputedOrders]:
        """One F for one backward, with ever more microbatches in flight, those that fit; if no device has two stages.

        `lateness`: for how many backwards W waits, of the stages before.
        """
        if len(self.kept.replicas) > len(set(self.tables.device.tolist())) or (lateness and not self.kept.can_split):
            return
        for cap in range(1, min(self.num_microbatches, self.num_stages) + 1):
            found = self.of_orders(self._alternating_orders(cap, splits=self.kept.can_split, lateness=lateness))
            if found is not None:
                yield found

    def _alternating_orders(self, cap: int, *, splits: bool, lateness: float) -> dict[int, DeviceOrder]:
        """One F for one backward, as many F ahead as stages are still to come, or `cap`.

        W follows its I at once, or so many microbatches later as `lateness` has it of the stages before.
        """
        orders: dict[int, DeviceOrder] = {}
        for n, replica in enumerate(self.kept.replicas):
            stage, order = replica.stage, orders.setdefault(replica.device, [])
            ahead, behind = min(cap, self.num_stages - stage), min(int(lateness * stage), self._most_behind(n))
            has_weight, total = bool(self.tables.has_weight[n]), self.num_microbatches
            for step in range(total + ahead + behind):
                returned, done = step - ahead, step - ahead - behind
                if 0 <= returned < total:
                    order.append((INPUT_GRAD if splits or not has_weight else BACKWARD, stage, returned))
                if splits and has_weight and done >= 0:
                    order.append((WEIGHT_GRAD, stage, done))
                if step < total:
                    order.append((FORWARD, stage, step))
        return orders

    def _most_behind(self, n: int) -> int:
        """W that may wait while an I recomputes."""
        replica, steps = self.kept.replicas[n], self.tables.steps[n, 1].tolist()
        room = self.kept.devices[replica.device].memory - max(steps[INPUT_GRAD][0], steps[INPUT_GRAD][1])
        return max(0, room) // replica.weight_stash if replica.weight_stash else replica.stage

    def of_orders(
        self, device_orders: dict[int, DeviceOrder], recomputed: Sequence[Sequence[int]] = ()
    ) -> RecomputedOrders | None:
        """Device orders whose microbatches come in order, with those that recompute in any case per stage.

        None if they do not fit. Of groups only the orders of the first devices are read.
        """
        state = self._make_state()
        heads = set(self.tables.device.tolist())
        for device, order in ((head, device_orders[head]) for head in sorted(heads & set(device_orders))):
            codes = [4 * self.replica_of[device, stage] + kind for kind, stage, _ in order]
            state.orders[device, : len(codes)], state.lengths[device] = codes, len(codes)
        for stage, own in enumerate(recomputed):
            state.wanted[stage, list(own)] = 1
        return self._read(state) if self._fits(state) else None

    def anneal(
        self,
        start: RecomputedOrders,
        *,
        iterations: int,
        seed: int,
        temperature: float,
        has_time: Callable[[], bool] = lambda: True,
    ) -> RecomputedOrders:
        """What annealing makes of it, never worse; `temperature`: the first one, in mean actions.

        In parts, the next of which continues from the best, cooler, while there is time.
        """
        state = self._make_state()
        state.orders[:], state.lengths[:], state.wanted[:] = start.orders, start.lengths, start.wanted
        temperatures = [temperature * self.mean_ticks * (1 - part / _PARTS) ** 2 for part in range(_PARTS + 1)]
        for number, pair in enumerate(pairwise(temperatures)):
            if number and not has_time():
                break
            anneal_orders(self.tables, state, -(-iterations // _PARTS), (seed + number) % 2**31, pair)
        return self._read(state)

    def device_orders(self, found: RecomputedOrders) -> dict[int, DeviceOrder]:
        """Per device its actions, as (kind, stage, microbatch)."""
        stages = [replica.stage for replica in self.kept.replicas]
        return {
            device: [(kind, stages[number], m) for kind, number, m in order]
            for device, order in self.replica_orders(found).items()
        }

    def replica_orders(self, found: RecomputedOrders) -> dict[int, list[tuple[int, int, int]]]:
        """Per device its actions, as (kind, stage replica, microbatch)."""
        begun: dict[tuple[int, int], int] = {}
        orders: dict[int, list[tuple[int, int, int]]] = {}
        for device, length in enumerate(found.lengths.tolist()):
            order = orders[device] = []
            for code in found.orders[device, :length].tolist():
                number, kind = code >> 2, code & 3
                places = (1, 2) if kind == 3 else (kind,)
                microbatch = begun.get((number, places[0]), 0)
                begun.update({(number, place): begun.get((number, place), 0) + 1 for place in places})
                order.append((kind, number, microbatch))
        return {device: order for device, order in orders.items() if order}

    def times(self, found: RecomputedOrders) -> dict[tuple[int, int, int], tuple[int, int]]:
        """(start, end) of every action (kind, stage replica, microbatch)."""
        state = self._make_state()
        state.orders[:], state.lengths[:], state.wanted[:] = found.orders, found.lengths, found.wanted
        self._read(state)
        times: dict[tuple[int, int, int], tuple[int, int]] = {}
        for order in self.replica_orders(found).values():
            for kind, n, m in order:
                end, variant = int(state.ended[n, kind, m]), int(found.recomputed[self.tables.stage[n], m])
                times[kind, n, m] = end - int(self.tables.ticks[n, variant, kind]), end
        return times

    def _make_state(self) -> OrderState:
        replicas, count = len(self.kept.replicas), self.num_microbatches
        most = max(np.bincount(self.tables.device)) * 3 * count
        flags = (self.num_stages, count)
        return OrderState(
            orders=np.zeros((len(self.kept.devices), most), np.int32),
            lengths=np.zeros(len(self.kept.devices), np.int64),
            wanted=np.zeros(flags, np.int64),
            recomputed=np.zeros(flags, np.bool_),
            back=np.zeros((replicas, count), np.int64),
            arrived=np.zeros((replicas, 2, count), np.int64),
            missing=np.zeros((replicas, 2, count), np.int64),
            ended=np.zeros((replicas, 4, count), np.int64),
        )

    def _fits(self, state: OrderState) -> bool:
        fits = choose_recomputed(self.tables, state, 0, len(state.lengths))
        return fits and play_orders(self.tables, state, float(FAR))[0] < FAR

    def _read(self, state: OrderState) -> RecomputedOrders:
        choose_recomputed(self.tables, state, 0, len(state.lengths))
        end, _ = play_orders(self.tables, state, float(FAR))
        return RecomputedOrders(
            end=end,
            orders=state.orders,
            lengths=state.lengths,
            wanted=state.wanted,
            recomputed=state.recomputed,
        )


def _make_tables(kept: ScheduleInstance, recomputed: ScheduleInstance) -> OrderTables:
    def outlet(transfer: Transfer) -> int:
        return 2 * transfer.sender + transfer.is_backward

    pairs = list(zip(kept.replicas, recomputed.replicas, strict=True))
    transfers = sorted(kept.transfers, key=outlet)
    waits = np.zeros((len(pairs), 2), np.int64)
    for transfer in transfers:
        waits[transfer.receiver, int(transfer.is_backward)] += 1
    counts = np.bincount(column([outlet(transfer) for transfer in transfers]), minlength=2 * len(pairs))
    return OrderTables(
        stage=column([replica.stage for replica in kept.replicas]),
        device=column([replica.device for replica in kept.replicas]),
        has_weight=column([int(replica.has_weight_grad) for replica in kept.replicas]),
        ticks=column([[[duration_of(each, kind) for kind in _KINDS] for each in pair] for pair in pairs]),
        steps=column([[list(map(each.steps, _KINDS)) for each in pair] for pair in pairs]),
        budget=column([device.memory for device in kept.devices]),
        first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        receiver=column([transfer.receiver for transfer in transfers]),
        moving=column([transfer.duration for transfer in transfers]),
        waits=waits,
        closing=column([each + kept.tail for each in kept.synchronisation]),
    )

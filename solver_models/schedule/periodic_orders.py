"""Orders that repeat: every stage replica takes action k of microbatch m at (its place in a period) + m x period.

Sorted by these times, the actions make one order for all devices, so that no two of them wait for each other in a
circle, whatever groups of devices share: that is what plans whose groups overlap need. Times are moved at random, and
what plays no later is kept.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from solver_models.instance import (
    BACKWARD,
    FORWARD,
    INPUT_GRAD,
    WEIGHT_GRAD,
    DeviceOrder,
    ScheduleInstance,
    StageReplica,
)
from solver_models.schedule.evaluation import fits, play
from solver_models.schedule.serial_schedule import one_by_one


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicOrder:
    """An order that fits into memory."""

    device_orders: dict[int, DeviceOrder]
    """Per device, (kind, stage, microbatch)."""
    objective: int
    """Ticks, as played."""
    period: int
    """From one microbatch to the next."""
    places: tuple[tuple[int, int, int], ...]
    """Per stage replica, the times of F, I (or B) and W of the first microbatch."""


class PeriodicSearch:
    """The search for such orders of one partition and mapping, whose groups may overlap."""

    def __init__(self, instance: ScheduleInstance) -> None:
        self.instance = instance
        played = play(instance, one_by_one(instance))
        assert played is not None  # one microbatch after the other never waits for itself
        replicas = range(len(instance.replicas))
        self.places = tuple(
            (played.starts[FORWARD, n, 0], played.backward_start(n, 0), played.weight_start(n, 0)) for n in replicas
        )
        """Times when a microbatch goes through alone."""
        self.load = max(1, max(sum(map(_work, self._on(device))) for device in range(len(instance.devices))))
        """What the busiest device needs for a microbatch."""

    def _on(self, device: int) -> list[StageReplica]:
        return [replica for replica in self.instance.replicas if device in replica.devices]

    def begin(self, percents: Iterable[int]) -> PeriodicOrder | None:
        """The best of some periods, and of one microbatch after the other; None if nothing fits into memory.

        `percents`: of what the busiest device needs for a microbatch.
        """
        alone = 1 + max(max(places) for places in self.places)
        periods = sorted({percent * self.load // 100 for percent in percents} | {alone})
        found = [order for period in periods if (order := self._made(self.places, period)) is not None]
        return min(found, key=lambda order: order.objective, default=None)

    def improve(self, order: PeriodicOrder, *, tries: int, seed: int) -> PeriodicOrder:
        """The best order found by moving one time, or the period, so many times."""
        rng, best, now = Random(seed), order, order
        for _ in range(tries):
            period, places = now.period, [list(each) for each in now.places]
            if rng.random() < 0.1:
                period = max(0, period + rng.randint(-self.load // 4, self.load // 4))
            else:
                replica = rng.choice(places)
                place = rng.randrange(len(replica))
                replica[place] += rng.randint(-self.load, self.load)
            moved = self._made(tuple((f, i, w) for f, i, w in places), period)
            if moved is not None and moved.objective <= now.objective:
                now = moved
            if now.objective < best.objective:
                best = now
        return best

    def _made(self, places: tuple[tuple[int, int, int], ...], period: int) -> PeriodicOrder | None:
        """The order as played; None where an action comes before what it needs, or memory does not suffice."""
        device_orders = self._orders(places, period)
        played = play(self.instance, device_orders) if fits(self.instance, device_orders) else None
        if played is None:
            return None
        return PeriodicOrder(device_orders=device_orders, objective=played.objective, period=period, places=places)

    def _orders(self, places: tuple[tuple[int, int, int], ...], period: int) -> dict[int, DeviceOrder]:
        """Ties go by microbatch, then as one microbatch goes through alone."""
        instance, timed = self.instance, list[tuple[int, int, int, int, int]]()
        for number, replica in enumerate(instance.replicas):
            for column, kind in enumerate(_kinds(instance, replica)):
                first, alone = places[number][column], self.places[number][column]
                rows = range(instance.num_microbatches)
                timed += [(first + m * period, m, alone, kind, number) for m in rows]
        device_orders: dict[int, DeviceOrder] = {
            device: [] for replica in instance.replicas for device in replica.devices
        }
        for _, microbatch, _, kind, number in sorted(timed):
            for device in instance.replicas[number].devices:
                device_orders[device].append((kind, instance.replicas[number].stage, microbatch))
        return device_orders


def _kinds(instance: ScheduleInstance, replica: StageReplica) -> tuple[int, ...]:
    """What a stage replica does for a microbatch; fused where that takes less time, or must be."""
    if not replica.has_weight_grad:
        return (FORWARD, INPUT_GRAD)
    is_fused = not instance.can_split or replica.backward < replica.input_grad + replica.weight_grad
    return (FORWARD, BACKWARD) if is_fused else (FORWARD, INPUT_GRAD, WEIGHT_GRAD)


def _work(replica: StageReplica) -> int:
    """Ticks that a microbatch takes on a stage replica."""
    return replica.forward + (replica.backward if replica.has_weight_grad else replica.input_grad)

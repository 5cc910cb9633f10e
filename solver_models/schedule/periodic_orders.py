"""Orders that repeat: every lane takes action k of microbatch m at (its place in a period) + m x period.

Sorted by these times, the actions make one order for all devices, so that no two of them wait for each other in a
circle, whatever groups of devices share: that is what plans whose groups overlap need. Times are moved at random, and
what plays no later is kept.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, ScheduleInstance, StageReplica, Word
from solver_models.schedule.evaluation import play
from solver_models.schedule.memory_check import fits
from solver_models.schedule.serial_schedule import one_by_one


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicOrder:
    """An order that fits into memory."""

    words: dict[int, Word]
    """Per device, (kind, stage, microbatch)."""
    objective: int
    """Ticks, as played."""
    period: int
    """From one microbatch to the next."""
    places: tuple[tuple[int, int, int], ...]
    """Per lane, the times of F, I (or B) and W of the first microbatch."""


class PeriodicSearch:
    """The search for such orders of one partition and mapping, whose groups may overlap."""

    def __init__(self, instance: ScheduleInstance) -> None:
        self.instance = instance
        played = play(instance, one_by_one(instance))
        assert played is not None  # one microbatch after the other never waits for itself
        lanes = range(len(instance.lanes))
        self.places = tuple(
            (played.starts[FORWARD, n, 0], played.backward_start(n, 0), played.weight_start(n, 0)) for n in lanes
        )
        """Times when a microbatch goes through alone."""
        self.load = max(1, max(sum(map(_work, self._on(device))) for device in range(len(instance.budgets))))
        """What the busiest device needs for a microbatch."""

    def _on(self, device: int) -> list[StageReplica]:
        return [lane for lane in self.instance.lanes if device in lane.devices]

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
                lane = rng.choice(places)
                place = rng.randrange(len(lane))
                lane[place] += rng.randint(-self.load, self.load)
            moved = self._made(tuple((f, i, w) for f, i, w in places), period)
            if moved is not None and moved.objective <= now.objective:
                now = moved
            if now.objective < best.objective:
                best = now
        return best

    def _made(self, places: tuple[tuple[int, int, int], ...], period: int) -> PeriodicOrder | None:
        """The order as played; None where an action comes before what it needs, or memory does not suffice."""
        words = self._words(places, period)
        played = play(self.instance, words) if fits(self.instance, words) else None
        if played is None:
            return None
        return PeriodicOrder(words=words, objective=played.objective, period=period, places=places)

    def _words(self, places: tuple[tuple[int, int, int], ...], period: int) -> dict[int, Word]:
        """Ties go by microbatch, then as one microbatch goes through alone."""
        instance, timed = self.instance, list[tuple[int, int, int, int, int]]()
        for number, lane in enumerate(instance.lanes):
            for column, kind in enumerate(_kinds(instance, lane)):
                first, alone = places[number][column], self.places[number][column]
                rows = range(instance.num_microbatches)
                timed += [(first + m * period, m, alone, kind, number) for m in rows]
        words: dict[int, Word] = {device: [] for lane in instance.lanes for device in lane.devices}
        for _, microbatch, _, kind, number in sorted(timed):
            for device in instance.lanes[number].devices:
                words[device].append((kind, instance.lanes[number].stage, microbatch))
        return words


def _kinds(instance: ScheduleInstance, lane: StageReplica) -> tuple[int, ...]:
    """What a lane does for a microbatch; fused where that takes less time, or must be."""
    if not lane.has_weight_grad:
        return (FORWARD, INPUT_GRAD)
    is_fused = not instance.can_split or lane.backward < lane.input_grad + lane.weight_grad
    return (FORWARD, BACKWARD) if is_fused else (FORWARD, INPUT_GRAD, WEIGHT_GRAD)


def _work(lane: StageReplica) -> int:
    """Ticks that a microbatch takes on a lane."""
    return lane.forward + (lane.backward if lane.has_weight_grad else lane.input_grad)

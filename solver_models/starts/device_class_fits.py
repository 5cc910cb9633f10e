"""Pipelines on so many unlike devices that `kind_cuts` has no room for their tables: stage by stage, partly at random.

For a limit on a stage's time, tries go side by side from the last layer to the first. Each takes the kind of stage
whose devices such a stage fills best, as long as its class has devices left; the least limit that any try reaches is
found by halving. The work is fixed, not the time.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from solver_models.instance import Integers
from solver_models.starts.device_class_cuts import Floats, KindCut, StageKinds, estimated

_TRIES = 128
"""Choices that are followed at once; the first always takes what fills devices best."""
_MOST_NOISE = 0.5
"""What chance adds at most to the part of its devices' time that a stage fills; little in most tries."""
_MOST_THRIFT = 0.5
"""By how much fast devices are saved at most, for layers that no others can hold in time."""
_FIRST_TARGETS = (1.02, 1.1, 1.2, 1.35, 1.6, 2.0, 3.0, 5.0)
"""Limits on the slowest stage over the lower bound, in turn until one is reached."""
_STEPS = 8
"""Halvings of the bracket around the least limit."""


def kind_fits(
    kinds: StageKinds,
    *,
    class_devices: tuple[int, ...],
    num_microbatches: int,
    overlap: bool,
    known: float,
    targets: tuple[float, ...] = _FIRST_TARGETS,
) -> list[KindCut]:
    """Pipelines within memory and devices, the least estimate first.

    `class_devices`: how many every class has; a kind's units are devices here. `known`: ticks of a plan of another
    origin; where no stage's time below it is possible, nothing is tried.
    """
    fitter = KindFitter(kinds, class_devices, num_microbatches=num_microbatches, overlap=overlap)
    most = known / num_microbatches
    reached = (limit for factor in targets if (limit := factor * fitter.lower_bound) <= most)
    found = set[KindCut]()

    def is_within(limit: float) -> bool:
        cuts = list(fitter.within(limit))
        found.update(cuts)
        return bool(cuts)

    low, high = fitter.lower_bound, next(filter(is_within, reached), None)
    for _ in range(_STEPS if high is not None else 0):
        assert high is not None
        middle = (low + high) / 2
        low, high = (low, middle) if is_within(middle) else (middle, high)
    return sorted(found, key=lambda cut: (cut.estimate, cut.bounds, cut.kinds))


class KindFitter:
    """Tries for one limit at a time."""

    def __init__(
        self,
        kinds: StageKinds,
        class_devices: tuple[int, ...],
        *,
        num_microbatches: int,
        overlap: bool,
    ) -> None:
        self.kinds, self.count, self.overlap = kinds, num_microbatches, overlap
        self.class_devices = np.array(class_devices)
        self.size = kinds.load.shape[1] - 1
        self.work, self.rate = self._work_and_rates()
        self.roomy: list[Integers] = []
        """By depth - 1: [K, L + 1] where the longest stage that ends there, so deep, begins by its memory."""

    def _work_and_rates(self) -> tuple[Floats, Floats]:
        """[L + 1] prefix sums of the work, 1 in all; [C] how much of it a device of each class does per tick."""
        num_classes = len(self.class_devices)
        spent = np.diff(self.kinds.load, axis=1) * self.kinds.units[:, None]
        least = np.full((num_classes, self.size), np.inf)
        np.minimum.at(least, self.kinds.device_class, spent)
        is_used = np.isfinite(least).all(axis=1)
        totals = np.where(is_used, least.sum(axis=1), np.inf)
        shares = (least[is_used] / totals[is_used, None]).mean(axis=0)
        return np.concatenate(([0.0], np.cumsum(shares))), 1 / totals

    @property
    def lower_bound(self) -> float:
        """Ticks that no pipeline's slowest stage is below: all devices filled, or the longest layer alone."""
        balance = 1 / float(self.rate @ self.class_devices)
        return max(balance, float(np.diff(self.kinds.load, axis=1).min(axis=0).max()))

    def within(self, limit: float) -> Iterator[KindCut]:
        """Different pipelines whose stages all take at most `limit`; none where no try came through."""
        tries, random = _TRIES, np.random.default_rng(0)
        earliest, rows = self._earliest(limit), np.arange(tries)
        noise = _MOST_NOISE * np.linspace(0, 1, tries) ** 2
        thrift = _MOST_THRIFT * random.random(tries)
        end, free = np.full(tries, self.size), np.tile(self.class_devices, (tries, 1))
        picks, begins = list[Integers](), list[Integers]()
        while (end > 0).any() and len(picks) < self.size:
            begin = np.maximum(earliest, self._roomy(len(picks)))[:, end].T
            usable = (begin < end[:, None]) & (self.kinds.units <= free[:, self.kinds.device_class])
            value = self._value(begin, end, limit=limit) - thrift[:, None] * self._speed
            value += noise[:, None] * random.random(value.shape)
            pick = np.where(usable, value, -np.inf).argmax(axis=1)
            is_on = usable[rows, pick]
            end = np.where(is_on, begin[rows, pick], end)
            free[rows, self.kinds.device_class[pick]] -= np.where(is_on, self.kinds.units[pick], 0)
            picks.append(np.where(is_on, pick, -1))
            begins.append(end)
            if not is_on.any():
                break
        for one in np.flatnonzero(end == 0).tolist():
            chosen = [int(pick[one]) for pick in picks if pick[one] >= 0][::-1]
            bounds = [*sorted({int(begin[one]) for begin in begins}), self.size]
            cut = KindCut(bounds=tuple(bounds), kinds=tuple(chosen))
            yield estimated(self.kinds, cut, num_microbatches=self.count, overlap=self.overlap)

    def _earliest(self, limit: float) -> Integers:
        """[K, L + 1] where the longest stage that ends there begins, by its time."""
        ends = np.arange(self.size + 1)
        if self.overlap:
            begins = [np.searchsorted(row, row - limit, side="left") for row in self.kinds.load]
            rows = np.array([np.minimum(row, ends) for row in begins])
            return np.where(self.kinds.crossing[:, ends] <= limit, rows, ends)
        return np.array([self._earliest_busy(number, limit) for number in range(len(self.kinds.units))])

    def _earliest_busy(self, number: int, limit: float) -> Integers:
        """The same of one kind where devices are busy with their messages: [L + 1]."""
        load, crossing = self.kinds.load[number], self.kinds.crossing[number]
        busy = (load + crossing)[None, :] - (load - crossing)[:, None]
        places = np.arange(self.size + 1)
        is_within = (busy <= limit) & (places[:, None] < places[None, :])
        return np.where(is_within.any(axis=0), is_within.argmax(axis=0), places)

    def _roomy(self, depth: int) -> Integers:
        """Of stages behind which there are `depth` others; each holds a microbatch for itself and for each of them."""
        if len(self.roomy) <= depth:
            need = self.kinds.state + min(depth + 1, self.count) * self.kinds.stash
            rooms = zip(need, self.kinds.room.tolist(), strict=True)
            self.roomy.append(np.array([np.searchsorted(row, row - room, side="left") for row, room in rooms]))
        return self.roomy[depth]

    def _value(self, begin: Integers, end: Integers, *, limit: float) -> Floats:
        """[tries, K] the part of what its devices could do in the time that a stage does; the last one may do less."""
        capacity = self.kinds.units * self.rate[self.kinds.device_class] * limit
        value: Floats = (self.work[end][:, None] - self.work[begin]) / capacity
        return np.where(begin == 0, 2 - capacity / capacity.max(), value)

    @property
    def _speed(self) -> NDArray[np.float64]:
        """[K] how fast a kind's devices are, beside the fastest."""
        rates = self.rate[self.kinds.device_class]
        speed: Floats = rates / rates.max()
        return speed

"""Intervals of layers for unlike devices: step by step the device that a target period fills best, a little at random.

Devices that are all different leave nothing to enumerate, and the order in which they come decides how well whole
layers fill them. Many choices are followed at once, towards one target after another; the work is fixed, not the time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from solver_models.instance import Instance, Integers
from solver_models.partition.partition_instance import prefix_sums
from solver_models.simulation.columns import STASH_ROW, STATE_ROW, WORKSPACE_ROW

_FIRST_TARGETS = (1.02, 1.1, 1.3, 2.0, 4.0)
"""Targets over the lower bound, in turn until one is reached."""
_STEPS = 9
"""Halvings of the bracket around the least period."""
_MOST_DEVICES = 256
"""With more devices it takes too long."""
_SHARES = (1.0, 0.75, 0.5)
"""Parts of the devices, the fastest ones, that may be used."""
_HELD = (1.0, 0.5, 0.0)
"""Microbatches that a stage shall hold at once, as parts of the devices that are left."""
_MOST_TRIES = 192
"""Choices that are followed at once; the first always takes the best fit."""
_TRIES_TIMES_DEVICES = 3_072
"""Choices times devices, at most."""
_MOST_NOISE = 1.0
"""What chance adds at most to the slack that devices are compared by, as a part of the target; little in most tries."""

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Consecutive intervals of layers on single devices."""

    period: int
    """Ticks per microbatch of the busiest device."""
    devices: tuple[int, ...]
    """The device of every stage."""
    bounds: tuple[int, ...]
    """[stages + 1] where stages begin, from 0 to L."""


def best_fits(instance: Instance, *, most_devices: int = _MOST_DEVICES) -> list[Fit]:
    """Different fits in memory, on all devices and on the fastest of them, the least period first.

    None where devices are alike, or too many.
    """
    num_devices = instance.num_devices
    if len(np.unique(instance.device_type)) < 2 or num_devices > most_devices:
        return []
    slowness = instance.work[0, :3].sum(axis=(0, 2))[instance.device_type]
    fastest = np.argsort(slowness, kind="stable")
    counts = dict.fromkeys(max(1, int(share * num_devices)) for share in _SHARES)
    found = dict.fromkeys(fit for count in counts for fit in _per_depth(instance, fastest[:count]))
    return sorted(found, key=lambda fit: fit.period)


def _per_depth(instance: Instance, devices: Integers) -> Iterator[Fit]:
    """The best fit for every number of microbatches held; less held is no use if memory did not bind."""
    for held in _HELD:
        fitter = _Fitter(instance, devices, held=held)
        fit = fitter.least()
        if fit is not None:
            yield fit
        if fit is not None and not fitter.was_full:
            return


class _Fitter:
    """Best fits on some devices with a given number of microbatches in flight."""

    def __init__(self, instance: Instance, devices: Integers, *, held: float) -> None:
        self.instance, self.devices, self.held = instance, devices, held
        work = instance.work[0]
        backward = work[1] + work[2] if "split_backward" in instance.rules else work[3]
        types, self.kind = np.unique(instance.device_type[devices], return_inverse=True)
        self.load = prefix_sums((work[0] + backward)[types])
        self.slowness = self.load[self.kind, -1].astype(np.float64)
        self.state, self.stash = prefix_sums(instance.sizes[STATE_ROW]), prefix_sums(instance.sizes[STASH_ROW])
        self.room = instance.capacity[devices] - int(instance.sizes[WORKSPACE_ROW].max(initial=0))
        self.crossing = instance.crossing
        self.was_full = False
        self.tries = np.arange(max(1, min(_MOST_TRIES, _TRIES_TIMES_DEVICES // len(devices))))
        self.weight = (self.tries % 2).astype(np.float64)[:, None]
        self.noise = _MOST_NOISE * np.linspace(0, 1, len(self.tries))[:, None] ** 3

    @property
    def lower_bound(self) -> int:
        """Ticks per microbatch that no cut is below: perfect balance, and the heaviest layer on its fastest device."""
        heaviest = int(np.diff(self.load, axis=1).min(axis=0).max())
        return max(1, heaviest, int(1 / (1 / np.maximum(self.slowness, 1)).sum()))

    def least(self) -> Fit | None:
        """The fit with the least period; None if none is found within the last of the first targets."""
        low = self.lower_bound
        reached = ((int(low * factor), fit) for factor in _FIRST_TARGETS if (fit := self.within(int(low * factor))))
        best: Fit | None = next((fit for _, fit in reached), None)
        for _ in range(_STEPS if best is not None else 0):
            assert best is not None
            middle = (low + best.period) // 2
            found = self.within(middle)
            if found is None:
                low = middle
            else:
                best = found
        return best

    def within(self, limit: int) -> Fit | None:
        """Stages whose loads, and whose transfers from the stage before, all stay within `limit`; None if not found."""
        tries, num_layers, count = self.tries, self.instance.num_layers, len(self.devices)
        random = np.random.default_rng(limit)
        ends = np.array([np.searchsorted(row, row + limit, side="right") - 1 for row in self.load])
        used = np.zeros((len(tries), count), dtype=bool)
        bounds, chosen = np.zeros((count + 1, len(tries)), np.int64), np.zeros((count, len(tries)), np.int64)
        for stage in range(count):
            first = bounds[stage]
            end = self._fitting(first, ends[self.kind][:, first].T, left=count - stage)
            if stage:
                end = np.where(self._ticks(first, chosen[stage - 1]) <= limit, end, 0)
            score = self._slack(first, end, limit=limit) + self.noise * random.random(used.shape)
            pick = np.where(used, np.inf, score).argmin(axis=1)
            chosen[stage], used[tries, pick] = pick, True
            bounds[stage + 1] = np.maximum(first, end[tries, pick])
            done = np.flatnonzero(bounds[stage + 1] == num_layers)
            if len(done):
                return self._fit(bounds[: stage + 2, done[0]], chosen[: stage + 1, done[0]])
        return None

    def _fitting(self, first: Integers, end: Integers, *, left: int) -> Integers:
        """[tries, devices] how far up to `end` the layers from `first` on fit in memory, `left` devices being free."""
        held = max(1, min(self.instance.num_microbatches, int(self.held * left)))
        need = self.state + held * self.stash
        fitting = np.searchsorted(need, need[first][:, None] + self.room, side="right") - 1
        self.was_full = self.was_full or bool((fitting < end).any())
        return np.minimum(fitting, end)

    def _ticks(self, first: Integers, senders: Integers) -> Integers:
        """[tries, devices] ticks of the slower of the transfers, to and fro, over the cut at `first`."""
        here, there = self.devices[senders][:, None], self.devices
        sizes = self.crossing[:, first][:, :, None]
        routes = ((here, there), (there, here))
        ticks = [
            self.instance.layers.latency[route] + size * 10**9 // np.maximum(self.instance.layers.bandwidth[route], 1)
            for size, route in zip(sizes, routes, strict=True)
        ]
        slower: Integers = np.maximum(*ticks)
        return slower

    def _slack(self, first: Integers, end: Integers, *, limit: int) -> Floats:
        """[tries, devices] what is left of the target, as a part of it, in time or in work; last where nothing fits."""
        load = self.load[self.kind, end] - self.load[self.kind, first[:, None]]
        slack = (
            (limit - load) / max(1, limit) / (np.maximum(self.slowness, 1) / max(1, self.slowness.min())) ** self.weight
        )
        return np.where(end > first[:, None], np.where(end == len(self.state) - 1, -1.0, slack), 2.0)

    def _fit(self, bounds: Integers, chosen: Integers) -> Fit:
        """What one try found, without devices for which nothing was left."""
        used = np.diff(bounds) > 0
        loads = self.load[self.kind[chosen], bounds[1:]] - self.load[self.kind[chosen], bounds[:-1]]
        senders, receivers = chosen[used][:-1], chosen[used][1:]
        transfers = [
            int(self._ticks(bounds[1:][used][s : s + 1], senders[s : s + 1])[0, r]) for s, r in enumerate(receivers)
        ]
        return Fit(
            period=max(int(loads.max()), *transfers, 0),
            devices=tuple(self.devices[chosen[used]].tolist()),
            bounds=(0, *bounds[1:][used].tolist()),
        )

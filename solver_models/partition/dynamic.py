"""The dynamic programmes over intervals: least largest load for any devices, least schedule bound for given ones."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from solver_models.instance import Integers
from solver_models.partition.interval_kernels import allowances, load, reach, reach_in_order
from solver_models.partition.partition_instance import Interval, PartitionInstance

Stages = tuple[Interval, ...]
"""Intervals in order."""


class Partitioner:
    """Loads, bounds and dynamic programmes on one instance."""

    def __init__(self, instance: PartitionInstance) -> None:
        self.instance = instance
        self._most, self._numbers = instance.most_replicas, np.flatnonzero(instance.allowed).tolist()
        work = instance.work[..., -1].sum(axis=(0, 2)).tolist()
        self._drain_percent = 100 * work[1] // max(work[0], 1)
        self.stride = np.append(1, np.cumprod(instance.class_sizes + 1)).astype(np.int64)

    def load(self, stage: Interval) -> int:
        """Ticks per microbatch that keep the devices of a stage, or the link into it, busy."""
        return int(load(self.instance, *stage))

    def largest_load(self, stages: Stages) -> int:
        """The load of the busiest stage."""
        return max(self.load(stage) for stage in stages)

    def lower_bound(self) -> int:
        """Ticks per microbatch that no partition's largest load is below: perfect balance, and the heaviest layer."""
        work = np.diff(self.instance.work)
        fastest = (work[:, 0] + work[:, 1:].max(axis=1)).min(axis=(0, 1))
        numbers = np.flatnonzero(self.instance.allowed)
        most = int(numbers[numbers <= self.instance.class_sizes.max()].max())
        return max(-(-int(fastest.sum()) // len(self.instance.devices)), -(-int(fastest.max()) // most))

    def ceiling(self) -> int:
        """A load that every interval keeps within: all layers on the slowest device, or the slowest transfer."""
        sizes = [(c, r) for c, most in enumerate(self.instance.class_sizes) for r in self._numbers if r <= most]
        loads = [int(load(self.instance, 0, self.instance.num_layers, c, r)) for c, r in sizes]
        return max(*loads, int(self.instance.cut_ticks.max()), 1)

    def within(self, limit: int, *, allowed: Integers, most_stages: int) -> tuple[Integers, Integers]:
        """`reach` for a largest load of `limit`."""
        start, step = reach(self.instance, limit, allowed, self.stride, most_stages)
        return start, step

    def read(self, start: Integers, step: Integers, *, most_stages: int | None = None) -> Stages | None:
        """The stages that `reach` found, as few as possible; None if there are none, or none with at most so many."""
        for k in range(1, (len(start) - 1 if most_stages is None else most_stages) + 1):
            ends = np.flatnonzero(start[k] == 0)
            if len(ends):
                return self._walk(start, step, k=k, use=int(ends[0]))
        return None

    def _walk(self, start: Integers, step: Integers, *, k: int, use: int) -> Stages:
        """Back from `k` stages on the devices `use` to none."""
        stages = []
        for row in range(k, 0, -1):
            device_class, replicas = divmod(int(step[row, use]), self._most + 1)
            before = use - replicas * int(self.stride[device_class])
            stages.append(Interval(int(start[row, use]), int(start[row - 1, before]), device_class, replicas))
            use = before
        return tuple(stages)

    def least_load_in_order(self, order: Sequence[tuple[int, int]], *, tolerance: float = 0.0) -> Stages | None:
        """The least largest load on at most these (class, replicas), in this order; None if nothing fits in memory."""
        table = np.array(order, np.int64).reshape(-1, 2)
        low, high = self.lower_bound() - 1, self.ceiling()
        best = reach_in_order(self.instance, table, high)
        while best[0] == 0 and low + max(1, int(tolerance * low)) < high:
            middle = (low + high) // 2
            found = reach_in_order(self.instance, table, middle)
            low, high, best = (middle, high, best) if found[0] > 0 else (low, middle, found)
        if best[0] > 0:
            return None
        ends = zip(order, pairwise(best.tolist()), strict=True)
        return tuple(Interval(first, end, *own) for own, (first, end) in ends if first < end)

    def shift_cuts(self, stages: Stages, *, radius: int, within: int, tolerance: float) -> Stages | None:
        """The best cuts by bound at most `radius` layers from those of `stages`; None if that is not below `within`."""
        at = np.array([stage.first for stage in stages], np.int64)
        number = np.arange(len(stages))
        lowest = np.where(number == 0, 0, np.maximum(at - radius, number))
        highest = np.where(number == 0, 0, np.minimum(at + radius, self.instance.num_layers - len(stages) + number))
        order = [(stage.device_class, stage.replicas) for stage in stages]
        low, high = self.lower_bound() * self.instance.num_microbatches - 1, within
        best = self._cut(order, high, window=(lowest, highest))
        while best is not None and low + max(1, int(tolerance * low)) < high:
            middle = (low + high) // 2
            found = self._cut(order, middle, window=(lowest, highest))
            low, high, best = (middle, high, best) if found is None else (low, middle, found)
        return best

    def _cut(self, order: Sequence[tuple[int, int]], limit: int, *, window: tuple[Integers, Integers]) -> Stages | None:
        """The cut whose stages end within `limit`; None if none does."""
        table = np.array(order, np.int64).reshape(-1, 2)
        allowance, end = allowances(self.instance, table, limit, self._drain_percent, *window)
        if allowance[0, 0] < 0:
            return None
        stages, at = [], 0
        for s, (device_class, replicas) in enumerate(order):
            stages.append(Interval(at, int(end[s, at]), device_class, replicas))
            at = int(end[s, at])
        return tuple(stages)

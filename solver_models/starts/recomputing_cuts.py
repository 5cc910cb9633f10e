"""Cuts of the layers in order, one stage per device, balanced with the recomputation that 1F1B makes each stage need.

A stage s of S holds min(M, S - s) microbatches. The longest stage is as short as a bisection finds it: below a limit
every stage takes as many layers as it can, each with the kinds that free the most units per tick, until it fits.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np

from solver_models.instance import BACKWARD, FORWARD, Instance, Integers
from solver_models.simulation.columns import STASH_ROW, STATE_ROW, WORKSPACE_ROW


class RecomputingCuts:
    """Cuts for the devices of an instance in their order."""

    def __init__(self, instance: Instance, *, precision: int) -> None:
        """`precision`: parts of the whole work in which limits are distinguished."""
        assert instance.recompute_kinds is not None
        self.instance, self.kinds, self.precision = instance, instance.recompute_kinds, precision
        self.num_layers, self.num_stages = instance.num_layers, instance.num_devices
        self.work = instance.work[0, FORWARD] + instance.work[0, BACKWARD]
        self.buffers = instance.rules["receive_buffers"] * instance.crossing.sum(axis=0)
        layers, types = range(self.num_layers), range(instance.num_types)
        self.steps = [[self._steps(layer, kind) for layer in layers] for kind in types]

    def _steps(self, layer: int, device_type: int) -> list[tuple[float, int, int]]:
        """(ticks per unit, ticks, units) by which kinds of a layer free ever more, none worse than a later one."""
        ticks = self.kinds.extra[:, 0, device_type, layer].tolist()
        freed = (self.kinds.kept[0, 0, layer] - self.kinds.kept[:, 0, layer]).tolist()
        points = sorted((freed[k], ticks[k]) for k in range(len(ticks)) if self.kinds.stated[k, layer])
        steps, at = [], (0, 0)
        while any(units > at[0] for units, _ in points):
            rate, units, spent = min(
                ((max(0, spent - at[1])) / (units - at[0]), units, spent) for units, spent in points if units > at[0]
            )
            steps.append((rate, max(0, spent - at[1]), units - at[0]))
            at = units, max(spent, at[1])
        return steps

    def cuts(self, *, most: int) -> Iterator[Integers]:
        """[L] stages of the layers, for ever longer longest stages, at most so many different cuts."""
        seen, limits = set[bytes](), range(1, 3 * self.precision)
        whole = int(self.work.max(axis=0).sum())
        low = bisect_left(limits, 1, key=lambda limit: int(self._cut(whole * limit // self.precision) is not None))
        for limit in limits[low:]:
            cut = self._cut(whole * limit // self.precision)
            if cut is not None and cut.tobytes() not in seen:
                seen.add(cut.tobytes())
                yield cut
            if len(seen) >= most:
                return

    def _cut(self, limit: int) -> Integers | None:
        """Stages that take no longer than the limit, each as long as it can be with a layer left for the others."""
        stage_of, begin = np.zeros(self.num_layers, np.int64), 0
        for stage in range(self.num_stages):
            last = self.num_layers - (self.num_stages - stage - 1)
            ends = range(begin + 1, last + 1)
            end = begin + bisect_right(ends, False, key=lambda end: self._is_over(stage, begin, end=end, limit=limit))
            if end == begin:
                return None
            stage_of[begin:end] = stage
            begin = end
        return stage_of if begin == self.num_layers else None

    def _is_over(self, stage: int, begin: int, *, end: int, limit: int) -> bool:
        """Whether layers begin to end - 1 take longer than the limit as a stage, or hold too much however they do."""
        instance, device_type = self.instance, int(self.instance.device_type[stage])
        ticks = int(self.work[device_type, begin:end].sum())
        if ticks > limit:
            return True
        held = min(instance.num_microbatches, self.num_stages - stage)
        sizes = instance.sizes[:, begin:end]
        stash = int(sizes[STASH_ROW].sum())
        excess = int(sizes[STATE_ROW].sum() + sizes[WORKSPACE_ROW].max()) + held * stash
        excess += int(self.buffers[begin] + self.buffers[end]) - int(instance.capacity[stage])
        if excess <= 0:
            return False
        beside = max(1, held - 1)
        for _, spent, units in sorted(step for layer in range(begin, end) for step in self.steps[device_type][layer]):
            ticks += spent
            excess -= beside * units
            if excess <= 0:
                return ticks > limit
        return True

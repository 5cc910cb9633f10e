"""What a planner does that decides one thing after the other: layers and devices by the largest stage, then the order.

Here is its first half. It is a fair one: stages are cut and placed so that the slowest stage or transfer is as fast as
possible, every device may take every place, and a stage must fit into memory with as many microbatches in flight as
1F1B holds there. Where nothing fits so, fewer in flight are asked for. One stage per device, no replicas.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise

import numpy
from numpy.typing import NDArray

from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.partitions import crossing_bytes, cut_at, stage_times
from planner.layout.costs import CostModel
from planner.plan import Stage
from profiles.cluster import Device

Cells = NDArray[numpy.bool_]
"""[first layers done, layers done after]: whether the layers between may be a stage."""

MAX_CELLS = 2_000_000_000
"""Cells looked at before the devices are taken as they are: a deterministic limit of about ten seconds."""

FINENESS = 5_000
"""The largest stage is found to one part in so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAssignment:
    """A cut of the layers, and who takes which stage."""

    limit_ns: int
    """No stage and no transfer takes longer per microbatch."""
    in_flight: int
    """Every stage fits with the smaller of this and 1F1B's number of microbatches in flight."""
    stages: tuple[Stage, ...]
    """The stages with their devices, in order."""


def assign_sequential(
    costs: CostModel, *, max_cells: int = MAX_CELLS, has_time: Callable[[], bool] = lambda: True
) -> StageAssignment:
    """The cut and the devices whose largest stage or transfer is smallest, by exact cuts and local search on their
    devices.

    The local search ends once `max_cells` possible stages were looked at, or `has_time` denies.
    Raises DoesNotApplyError if nothing was found that fits into memory.
    """
    hall = _Hall(costs, max_cells=max_cells)
    for in_flight in hall.depths():
        best: tuple[int, tuple[Device, ...]] | None = None
        for row_of_devices in hall.first_rows():
            best = hall.improve(row_of_devices, best, in_flight=in_flight)
        if best is not None:
            limit, row_of_devices = hall.search(*best, in_flight=in_flight, has_time=has_time)
            return StageAssignment(
                limit_ns=limit,
                in_flight=in_flight,
                stages=hall.stages(row_of_devices, limit=limit, in_flight=in_flight),
            )
    raise DoesNotApplyError("has no cut into one stage per device that fits into memory")


class _Hall:
    """The tables from which a row of devices is judged."""

    def __init__(self, costs: CostModel, *, max_cells: int) -> None:
        self.costs, self.problem = costs, costs.problem
        self.layers = [self.problem.profile.by_name[name] for name in self.problem.profile.topological_order]
        self.devices = self.problem.cluster.devices
        self.crossing = crossing_bytes(self.problem.profile)
        self.work_left = max_cells
        self.times = cache(self._times)
        self.fits = cache(self._fits)
        self.transfer = cache(self._transfer)

    def depths(self) -> Iterator[int]:
        """Numbers in flight to ask for: 1F1B's, then ever fewer."""
        depth = min(len(self.devices), self.problem.num_microbatches)
        while depth:
            yield depth
            depth //= 2

    def first_rows(self) -> Iterator[tuple[Device, ...]]:
        """All devices, then fewer of them, the slowest left out first: as listed, fastest first, fastest last."""
        speed = {device: int(self.times(device.type)[0, -1]) for device in self.devices}
        most = min(len(self.devices), len(self.layers))
        for count in range(most, max(1, most // 2) - 1, -1):
            chosen = sorted(self.devices, key=lambda device: speed[device])[:count]
            listed = tuple(device for device in self.devices if device in chosen)
            yield from dict.fromkeys((listed, tuple(chosen), tuple(reversed(chosen))))

    def _times(self, device_type: str) -> NDArray[numpy.int64]:
        prefix = stage_times(self.costs, device_type)
        return prefix[None, :] - prefix[:, None]

    def _fits(self, memory_bytes: int, depth: int) -> Cells:
        state = _sums(self.costs.resident(layer.name, 1).state for layer in self.layers)
        stash = _sums(layer.stash_bytes for layer in self.layers)
        buffers = self.problem.options.receive_buffers * self.crossing
        workspace = max(layer.workspace_bytes for layer in self.layers)
        needed = state + depth * stash + workspace + buffers[None, :] + buffers[:, None]
        size = numpy.arange(len(self.layers) + 1)
        return (needed <= memory_bytes) & (size[None, :] > size[:, None])

    def _transfer(self, a: str, b: str) -> NDArray[numpy.float64]:
        typical = int(numpy.median(self.crossing))
        route = self.problem.cluster.route(a, b, num_bytes=typical)
        return route.latency_ns + self.crossing * (10**9 / route.bandwidth_bytes_per_s)

    def _rows(self, row_of_devices: Sequence[Device], *, limit: int, in_flight: int) -> list[NDArray[numpy.bool_]]:
        """Row k: how many layers the first k devices can hold together with nothing above `limit`."""
        self.work_left -= len(row_of_devices) * (len(self.layers) + 1) ** 2
        row = numpy.arange(len(self.layers) + 1) == 0
        rows = [row]
        for place, device in enumerate(row_of_devices):
            row = (row[:, None] & self._stage_cells(row_of_devices, place, limit=limit, in_flight=in_flight)).any(
                axis=0
            )
            if place + 1 < len(row_of_devices):
                row = row & (self.transfer(device.name, row_of_devices[place + 1].name) <= limit)
            rows.append(row)
        return rows

    def _stage_cells(self, row_of_devices: Sequence[Device], place: int, *, limit: int, in_flight: int) -> Cells:
        depth = min(len(row_of_devices) - place, in_flight, self.problem.num_microbatches)
        return (self.times(row_of_devices[place].type) <= limit) & self.fits(row_of_devices[place].usable_bytes, depth)

    def improve(
        self,
        row_of_devices: tuple[Device, ...],
        best: tuple[int, tuple[Device, ...]] | None,
        *,
        in_flight: int,
    ) -> tuple[int, tuple[Device, ...]] | None:
        """The best so far, or `row_of_devices` with its smallest limit if that is smaller."""
        high = self._ceiling if best is None else best[0] - 1 - best[0] // FINENESS
        if high < 1 or not self._rows(row_of_devices, limit=high, in_flight=in_flight)[-1][-1]:
            return best
        low = 0
        while high - low > 1 + high // FINENESS:
            middle = (low + high) // 2
            if self._rows(row_of_devices, limit=middle, in_flight=in_flight)[-1][-1]:
                high = middle
            else:
                low = middle
        return high, row_of_devices

    @property
    def _ceiling(self) -> int:
        """No stage, and no transfer, takes longer."""
        pairs = pairwise([*self.devices, self.devices[0]])
        slowest = max((int(self.transfer(a.name, b.name).max()) for a, b in pairs if a is not b), default=0)
        return 10 * slowest + max(int(self.times(device.type)[0, -1]) for device in self.devices) + 1

    def search(
        self, limit: int, row_of_devices: tuple[Device, ...], *, in_flight: int, has_time: Callable[[], bool]
    ) -> tuple[int, tuple[Device, ...]]:
        """Swap two devices, placed or idle, as long as that helps and the limit on work, and the clock, allow."""
        is_better = True
        while is_better:
            is_better = False
            idle = tuple(device for device in self.devices if device not in row_of_devices)
            for a, b in combinations(range(len(row_of_devices) + len(idle)), 2):
                row = list(row_of_devices + idle)
                if a >= len(row_of_devices) or self._are_alike(row[a], row[b]):
                    continue
                if self.work_left <= 0 or not has_time():
                    return limit, row_of_devices
                row[a], row[b] = row[b], row[a]
                found = self.improve(tuple(row[: len(row_of_devices)]), (limit, row_of_devices), in_flight=in_flight)
                if found is not None and found[0] < limit:
                    (limit, row_of_devices), is_better = found, True
                    idle = tuple(device for device in self.devices if device not in row_of_devices)
        return limit, row_of_devices

    def _are_alike(self, a: Device, b: Device) -> bool:
        """Whether changing places cannot matter: the same type, memory and host."""
        return (a.type, a.usable_bytes, a.host) == (b.type, b.usable_bytes, b.host) and bool(a.host)

    def stages(self, row_of_devices: tuple[Device, ...], *, limit: int, in_flight: int) -> tuple[Stage, ...]:
        """The cut itself; among those within the limit, stages close to the mean are preferred, from the last on."""
        rows = self._rows(row_of_devices, limit=limit, in_flight=in_flight)
        cuts = [len(self.layers)]
        for place in range(len(row_of_devices) - 1, -1, -1):
            cells = self._stage_cells(row_of_devices, place, limit=limit, in_flight=in_flight)
            starts = numpy.flatnonzero(rows[place] & cells[:, cuts[-1]])
            times = self.times(row_of_devices[place].type)
            distance = numpy.abs(times[starts, cuts[-1]] - times[0, cuts[-1]] // (place + 1))
            cuts.append(int(starts[numpy.argmin(distance)]))
        names = cut_at(self.problem.profile.topological_order, cuts[::-1])
        return tuple(
            Stage(layers=layers, replicas=((device.name,),))
            for layers, device in zip(names, row_of_devices, strict=True)
        )


def _sums(values: Iterator[int]) -> NDArray[numpy.int64]:
    """[i, j]: the sum of values i to j - 1."""
    prefix = numpy.cumsum(numpy.array([0, *values], dtype=numpy.int64))
    return prefix[None, :] - prefix[:, None]

"""SPP's division of layers and devices among stages: a dynamic programme over both, along a given order of devices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy
from numpy.typing import NDArray

from planner.baselines.applicability import DoesNotApplyError, require_time
from planner.baselines.partitions import crossing_bytes
from planner.clock import HasTime, always
from planner.layout.costs import CostModel, overlaps
from planner.plan import Stage

Floats = NDArray[numpy.float64]

MAX_CELLS = 250_000_000
"""Largest programme that is run: layers squared x devices cubed / 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """Where the layers are cut, and how many devices each stage takes."""

    value_ns: float
    """The largest load of a stage or a channel over the whole iteration, the stage's all-reduce included."""
    cuts: tuple[int, ...]
    """Layers before every cut, from 0 to all."""
    replicas: tuple[int, ...]
    """Devices of every stage, taken one after the other."""


def require_small(num_layers: int, num_devices: int) -> None:
    """Raise DoesNotApplyError above `MAX_CELLS`."""
    if num_layers**2 * num_devices**3 // 2 > MAX_CELLS:
        raise DoesNotApplyError(f"{num_layers} layers on {num_devices} devices are too many for its dynamic programme")


class CumulativeLoads:
    """What a stage or a channel has to do in an iteration, by the number of layers before its cuts."""

    def __init__(self, costs: CostModel, devices: Sequence[str]) -> None:
        self.costs, self.devices = costs, tuple(devices)
        self.problem = costs.problem
        self.layers = self.problem.profile.topological_order
        self.count = self.problem.num_microbatches

    def stage_ns(self, end: int, replicas: int) -> Floats:
        """[L + 1, L + 1] microbatches x work / replicas + all-reduce, from one cut to another.

        For the `replicas` devices before position `end`; infinite where no layer lies between the cuts.
        """
        group = self.devices[end - replicas : end]
        types = dict.fromkeys(self.problem.cluster.by_name[name].type for name in group)
        work = numpy.maximum.reduce([self._stage_work(kind, replicas) for kind in types])
        load: Floats = self.count * work + self._all_reduce(group)
        load[numpy.tril_indices(len(load))] = numpy.inf
        return load

    def channel_ns(self, middle: int, *, senders: int, receivers: int) -> Floats:
        """[L + 1] microbatches x the slowest transfer over a cut, by that cut's position.

        From the `senders` devices before position `middle` to the `receivers` devices after it.
        """
        load = numpy.zeros(len(self.layers) + 1)
        for i, j, share, whole in overlaps(senders, receivers):
            a, b = middle - senders + i, middle + j
            times = self.transfers[0][a, b] + self._crossing * (share / whole) * self.transfers[1][a, b]
            numpy.maximum(load, times * self.transfers[2][a, b], out=load)
        return self.count * load

    @cached_property
    def _crossing(self) -> Floats:
        return crossing_bytes(self.problem.profile)

    @cached_property
    def transfers(self) -> tuple[Floats, Floats, Floats]:
        """[D, D] latency, nanoseconds per byte, and directions that share the links, between positions."""
        size = max(int(numpy.median(self._crossing)), 1)
        latency, slowness, crossings = (numpy.ones((len(self.devices),) * 2) for _ in range(3))
        for i, a in enumerate(self.devices):
            for j, b in enumerate(self.devices):
                if a != b:
                    route = self.problem.cluster.route(a, b, num_bytes=size)
                    back = self.problem.cluster.route(b, a, num_bytes=size)
                    latency[i, j], slowness[i, j] = route.latency_ns, 1e9 / route.bandwidth_bytes_per_s
                    crossings[i, j] = 1 + bool(set(route.links) & set(back.links))
        return latency, slowness, crossings

    def _stage_work(self, device_type: str, replicas: int) -> Floats:
        """[L + 1, L + 1] F + B of a microbatch on one of the replicas, between two cuts; infinite without a cost."""
        works = [self.costs.layer_work(name, device_type, width=1, replicas=replicas) for name in self.layers]
        forward = self._between(_sums([0 if work is None else work.forward_ns for work in works]))
        backward = self._between(_sums([0 if work is None else work.backward_ns for work in works]))
        absent = self._between(_sums([work is None for work in works]))
        work: Floats = numpy.ceil(forward / replicas) + numpy.ceil(backward / replicas)
        work[absent > 0] = numpy.inf
        return work

    @staticmethod
    def _between(sums: Floats) -> Floats:
        return sums[None, :] - sums[:, None]

    def _all_reduce(self, group: Sequence[str]) -> Floats:
        """[L + 1, L + 1] the ring all-reduce of the layers between two cuts (as `CostModel.synchronisation_ns`)."""
        size, count = self._between(self._gradients), len(group)
        if count == 1:
            return numpy.zeros_like(size)
        place = {name: number for number, name in enumerate(self.devices)}
        ring = [(place[a], place[b]) for a, b in zip(group, (*group[1:], group[0]), strict=True)]
        latency, slowness, _ = ([table[pair] for pair in ring] for table in self.transfers)
        times = numpy.ceil(2 * (count - 1) / count * size * max(slowness)) + 2 * (count - 1) * max(latency)
        return numpy.where(self._between(self._trained) > 0, times, 0.0)

    @cached_property
    def _gradients(self) -> Floats:
        return _sums([self.problem.profile.by_name[name].synchronised_bytes for name in self.layers])

    @cached_property
    def _trained(self) -> Floats:
        """A stage synchronises unless all its layers are frozen."""
        return _sums([not self.problem.profile.by_name[name].frozen for name in self.layers])


def _sums(values: Sequence[int]) -> Floats:
    """Of the first 0, 1, 2 ... values."""
    return numpy.concatenate([[0.0], numpy.cumsum(values, dtype=numpy.float64)])


def divide(
    loads: CumulativeLoads, *, replica_counts: Sequence[int], uses_all: bool, has_time: HasTime = always
) -> Iterator[Division]:
    """For every number of stages the best division along the devices, W(l, k, r, i) of SPP, least value first.

    `replica_counts`: how many devices a stage may take. `uses_all`: every device gets a stage; otherwise the last ones
    may stay without. Raises DoesNotApplyError above `MAX_CELLS`.
    """
    num_layers, num_devices = len(loads.layers), len(loads.devices)
    require_small(num_layers, num_devices)
    programme = _Programme(loads, replica_counts=replica_counts, has_time=has_time)
    found = [programme.best(stages, uses_all=uses_all) for stages in range(1, min(num_layers, num_devices) + 1)]
    yield from sorted((each for each in found if each is not None), key=lambda division: division.value_ns)


class _Programme:
    """W(l, k, r, i): the least largest load of k stages with l layers on i devices, r of them in the last stage."""

    def __init__(self, loads: CumulativeLoads, *, replica_counts: Sequence[int], has_time: HasTime) -> None:
        self.loads, self.counts, self.has_time = loads, tuple(replica_counts), has_time
        self.num_devices = len(loads.devices)
        last_stages = [(i, r) for i in range(1, self.num_devices + 1) for r in self.counts if r <= i]
        self.stage = dict(self._stage_times(last_stages))
        self.channel = {
            (i, before, r): loads.channel_ns(i - r, senders=before, receivers=r)
            for i, r in last_stages
            for before in self.counts
            if before <= i - r
        }
        self.tables = [{(i, i): self.stage[i, i][0] for i in self.counts if i <= self.num_devices}]
        self.choices: list[dict[tuple[int, int], tuple[NDArray[numpy.int64], NDArray[numpy.int64]]]] = [{}]

    def _stage_times(self, last_stages: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], Floats]]:
        for i, r in last_stages:
            require_time(self.has_time)
            yield (i, r), self.loads.stage_ns(i, r)

    def best(self, num_stages: int, *, uses_all: bool) -> Division | None:
        """The best division into so many stages, to be asked for in ascending numbers; None if there is none."""
        if num_stages > len(self.tables):
            self._add_stage()
        ends = [(table[-1], last_stage) for last_stage, table in self.tables[-1].items()]
        allowed = [end for end in ends if end[0] < numpy.inf and (not uses_all or end[1][0] == self.num_devices)]
        return self._trace(*min(allowed)) if allowed else None

    def _add_stage(self) -> None:
        last = self.tables[-1]
        table, choice = {}, {}
        for (i, r), stage in self.stage.items():
            require_time(self.has_time)
            befores = [before for before in self.counts if (i - r, before) in last]
            if not befores:
                continue
            crossings = numpy.stack([numpy.maximum(last[i - r, b], self.channel[i, b, r]) for b in befores])
            chosen = crossings.argmin(axis=0)
            through = numpy.maximum(crossings.min(axis=0)[:, None], stage)
            cuts = through.argmin(axis=0)
            table[i, r] = through.min(axis=0)
            choice[i, r] = cuts, numpy.array(befores)[chosen[cuts]]
        self.tables.append(table)
        self.choices.append(choice)

    def _trace(self, value: float, last_stage: tuple[int, int]) -> Division:
        """Cuts and replicas, from the last stage to the first."""
        (end, replicas), cuts, counts = last_stage, [len(self.loads.layers)], [last_stage[1]]
        for choice in self.choices[:0:-1]:
            where, before = (int(table[cuts[-1]]) for table in choice[end, replicas])
            end, replicas = end - replicas, before
            cuts.append(where)
            counts.append(before)
        return Division(value_ns=float(value), cuts=(0, *cuts[::-1]), replicas=tuple(counts[::-1]))


def make_divided_stages(loads: CumulativeLoads, division: Division) -> tuple[Stage, ...]:
    """The stages of a division, replicas one device each."""
    ends = numpy.cumsum(division.replicas).tolist()
    return tuple(
        Stage(
            layers=tuple(loads.layers[start:stop]),
            replicas=tuple((name,) for name in loads.devices[end - count : end]),
        )
        for (start, stop), end, count in zip(pairwise(division.cuts), ends, division.replicas, strict=True)
    )

"""Ways to cut a model into stages along its topological order: equal layer counts, and least largest stage."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import numpy
from numpy.typing import NDArray

from planner.baselines.applicability import DoesNotApplyError
from planner.layout.costs import CostModel
from planner.problem import Problem
from profiles.model_profile import ModelProfile

Partition = tuple[tuple[str, ...], ...]
"""Layer names per stage, in stage order."""

Times = NDArray[numpy.float64] | NDArray[numpy.int64]
"""Nanoseconds for every cut position: of the first 0, 1, 2 ... layers, or of the transfer between them and the rest."""


def even_layers(problem: Problem, num_stages: int) -> Partition:
    """The same number of layers in every stage, give or take one.

    Raises DoesNotApplyError if there are fewer layers than stages.
    """
    order = problem.profile.topological_order
    _require_layers(len(order), num_stages)
    cuts = [len(order) * stage // num_stages for stage in range(num_stages + 1)]
    return cut_at(order, cuts)


def smallest_largest_stage(costs: CostModel, devices: Sequence[str], *, counts_transfers: bool = False) -> Partition:
    """The cut whose largest F + I + W is least, stage s being run by `devices[s]`.

    With `counts_transfers` the transfers from each device to the next count like stages, as in PipeDream's partition.
    Exact for that order of layers and devices: bisection over the largest time, each value tested by reachability of
    the cut positions stage by stage. Among equally good cuts, stages close to the mean are preferred.
    Raises DoesNotApplyError if there are fewer layers than stages.
    """
    order = costs.problem.profile.topological_order
    _require_layers(len(order), len(devices))
    types = [costs.problem.cluster.by_name[device].type for device in devices]
    prefix_of = {device_type: stage_times(costs, device_type) for device_type in dict.fromkeys(types)}
    prefixes = [prefix_of[device_type] for device_type in types]
    transfers: list[Times] = _transfers(costs.problem, devices) if counts_transfers else []
    limits = range(max(int(numpy.ceil(times.max())) for times in (*prefixes, *transfers)))
    least = bisect_left(limits, 1, key=lambda limit: int(_reachable(prefixes, transfers, limit=limit)[-1][-1]))
    return cut_at(order, _cuts(prefixes, transfers, limit=least))


def _require_layers(num_layers: int, num_stages: int) -> None:
    if num_layers < num_stages:
        raise DoesNotApplyError(f"has {num_layers} layers for {num_stages} stages")


def cut_at(order: Sequence[str], cuts: Sequence[int]) -> Partition:
    """The layers between every two neighbouring cut positions."""
    return tuple(tuple(order[start:end]) for start, end in pairwise(cuts))


def stage_times(costs: CostModel, device_type: str) -> NDArray[numpy.int64]:
    """F + I + W of the first 0, 1, 2 ... layers on a device type, in nanoseconds per microbatch."""
    times = [0]
    for name in costs.problem.profile.topological_order:
        work = costs.layer_work(name, device_type, width=1, replicas=1)
        assert work is not None  # baselines are made where every layer was measured at width 1
        times.append(work.forward_ns + work.input_grad_ns + work.weight_grad_ns)
    return numpy.cumsum(numpy.array(times, dtype=numpy.int64))


def _transfers(problem: Problem, devices: Sequence[str]) -> list[Times]:
    """For every pair of neighbouring devices: what a cut there sends per microbatch, in the slower direction."""
    crossing = crossing_bytes(problem.profile)
    typical = int(numpy.median(crossing))
    transfers: list[Times] = []
    for a, b in pairwise(devices):
        if a == b:
            transfers.append(numpy.zeros(len(crossing)))
            continue
        route = problem.cluster.route(a, b, num_bytes=typical)
        transfers.append(route.latency_ns + crossing * (10**9 / route.bandwidth_bytes_per_s))
    return transfers


def crossing_bytes(profile: ModelProfile) -> NDArray[numpy.float64]:
    """Bytes that cross every cut position; an output that several later layers read counts once."""
    place = {name: number for number, name in enumerate(profile.topological_order)}
    reach: dict[str, tuple[int, int]] = {}
    for edge in profile.edges:
        last, size = reach.get(edge.producer, (0, 0))
        reach[edge.producer] = max(last, place[edge.consumer]), max(size, edge.bytes, edge.backward_bytes)
    change = numpy.zeros(len(place) + 2)
    for name, (last, size) in reach.items():
        change[place[name] + 1] += size
        change[last + 1] -= size
    return numpy.cumsum(change)[:-1]


def _reachable(prefixes: Sequence[Times], transfers: Sequence[Times], *, limit: int) -> list[NDArray[numpy.bool_]]:
    """Row k: how many layers k stages can hold together, none empty, no stage and no transfer above `limit`."""
    size = len(prefixes[0])
    earliest = {id(prefix): numpy.searchsorted(prefix, prefix - limit) for prefix in prefixes}
    position = numpy.arange(size)
    rows = [position == 0]
    for stage, prefix in enumerate(prefixes):
        before = numpy.concatenate(([0], numpy.cumsum(rows[-1])))
        row = before[position] > before[earliest[id(prefix)]]
        rows.append(row & (transfers[stage] <= limit) if stage < len(transfers) else row)
    return rows


def _cuts(prefixes: Sequence[Times], transfers: Sequence[Times], *, limit: int) -> list[int]:
    """Cut positions with nothing above `limit`, chosen from the last stage to the first."""
    rows = _reachable(prefixes, transfers, limit=limit)
    cuts = [len(prefixes[0]) - 1]
    for stage in range(len(prefixes) - 1, -1, -1):
        prefix, end = prefixes[stage], cuts[-1]
        first = int(numpy.searchsorted(prefix, prefix[end] - limit))
        starts = first + numpy.flatnonzero(rows[stage][first:end])
        distance = numpy.abs(prefix[end] - prefix[starts] - prefix[end] // (stage + 1))
        cuts.append(int(starts[numpy.argmin(distance)]))
    return cuts[::-1]

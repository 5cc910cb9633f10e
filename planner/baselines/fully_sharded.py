"""Fully sharded data parallelism (ZeRO-3): one stage, every device a replica that holds an r-th of all state.

It is no plan of ours, since a plan shards the optimizer's state at most; its row is reckoned by the same costs and
links, and is a lower estimate: what a real run takes more for its allocator, for other traffic on the ring or for waits
within a layer is left out. All devices are in step, each layer as long as on the slowest. Two things run at once:

    weights, gradients   a ring that all-gathers a layer's weights before its F and before its backward pass, the next
                         layer's at the earliest when the layer before it begins, and reduce-scatters its gradients
    computation          F of all layers, then B of all in the opposite order, microbatch after microbatch

The last layer's weights stay for its backward pass. After the last reduce-scatter every device steps an r-th.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from planner.baselines.applicability import require_choices
from planner.baselines.data_parallel import make_replicated_stage
from planner.layout.costs import CostModel
from planner.plan import BaselineResult, Stage
from profiles.model_profile import Layer
from solver_models.simulation.in_order import OrderedSteps, play_in_order

NAME = "fully sharded data parallel"

NOTE = "lower estimate, not a plan: gathers one layer ahead, full overlap"


_DEVICE, _RING, _LAYER = range(3)
"""Who is busy: the devices, the ring, and until it began the layer before."""


class ShardedLayer(NamedTuple):
    """Nanoseconds of one layer for a replica's share of one microbatch."""

    forward: int
    backward: int
    gather: int
    """Its weights, to every replica."""
    scatter: int
    """Its gradients, added up, to the replica that has the part."""


class _RingClock(NamedTuple):
    """When the devices and the ring are free, and when the last layer began."""

    device: int
    ring: int
    began: int


def reckon(costs: CostModel, *, recompute: bool = False) -> BaselineResult:
    """The row of the method; raises DoesNotApplyError where data parallelism does not apply either."""
    (stage,) = make_replicated_stage(costs)
    require_choices(costs, (stage,))
    layers = [costs.problem.profile.by_name[name] for name in stage.layers]
    times = [_times(costs, stage, layer=layer, recompute=recompute) for layer in layers]
    clock = play(times, num_microbatches=costs.problem.num_microbatches, overhead=_overhead(costs, stage))
    makespan = max(clock.device, clock.ring) + costs.problem.profile.optimizer_ns + _step(costs, stage)
    work = costs.problem.num_microbatches * sum(each.forward + each.backward for each in times)
    peak = _held(layers, replicas=len(stage.replicas), recompute=recompute)
    devices = [costs.problem.cluster.by_name[name] for group in stage.replicas for name in group]
    fraction = max(peak / max(1, device.usable_bytes) for device in devices)
    return BaselineResult(
        name=f"{NAME}, recomputing" if recompute else NAME,
        makespan_ns=makespan,
        span_ns=clock.device,
        bubble=1 - work / makespan if makespan else 0.0,
        peak_fraction=fraction,
        fits_memory=fraction <= 1,
        note=NOTE,
    )


def play(times: Sequence[ShardedLayer], *, num_microbatches: int, overhead: tuple[int, int]) -> _RingClock:
    """When all microbatches have run; `overhead`: of an F and of a B beyond the layers.

    Only differences of times decide, so once a microbatch leaves them as it found them all others are like it.
    """
    clock = _RingClock(0, 0, 0)
    for number in range(num_microbatches):
        after = _run(times, clock, overhead=overhead)
        took = after.device - clock.device
        if all(b - a == took for a, b in zip(clock, after, strict=True)):
            left = (num_microbatches - number - 1) * took
            return _RingClock(*(each + left for each in after))
        clock = after
    return clock


def _run(times: Sequence[ShardedLayer], clock: _RingClock, *, overhead: tuple[int, int]) -> _RingClock:
    """One microbatch forward and backward; what takes no time is not sent."""
    rows = [(_DEVICE, -1, 0, clock.device), (_RING, -1, 0, clock.ring), (_LAYER, -1, 0, clock.began)]
    passes = [(each.gather, each.forward, 0) for each in times]
    passes += [(each.gather * (place > 0), each.backward, each.scatter) for place, each in enumerate(reversed(times))]
    began, ran, unsent = _LAYER, _DEVICE, 0
    for place, (gather, time, scatter) in enumerate(passes):
        gathered = len(rows) if gather else -1
        rows += [(_RING, began, 0, gather)] * (gather > 0) + [(_RING, ran, 0, unsent)] * (unsent > 0)
        began, ran, unsent = len(rows), len(rows) + 1, scatter
        rows += [
            (_DEVICE, gathered, {0: overhead[0], len(times): overhead[1]}.get(place, 0), 0),
            (_DEVICE, -1, 0, time),
        ]
    rows += [(_RING, ran, 0, unsent)] * (unsent > 0)
    devices, sources, gaps, ticks = zip(*rows, strict=True)
    ends = play_in_order(OrderedSteps(devices, sources, [0] * len(rows), gaps), ticks)
    ring = max(end for end, device in zip(ends, devices, strict=True) if device == _RING)
    return _RingClock(ends[ran], max(ring, ends[began]), ends[began])


def _times(costs: CostModel, stage: Stage, *, layer: Layer, recompute: bool) -> ShardedLayer:
    """On the slowest of the devices."""
    replicas = len(stage.replicas)
    types = {costs.group_type(group) for group in stage.replicas}
    known = [costs.layer_work(layer.name, each, width=1, replicas=replicas) for each in sorted(types)]
    works = [work for work in known if work is not None]
    backward = max(work.backward_ns + (work.recompute_ns if recompute else 0) for work in works)
    return ShardedLayer(
        forward=-(-max(work.forward_ns for work in works) // replicas),
        backward=-(-backward // replicas),
        gather=costs.ring_ns(stage.replicas, layer.parameter_bytes, rounds=1) if layer.parameter_bytes else 0,
        scatter=costs.ring_ns(stage.replicas, layer.synchronised_bytes, rounds=1) if layer.is_trainable else 0,
    )


def _overhead(costs: CostModel, stage: Stage) -> tuple[int, int]:
    """What an F and a B cost beyond their layers, on the slowest of the devices."""
    profile, types = costs.problem.profile, {costs.group_type(group) for group in stage.replicas}
    forward, backward = (max(profile.overhead_ns(each, kind, has_stages=False) for each in types) for kind in "FB")
    return forward, backward


def _step(costs: CostModel, stage: Stage) -> int:
    """A part of the optimizer's step on every device."""
    layers = [costs.problem.profile.by_name[name] for name in stage.layers]
    types = {costs.group_type(group) for group in stage.replicas}
    return max(-(-sum(layer.optimizer_ns(each) for layer in layers) // len(stage.replicas)) for each in types)


def _held(layers: Sequence[Layer], *, replicas: int, recompute: bool) -> int:
    """Bytes of a device at the least: its part of the state, two layers' weights and a gradient, and the stashes.

    Where parts of the state are not distinguished all of it counts as sharded.
    """
    told = [layer for layer in layers if layer.is_trainable and layer.optimizer_bytes is not None]
    parts = [each.parameter_bytes + each.synchronised_bytes + (each.optimizer_bytes or 0) for each in told]
    kept = sum(layer.state_bytes for layer in told) - sum(parts)
    shared = sum(layer.state_bytes for layer in layers) - kept
    pairs = [*pairwise(layers)] or [(layers[0], layers[0])]
    gathered = max(
        a.parameter_bytes + b.parameter_bytes + max(a.synchronised_bytes, b.synchronised_bytes) for a, b in pairs
    )
    stash = sum(layer.checkpoint_bytes if recompute else layer.stash_bytes for layer in layers)
    beside = max(layer.stash_bytes - layer.checkpoint_bytes for layer in layers) if recompute else 0
    workspace = max(layer.workspace_bytes for layer in layers)
    return kept - (-shared // replicas) + gathered - (-(stash + beside) // replicas) + workspace

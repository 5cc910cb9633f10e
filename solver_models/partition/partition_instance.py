"""Layers in one topological order, to be cut into intervals, each on one or more devices of one class, in integers."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from solver_models.device_rows import DeviceRow
from solver_models.instance import NO_TABLE, Instance, Integers
from solver_models.simulation.columns import SHARDABLE_ROW, STASH_ROW, STATE_ROW, WORKSPACE_ROW
from solver_models.starts.device_arrangement import cut_order


class Interval(NamedTuple):
    """One stage: the layers from `first` up to, not including, `end`, on `replicas` devices of one class."""

    first: int
    end: int
    device_class: int
    replicas: int


class PartitionInstance(NamedTuple):
    """L layers, C classes of alike devices, stages of at most R replicas; what adds up over layers as prefix sums.

    Links are those of the fastest pair of devices, so that what is cheap here may cost more on the devices chosen in
    the end, never less. What crosses a cut is counted as if it entered the next stage, in equal parts per replica,
    which is exact for chains of stages with equally many replicas.
    """

    num_microbatches: int
    """Identical microbatches per iteration."""
    work: Integers
    """[tables, 3, C, L + 1] ticks of a microbatch over all replicas: F, the part of the backward that earlier stages
    wait for, and the whole backward."""
    table_of_replicas: Integers
    """[R + 1] which table of `work` holds for a number of replicas, or `NO_TABLE`."""
    gradient: Integers
    """[L + 1] units that replicas synchronise."""
    ring: Integers
    """[C, R + 1, 2] largest latency in ticks, and least units per 10**9 ticks, on the ring of so many devices."""
    state: Integers
    """[L + 1] resident units."""
    stash: Integers
    """[L + 1] units of one microbatch in flight, the least that any plan needs."""
    workspace: Integers
    """[levels, L + 1] the most units of the 2**level layers from one on while an action runs."""
    class_sizes: Integers
    """[C] devices of every class."""
    capacity: Integers
    """[C] memory units of every device of the class."""
    cut_ticks: Integers
    """[2, L + 1] ticks of the transfer forward and backward over every cut; 0 at both ends."""
    cut_units: Integers
    """[2, L + 1] units of the receive buffers after the cut (activations) and before it (gradients)."""
    devices: Integers
    """[D] the device numbers, class by class."""

    @property
    def num_layers(self) -> int:
        """The number of layers, L."""
        return len(self.state) - 1

    @property
    def most_replicas(self) -> int:
        """The largest number of replicas of a stage, R."""
        return len(self.table_of_replicas) - 1

    @property
    def allowed(self) -> Integers:
        """[R + 1] 1 for the numbers of replicas that a stage may have."""
        flags: Integers = (self.table_of_replicas != NO_TABLE).astype(np.int64)
        flags[0] = 0
        return flags


def prefix_sums(values: Integers) -> Integers:
    """Prefix sums along the last axis, from 0."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1), np.int64)
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


def range_maxima(values: Integers) -> Integers:
    """Row n holds at i the largest of the 2**n values from i on."""
    rows = [np.append(values, 0)]
    for level in range(len(values).bit_length()):
        after = np.append(rows[-1][1 << level :], np.zeros(min(1 << level, len(rows[-1])), np.int64))
        rows.append(np.maximum(rows[-1], after))
    return np.array(rows)


def make_partition_instance(instance: Instance) -> PartitionInstance:
    """The partitioning part of a planning problem; devices of equal rows form a class.

    Those of a class stand in an order in which well-linked ones are neighbours.
    """
    rows = [DeviceRow(*row) for row in instance.layers.devices.tolist()]
    order = cut_order(instance).tolist()
    classes = {row: [d for d in order if rows[d] == row] for row in dict.fromkeys(rows)}
    types = [row.kind for row in classes]
    cuts = _cut_units(instance)
    return PartitionInstance(
        num_microbatches=instance.num_microbatches,
        work=prefix_sums(_work(instance)[:, :, types, :]),
        table_of_replicas=instance.layers.table_of_replicas,
        gradient=prefix_sums(instance.gradient),
        ring=np.array([_rings(instance, devices) for devices in classes.values()]),
        state=prefix_sums(instance.sizes[STATE_ROW]),
        stash=prefix_sums(instance.sizes[STASH_ROW]),
        workspace=range_maxima(instance.sizes[WORKSPACE_ROW]),
        class_sizes=np.array([len(devices) for devices in classes.values()], np.int64),
        capacity=np.array([row.memory for row in classes], np.int64),
        cut_ticks=_cut_ticks(instance, cuts),
        cut_units=instance.rules["receive_buffers"] * cuts,
        devices=np.concatenate([*classes.values()]).astype(np.int64),
    )


def as_if_sharding(instance: Instance) -> Instance:
    """The instance in which every stage holds the part that two replicas that shard hold; more of them hold less."""
    sizes = instance.layers.sizes.copy()
    sizes[:, STATE_ROW] -= sizes[:, SHARDABLE_ROW] // 2
    return replace(instance, layers=instance.layers._replace(sizes=sizes))


def assign_devices(
    instance: PartitionInstance, stages: tuple[Interval, ...]
) -> tuple[Integers, tuple[tuple[int, ...], ...]]:
    """[L] stage of every layer, and the devices of every stage: the next ones of its class, so that neighbours in the
    cluster stay neighbours.
    """
    free = [part.tolist() for part in np.split(instance.devices, np.cumsum(instance.class_sizes)[:-1])]
    stage_of, groups = np.zeros(instance.num_layers, np.int64), []
    for number, stage in enumerate(stages):
        stage_of[stage.first : stage.end] = number
        own = free[stage.device_class]
        groups.append(tuple(own[: stage.replicas]))
        del own[: stage.replicas]
    return stage_of, tuple(groups)


def _work(instance: Instance) -> Integers:
    """[tables, 3, T, L] F, what earlier stages wait for (I, or B if it cannot be split), and B.

    A layer without a cost takes longer than all layers with one, so that no cut with it is a good one.
    """
    forward, input_grad, backward = (instance.work[:, kind] for kind in (0, 1, 3))
    work = np.stack([forward, input_grad if "split_backward" in instance.rules else backward, backward], axis=1)
    out_of_reach = 1 + 2 * int(work.max(axis=(0, 1, 2)).sum())
    return np.where(instance.measured[:, None, : instance.num_types] == 1, work, out_of_reach)


def _rings(instance: Instance, devices: list[int]) -> list[list[int]]:
    """Per number of replicas, latency and bandwidth of the ring over neighbouring devices where it is fastest."""
    rings = [[0, 1], [0, 1]]
    for replicas in range(2, len(instance.layers.table_of_replicas)):
        windows = [devices[at : at + replicas] for at in range(len(devices) - replicas + 1)]
        found = [_ring(instance, window) for window in windows]
        rings.append(max(found, key=lambda ring: ring[1]) if found else [0, 1])
    return rings[: len(instance.layers.table_of_replicas)]


def _ring(instance: Instance, devices: list[int]) -> list[int]:
    after = [*devices[1:], devices[0]]
    return [int(instance.layers.latency[devices, after].max()), int(instance.layers.bandwidth[devices, after].min())]


def _cut_units(instance: Instance) -> Integers:
    """[2, L + 1] units that cross every cut forward and backward, each layer's output once."""
    cuts = np.zeros((2, instance.num_layers + 1), np.int64)
    for producer in np.unique(instance.layers.edges[:, 0]):
        own = instance.layers.edges[instance.layers.edges[:, 0] == producer]
        for direction, column in enumerate((2, 3)):
            for cut in range(producer + 1, own[:, 1].max() + 1):
                cuts[direction, cut] += own[own[:, 1] >= cut][:, column].max()
    return cuts


def _cut_ticks(instance: Instance, cuts: Integers) -> Integers:
    """Ticks of these transfers between the two devices where they are fastest."""
    others = ~np.eye(instance.num_devices, dtype=bool)
    if not others.any():
        return np.zeros_like(cuts)
    latency, bandwidth = instance.layers.latency[others], np.maximum(instance.layers.bandwidth[others], 1)
    ticks = [
        [min(_ticks(size, latency=latency, bandwidth=bandwidth)) if size else 0 for size in direction]
        for direction in cuts.tolist()
    ]
    return np.array(ticks, np.int64)


def _ticks(size: int, *, latency: Integers, bandwidth: Integers) -> list[int]:
    pairs = set(zip(latency.tolist(), bandwidth.tolist(), strict=True))
    return [wait - (-size * 10**9 // speed) for wait, speed in pairs]

"""Device orders from beams over chains of stages, with what recomputes: rounded to cells, searched, played exactly."""

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, DeviceOrder, Integers, ShortIntegers
from solver_models.recomputation.beam_orders import (
    F_RECOMPUTED,
    MOST_MICROBATCHES,
    BeamChain,
    BeamGuide,
    search_beam,
)
from solver_models.recomputation.microbatch_orders import OrderTables
from solver_models.recomputation.microbatch_recomputation import MicrobatchRecomputation, RecomputedOrders

_GUIDES = tuple(product((0.0, 0.7), (0.07, 0.14, 0.27, 0.5), (1.0, 2.0, 6.0, 12.0)))
"""Noise in cells, progress in mean actions, and power, of the beams that are searched."""
_MOST_CELLS, _ERROR = 4, 0.3
"""Of a median action, at most; and the part of an action that rounding may add or take, where so many suffice."""


class BeamStarts:
    """Beams of one chain."""

    def __init__(self, search: MicrobatchRecomputation, order: list[int], *, splits: bool) -> None:
        """`order`: stage replicas, first to last. `splits`: whether I and W are separate."""
        tables, self.search, self.order, self.splits = search.tables, search, order, splits
        self.backward = [INPUT_GRAD if splits or not tables.has_weight[n] else BACKWARD for n in order]
        columns = np.array([[FORWARD, backward, WEIGHT_GRAD] for backward in self.backward])
        ticks = _take(tables.ticks[..., None], order, columns=columns)[..., 0]
        self.unit = _choose_unit(ticks)
        self.mean_cells = float(ticks[:, 0].mean()) / self.unit
        table = np.zeros((len(order), 2, 3, 3), np.int64)
        table[..., 0] = self._cells(ticks)
        table[..., 1:] = _take(tables.steps, order, columns=columns)
        limits = np.zeros((len(order), 4), np.int64)
        limits[:, 0] = tables.budget[tables.device[order]]
        limits[:, 1] = tables.has_weight[order] * splits
        for n, place in zip(order, limits, strict=True):
            for is_backward in range(2):
                own = range(tables.first[2 * n + is_backward], tables.first[2 * n + is_backward + 1])
                place[2 + is_backward] = round(max((int(tables.moving[x]) for x in own), default=0) / self.unit)
        self.chain = BeamChain(table, limits, search.num_microbatches)
        self.scale = float(search.num_microbatches * table[:, 0, :, 0].sum(axis=1).max() + 2 * len(order))

    def _cells(self, ticks: Integers) -> Integers:
        return np.maximum(np.rint(ticks / self.unit), 1).astype(np.int64)

    def search_all(self, *, width: int, seed: int, has_time: Callable[[], bool]) -> Iterator[RecomputedOrders]:
        """What beams of so many nodes end with, by every guide while there is time; those that fit."""
        for number, (noise, progress, power) in enumerate(_GUIDES):
            if number and not has_time():
                return
            guide = BeamGuide(width, self.scale, power, progress * self.mean_cells, noise)
            found = self._read(search_beam(self.chain, guide, (seed + number) % 2**31))
            if found is not None:
                yield found

    def _read(self, orders: ShortIntegers) -> RecomputedOrders | None:
        """The orders of what the stages begin; None if there is nothing, or they do not fit."""
        device_orders: dict[int, DeviceOrder] = {}
        recomputed: list[list[int]] = [[] for _ in range(self.search.num_stages)]
        for n, backward, begun in zip(self.order, self.backward, orders.tolist(), strict=False):
            stage, counts = int(self.search.tables.stage[n]), [0, 0, 0]
            own = device_orders.setdefault(int(self.search.tables.device[n]), [])
            for kind in (kind for kind in begun if kind >= 0):
                column = 0 if kind <= F_RECOMPUTED else kind - 1
                if kind == F_RECOMPUTED:
                    recomputed[stage].append(counts[0])
                own.append(((FORWARD, backward, WEIGHT_GRAD)[column], stage, counts[column]))
                counts[column] += 1
        return self.search.of_orders(device_orders, recomputed) if device_orders else None


def _choose_unit(ticks: Integers) -> float:
    """The longest cell, a part of the median of all actions, that changes none of them much."""
    median = max(1.0, float(np.median(ticks[:, 0])))
    for parts in range(1, _MOST_CELLS + 1):
        unit = median / parts
        if (np.abs(np.maximum(np.rint(ticks / unit), 1) * unit - ticks) <= _ERROR * ticks).all():
            break
    return unit


def _take(values: Integers, order: list[int], *, columns: Integers) -> Integers:
    """[P, 2, 3, ...] of [N, 2, 4, ...]: the stage replicas in order, each with its kinds."""
    return np.stack([values[n][:, own] for n, own in zip(order, columns, strict=True)])


def make_beams(search: MicrobatchRecomputation) -> list[BeamStarts]:
    """Those of the stages if they are a chain with a device each, with I and W split where they can be and whole where
    that saves time; none otherwise.
    """
    order = _chain_of(search.tables)
    if order is None or search.num_microbatches > MOST_MICROBATCHES:
        return []
    kept = search.kept
    saves = any(replica.backward < replica.input_grad + replica.weight_grad for replica in kept.replicas)
    kinds = sorted({kept.can_split, kept.can_split and not saves}, reverse=True)
    return [BeamStarts(search, order, splits=splits) for splits in kinds]


def _chain_of(tables: OrderTables) -> list[int] | None:
    """Stage replicas first to last, if each has a device and a stage of its own, and sends to the next alone."""
    count, starts = len(tables.stage), np.flatnonzero(tables.waits[:, 0] == 0)
    is_single = len(set(tables.device.tolist())) == len(set(tables.stage.tolist())) == count
    if not is_single or len(starts) != 1 or tables.waits.max() > 1:
        return None
    order = [int(starts[0])]
    while len(order) < count:
        sent = tables.receiver[tables.first[2 * order[-1]] : tables.first[2 * order[-1] + 1]]
        if len(sent) != 1 or int(sent[0]) in order:
            return None
        order.append(int(sent[0]))
    return order

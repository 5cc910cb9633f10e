"""Several good and different partitions, for every number of stages and pattern of replication, to start from."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from math import isqrt

import numpy as np

from solver_models.instance import Integers
from solver_models.partition.closed_form import schedule_bound
from solver_models.partition.dynamic import Partitioner, Stages
from solver_models.partition.partition_instance import PartitionInstance

_TOLERANCE = 2e-3
"""How exactly the least largest load is found for each number of stages, as a part of it."""
_MOST_SHIFTED = 16
"""Partitions whose cuts are shifted."""
_RADIUS = 24
"""How far, in layers, cuts are shifted for the sake of fill and drain."""
_MOST_PROBES = 600_000
"""Intervals looked at per pattern of replication, at most."""
_FEWEST_LOOKS = 12
"""A pattern that can be looked at fewer times than this within `most_probes` is left out."""


def candidates(
    instance: PartitionInstance,
    *,
    limit: int,
    uneven: bool = True,
    has_time: Callable[[], bool] = lambda: True,
) -> list[Stages]:
    """At most `limit` different partitions that fit in memory, the one with the least schedule bound first.

    For each number of stages: the least largest load without replicas, with powers of two of them, and with any; the
    best are then cut again so that fill and drain count too. Without `uneven`, all stages have equally many replicas.
    Once `has_time` denies it, nothing more is tried.
    """
    partitioner = Partitioner(instance)
    found: dict[Stages, int] = {}
    per_stage_count = partial(_per_stage_count, partitioner, has_time=has_time)
    by_pattern = [per_stage_count(allowed) for allowed in _patterns(instance, uneven=uneven)]
    for stages in chain(*by_pattern, _in_simple_orders(partitioner, tolerance=_TOLERANCE)):
        if found and not has_time():
            break
        bound = schedule_bound(partitioner, stages)
        if bound is not None:
            found[stages] = bound
    for stages in sorted(found, key=lambda stages: found[stages])[:_MOST_SHIFTED]:
        if not has_time():
            break
        shifted = partitioner.shift_cuts(stages, radius=_RADIUS, within=found[stages], tolerance=_TOLERANCE)
        bound = None if shifted is None else schedule_bound(partitioner, shifted)
        if shifted is not None and bound is not None:
            found[shifted] = bound
    return sorted(found, key=lambda stages: found[stages])[:limit]


def _patterns(instance: PartitionInstance, *, uneven: bool) -> list[Integers]:
    """Which numbers of replicas are allowed: [R + 1] flags."""
    most = instance.most_replicas
    numbers = [
        replicas for replicas in np.flatnonzero(instance.allowed).tolist() if replicas <= instance.class_sizes.max()
    ]
    powers = [replicas for replicas in numbers if replicas & (replicas - 1) == 0]
    groups = [[1], powers, numbers] if uneven else [[replicas] for replicas in numbers]
    rows = np.zeros((len(groups), most + 1), np.int64)
    for row, group in zip(rows, groups, strict=True):
        row[group] = 1
    return list(np.unique(rows, axis=0)[::-1])


def _per_stage_count(partitioner: Partitioner, allowed: Integers, *, has_time: Callable[[], bool]) -> Iterator[Stages]:
    """The least largest load for each number of stages, all bisected together: one look serves every number."""
    instance = partitioner.instance
    most = min(instance.num_layers, len(instance.devices))
    looks = _MOST_PROBES // (most * int(partitioner.stride[-1]) * int(allowed.sum()) * len(instance.class_sizes))
    if looks < _FEWEST_LOOKS:
        return
    best: dict[int, Stages] = {}
    low, high = dict.fromkeys(_stage_counts(most), partitioner.lower_bound() - 1), dict[int, int]()
    limit: int | None = partitioner.ceiling()
    while limit is not None and looks and has_time():
        looks -= 1
        start, step = partitioner.within(limit, allowed=allowed, most_stages=most)
        for k in list(low):
            stages = partitioner.read(start, step, most_stages=k)
            if stages is None and k not in best:
                del low[k]
            elif stages is None:
                low[k] = max(low[k], limit)
            elif k not in high or limit < high[k]:
                best[k], high[k] = stages, min(limit, partitioner.largest_load(stages))
        limit = _next_limit(low, high, tolerance=_TOLERANCE)
    yield from best.values()


def _in_simple_orders(partitioner: Partitioner, *, tolerance: float) -> Iterator[Stages]:
    """The fastest devices, without replicas: in the order of their classes, the fastest first, and last."""
    instance = partitioner.instance
    work = instance.work[0, [0, 2], :, -1].sum(axis=0)
    devices = [c for c, count in enumerate(instance.class_sizes.tolist()) for _ in range(count)]
    by_speed = sorted(range(len(devices)), key=lambda device: work[devices[device]])
    for k in _stage_counts(min(instance.num_layers, len(devices))):
        fastest = by_speed[:k]
        for order in {tuple(devices[n] for n in some) for some in (fastest, fastest[::-1], sorted(fastest))}:
            stages = partitioner.least_load_in_order([(c, 1) for c in order], tolerance=tolerance)
            if stages is not None:
                yield stages


def _stage_counts(most: int) -> list[int]:
    """All counts up to 8, then ever fewer."""
    counts = list(range(1, min(most, 8) + 1))
    while counts[-1] < most:
        counts.append(min(most, counts[-1] * 5 // 4))
    return counts


def _next_limit(low: dict[int, int], high: dict[int, int], *, tolerance: float) -> int | None:
    """The geometric middle of the widest bracket that is still wider than the tolerance."""
    open_counts = [k for k in low if high[k] - low[k] > max(1, tolerance * low[k])]
    if not open_counts:
        return None
    widest = max(open_counts, key=lambda k: high[k] / max(low[k], 1))
    return max(low[widest] + 1, isqrt(max(low[widest], 0) * high[widest]))

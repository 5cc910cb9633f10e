"""Several good and different partitions, for every number of stages and pattern of replication, to start a search from."""

from collections.abc import Iterator

import numpy as np

from solver_models.instance import Integers
from solver_models.partition.analytic import schedule_bound
from solver_models.partition.dynamic import Partitioner, Stages
from solver_models.partition.instance import PartitionInstance

TOLERANCE = 2e-3
"""How exactly the least largest load is found for each number of stages."""


def candidates(instance: PartitionInstance, *, limit: int, uneven: bool = True) -> list[Stages]:
    """At most `limit` different partitions that fit in memory, the one with the least schedule bound first.

    For each number of stages: the least largest load without replicas, with powers of two of them, and with any; each is
    then cut again so that fill and drain count too. Without `uneven`, all stages have the same number of replicas.
    """
    partitioner = Partitioner(instance)
    found: dict[Stages, int] = {}
    for allowed in _patterns(instance, uneven=uneven):
        for stages in _per_stage_count(partitioner, allowed):
            order = [(stage.device_class, stage.replicas) for stage in stages]
            for cut in (stages, partitioner.best_for_order(order, tolerance=TOLERANCE)):
                bound = None if cut is None else schedule_bound(partitioner, cut)
                if cut is not None and bound is not None:
                    found.setdefault(cut, bound)
    return sorted(found, key=lambda stages: found[stages])[:limit]


def _patterns(instance: PartitionInstance, *, uneven: bool) -> list[Integers]:
    """Which numbers of replicas are allowed: [R + 1] flags."""
    most = instance.most_replicas
    numbers = [replicas for replicas in range(1, most + 1) if replicas <= instance.count.max()]
    powers = [replicas for replicas in numbers if replicas & (replicas - 1) == 0]
    if not uneven:
        groups = [[replicas] for replicas in numbers]
    elif len(numbers) <= 16:
        groups = [[1], powers, numbers]
    else:
        groups = [[1], powers, sorted({*powers, *numbers[:12], *(most // part for part in range(1, 9))} - {0})]
    rows = np.zeros((len(groups), most + 1), np.int64)
    for row, group in zip(rows, groups, strict=True):
        row[group] = 1
    return list(np.unique(rows, axis=0)[::-1])


def _per_stage_count(partitioner: Partitioner, allowed: Integers) -> Iterator[Stages]:
    """The least largest load for each number of stages, all bisected together: one look serves every number."""
    instance = partitioner.instance
    if not partitioner.can_enumerate:
        return
    most = min(instance.num_layers, instance.num_devices)
    best: dict[int, Stages] = {}
    low, high = dict.fromkeys(range(1, most + 1), partitioner.floor() - 1), {}
    limit: int | None = partitioner.ceiling()
    while limit is not None:
        start, step = partitioner.within(limit, allowed=allowed, most_stages=most)
        for k in list(low):
            stages = partitioner.read(start, step, most_stages=k)
            if stages is None and k not in best:
                del low[k]
            elif stages is None:
                low[k] = max(low[k], limit)
            elif k not in high or limit < high[k]:
                best[k], high[k] = stages, min(limit, partitioner.largest_load(stages))
        limit = _next_limit(low, high)
    yield from best.values()


def _next_limit(low: dict[int, int], high: dict[int, int]) -> int | None:
    """The middle of the widest bracket that is still wider than the tolerance."""
    open_counts = [k for k in low if high[k] - low[k] > max(1, TOLERANCE * low[k])]
    if not open_counts:
        return None
    widest = max(open_counts, key=lambda k: high[k] - low[k])
    return (low[widest] + high[widest]) // 2

"""Exact joint search where the problem is small: every partition and mapping, closed by a floor or by its best order.

Partitions are all maps of layers to stages that never decrease along an edge, mappings all ordered device groups per
stage that the rules allow. What survives the floor is ordered exactly: by complete enumeration of words where that is
cheap, by CP-SAT otherwise.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from solver_models.instance import Instance, Integers
from solver_models.moves import is_allowed
from solver_models.search import Searcher

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCase:
    """One partition and mapping that may still hold the best plan."""

    floor: int
    """Ticks that no order of it beats."""
    stage_of: Integers
    """[L] stage of every layer."""
    groups: Groups
    """Devices per stage."""


def open_cases(searcher: Searcher, *, limit: int) -> list[OpenCase] | None:
    """Every allowed partition and mapping that fits into memory, least floor first; None if more than `limit`."""
    found = enumerate_joint(searcher, limit=limit)
    if found is None:
        return None
    recompute = np.zeros(len(searcher.instance.state) + 1, np.int64)
    cases = []
    for stage_of, groups in found:
        floor = searcher.floor(stage_of, groups, recompute=recompute[: len(groups)])
        if floor is not None:
            cases.append(OpenCase(floor=floor, stage_of=stage_of, groups=groups))
    return sorted(cases, key=lambda case: case.floor)


def enumerate_joint(searcher: Searcher, *, limit: int) -> list[tuple[Integers, Groups]] | None:
    """Every allowed (partition, mapping), or None if there are more than `limit` to try, or more is to be decided."""
    instance = searcher.instance
    all_groups = _device_groups(len(instance.capacity), len(instance.table_of_replicas) - 1, limit=limit)
    if all_groups is None or instance.recompute or instance.wide is not None or instance.given_stages is not None:
        return None
    found, tried = [], 0
    most_stages = min(len(instance.state), len(instance.capacity) * instance.max_stages_per_device)
    for num_stages in range(1, most_stages + 1):
        if len(all_groups) ** num_stages > 20 * limit:
            return None
        mappings = list(_mappings(all_groups, num_stages, instance=instance))
        for stage_of in _partitions(instance, num_stages):
            tried += len(mappings)
            if tried > limit:
                return None
            for groups, start, devices in mappings:
                if is_allowed(searcher.layers, searcher.rules, instance.pinned, stage_of, start, devices):
                    found.append((stage_of, groups))
    return found


def _device_groups(num_devices: int, most_replicas: int, *, limit: int) -> list[tuple[int, ...]] | None:
    """Every ordered group of distinct devices; None if there are more than `limit`."""
    groups: list[tuple[int, ...]] = []
    for size in range(1, min(num_devices, most_replicas) + 1):
        for group in permutations(range(num_devices), size):
            groups.append(group)
            if len(groups) > limit:
                return None
    return groups


def _mappings(
    all_groups: list[tuple[int, ...]], num_stages: int, *, instance: Instance
) -> Iterator[tuple[Groups, Integers, Integers]]:
    """Groups per stage with no device above its number of stages, with the arrays that the rules are checked on."""
    for groups in product(all_groups, repeat=num_stages):
        devices = [device for group in groups for device in group]
        if max(devices.count(device) for device in set(devices)) <= instance.max_stages_per_device:
            start = np.cumsum([0, *(len(group) for group in groups)]).astype(np.int64)
            yield groups, start, np.array(devices, dtype=np.int64)


def _partitions(instance: Instance, num_stages: int) -> Iterator[Integers]:
    """Every map of layers onto `num_stages` stages that never decreases along an edge."""
    num_layers = len(instance.state)
    producers: list[list[int]] = [[] for _ in range(num_layers)]
    for producer, consumer in instance.edges[:, :2].tolist():
        producers[consumer].append(producer)

    def extend(chosen: list[int]) -> Iterator[Integers]:
        if len(chosen) == num_layers:
            if len(set(chosen)) == num_stages:
                yield np.array(chosen, dtype=np.int64)
            return
        least = max((chosen[producer] for producer in producers[len(chosen)]), default=0)
        for stage in range(least, num_stages):
            yield from extend([*chosen, stage])

    yield from extend([])

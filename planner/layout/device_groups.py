"""Devices as models have them, and the groups of several that the planner considers where widths may be chosen."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, combinations
from math import comb

from planner.plan import DeviceGroup, Stage
from planner.problem import Problem
from profiles.cluster import Cluster
from solver_models.device_rows import DeviceRow

MAX_GROUPS = 32
"""On clusters with no more groups than this, all of them are considered."""


def device_rows(cluster: Cluster) -> dict[str, DeviceRow]:
    """All that models know of devices, by name, in the cluster's order."""
    kinds = {name: number for number, name in enumerate(cluster.device_types)}
    return {each.name: DeviceRow(kind=kinds[each.type], memory=each.usable_bytes) for each in cluster.devices}


def open_widths(problem: Problem) -> tuple[int, ...]:
    """Widths above 1 that the options allow and at which some layer was measured, ascending."""
    most = min(problem.options.max_width, len(problem.cluster.devices))
    measured = {entry.width for layer in problem.profile.layers for entry in layer.wider}
    return tuple(sorted(width for width in measured if 1 < width <= most))


def list_groups(problem: Problem) -> tuple[DeviceGroup, ...]:
    """Groups of several devices, narrow ones first: consecutive devices of one type, within a host where it has enough.

    Every width has its own blocks: those of a host's devices in listed order, and then those of the devices that are
    left over. On small clusters all other groups follow, in every width behind its blocks. Groups of a given placement
    are added as they are.
    """
    given = chain.from_iterable(problem.options.placement or ())
    blocks = (block for width in open_widths(problem) for block in listed_blocks(problem, width))
    others = every_group(problem) if lists_every_group(problem) else ()
    wide = dict.fromkeys(tuple(group) for group in chain(blocks, others, given) if len(group) > 1)
    return tuple(sorted(wide, key=len))


def lists_every_group(problem: Problem) -> bool:
    """Whether the groups that are considered are all there are, but for the order of the members behind the first."""
    counts = Counter(device.type for device in problem.cluster.devices)
    return (
        sum(count * comb(count - 1, width - 1) for count in counts.values() for width in open_widths(problem))
        <= MAX_GROUPS
    )


def every_group(problem: Problem) -> Iterator[DeviceGroup]:
    """All groups of several devices of one type; only the first member matters, the others are in listed order."""
    types = {device.name: device.type for device in problem.cluster.devices}
    for width in open_widths(problem):
        for first, device_type in types.items():
            others = [name for name in types if types[name] == device_type and name != first]
            yield from ((first, *rest) for rest in combinations(others, width - 1))


def overlap_anywhere(stages: Iterable[Stage]) -> bool:
    """Whether two groups of a plan, of different stages, have some but not all of their devices in common."""
    used = {group for stage in stages for group in stage.replicas}
    return sum(map(len, used)) > len({name for group in used for name in group})


def has_listed_groups(problem: Problem, stages: Iterable[Stage]) -> bool:
    """Whether stages use single devices, and groups that are listed and equal or disjoint, only."""
    stages = tuple(stages)
    used = {group for stage in stages for group in stage.replicas}
    listed = {group for group in used if len(group) == 1} | set(list_groups(problem))
    return used <= listed and not overlap_anywhere(stages)


def listed_blocks(problem: Problem, width: int) -> Iterator[DeviceGroup]:
    """Disjoint groups of one type and width: those of every host's devices, then of every domain's that are left over,
    and then those of what is left over still.
    """
    hosts = {device.name: device.host or device.name for device in problem.cluster.devices}
    domains = problem.cluster.domains
    for device_type in problem.cluster.device_types:
        rest = [device.name for device in problem.cluster.devices if device.type == device_type]
        for places in (hosts, domains, dict.fromkeys(rest, "")):
            together: dict[str, list[str]] = {}
            for name in rest:
                together.setdefault(places.get(name, name), []).append(name)
            groups = [_cut(names[: len(names) - len(names) % width], width) for names in together.values()]
            yield from (found := list(chain.from_iterable(groups)))
            taken = set(chain.from_iterable(found))
            rest = [name for name in rest if name not in taken]


def _cut(names: list[str], width: int) -> Iterable[DeviceGroup]:
    return (tuple(names[start : start + width]) for start in range(0, len(names), width))

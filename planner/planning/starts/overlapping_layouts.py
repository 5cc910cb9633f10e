"""Stages whose groups overlap: layers that exist only wider on all the devices they need, the others beside them.

The layers that single devices can run are a problem of their own, which the search knows how to lay out. Its stages are
cut where a wide layer lies between their layers, and the wide layers are put on groups of the devices.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import islice, product
from random import Random

from planner.layout.device_groups import list_groups, overlap_anywhere
from planner.plan import DeviceGroup, Stage
from planner.problem import Options, Problem
from profiles.model_profile import ModelProfile
from profiles.strip_layers import without_layers

Unit = tuple[str, ...]
"""Layers that one wide stage holds: a stage of a given partition, otherwise a single layer."""


def needs_overlaps(problem: Problem) -> bool:
    """Whether plans with groups that overlap are looked for: some layers exist only wider, or a placement says so."""
    if problem.options.placement is not None:
        return overlap_anywhere(given_stages(problem))
    return bool(problem.only_wider) and problem.options.max_stages_per_device > 1


def given_stages(problem: Problem) -> tuple[Stage, ...]:
    """The stages of a problem whose partition and placement are given."""
    pairs = zip(problem.options.partition or (), problem.options.placement or (), strict=True)
    return tuple(Stage(layers=layers, replicas=groups) for layers, groups in pairs)


def _wide_units(problem: Problem) -> list[Unit]:
    """What wide stages hold, by the order of the layers."""
    wide = set(problem.only_wider)
    if problem.options.partition is not None:
        return [layers for layers in problem.options.partition if wide.intersection(layers)]
    return [(name,) for name in problem.profile.topological_order if name in wide]


def narrow_problem(problem: Problem, units: Sequence[Unit]) -> Problem | None:
    """The layers beside the wide ones, with the room and the number of stages that these leave on every device.

    What flows through wide layers flows past them here. None where nothing is left for other stages.
    """
    wide, profile = {name for unit in units for name in unit}, problem.profile
    everyone = [unit for unit in units if _least_width(problem, unit) == len(problem.cluster.devices)]
    chunks = problem.options.max_stages_per_device - len(everyone)
    if len(wide) == len(profile.layers) or chunks < 1:
        return None
    resident = sum(_state_bytes(problem, name) for unit in everyone for name in unit)
    devices = tuple(
        replace(device, memory_bytes=max(device.usable_bytes - resident, 1), reserved_bytes=0)
        for device in problem.cluster.devices
    )
    return Problem(
        profile=without_layers(profile, wide),
        cluster=replace(problem.cluster, devices=devices),
        num_microbatches=problem.num_microbatches,
        options=_narrow_options(problem.options, units, wide=wide, chunks=chunks),
    )


def _narrow_options(options: Options, units: Sequence[Unit], *, wide: set[str], chunks: int) -> Options:
    partition = options.partition and tuple(layers for layers in options.partition if layers not in units)
    pinned = tuple(pin for pin in options.pinned if pin.layer not in wide)
    return replace(options, partition=partition, pinned=pinned, max_stages_per_device=chunks, idle_devices=True)


def _least_width(problem: Problem, unit: Unit) -> int:
    """The width of the narrowest group that can run all layers of a unit; more than there are devices if none can."""
    return min(_widths(problem, unit), default=len(problem.cluster.devices) + 1)


def _widths(problem: Problem, unit: Unit) -> set[int]:
    layers = [problem.profile.by_name[name] for name in unit]
    types = problem.cluster.device_types
    return {w for kind in types for w in set.intersection(*(set(problem.widths_of(layer, kind)) for layer in layers))}


def _state_bytes(problem: Problem, name: str) -> int:
    layer = problem.profile.by_name[name]
    entry = layer.bytes_at(len(problem.cluster.devices))
    return 0 if entry is None else entry.state_bytes


class OverlappingLayouts:
    """Layouts of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.units = _wide_units(problem)
        wide = {name for unit in self.units for name in unit}
        self.ancestors = _wide_ancestors(problem.profile, wide)
        """Per layer, the wide ones that come before it."""
        self.place = {name: number for number, name in enumerate(problem.profile.topological_order)}

    def around(self, base: Sequence[Stage], *, most: int, seed: int) -> Iterator[tuple[Stage, ...]]:
        """At most so many layouts with the stages of `base`, cut where they must be, and the wide ones beside them.

        First those whose groups begin with a device of a stage that sends to them, or that they send to.
        """
        parts = [part for stage in base for part in self._cut(stage)]
        choices = [self._groups(unit, parts) for unit in self.units]
        combined = list(islice(product(*choices), most * most))
        Random(seed).shuffle(rest := combined[1:])
        made = (self._combined(parts, groups) for groups in [*combined[:1], *rest])
        yield from islice((stages for stages in made if stages is not None), most)

    def _cut(self, stage: Stage) -> Iterator[Stage]:
        """The stage, or where wide layers come before some of its layers only, its parts."""
        known: dict[frozenset[str], list[str]] = {}
        for name in sorted(stage.layers, key=self.place.__getitem__):
            known.setdefault(self.ancestors[name], []).append(name)
        for names in known.values():
            yield stage if len(known) == 1 else replace(stage, layers=tuple(names))

    def _groups(self, unit: Unit, parts: Sequence[Stage]) -> list[DeviceGroup]:
        """The groups that can run a unit, the widest first; each begins with a device of a neighbour, if it has one."""
        near = [part.replicas[0][0] for name in self._neighbours(unit) for part in parts if name in part.layers]
        types = {device.name: device.type for device in self.problem.cluster.devices}
        widths = {kind: self._widths_on(unit, kind) for kind in set(types.values())}
        sets = {frozenset(group): group for group in reversed(list_groups(self.problem))}
        found = []
        for group in sets.values():
            if len(group) in widths[types[group[0]]]:
                heads = [name for name in dict.fromkeys(near) if name in group] or [group[0]]
                found += [(head, *(name for name in group if name != head)) for head in heads]
        return sorted(found, key=len, reverse=True)

    def _widths_on(self, unit: Unit, device_type: str) -> set[int]:
        layers = [self.problem.profile.by_name[name] for name in unit]
        return set.intersection(*(set(self.problem.widths_of(layer, device_type)) for layer in layers))

    def _neighbours(self, unit: Unit) -> list[str]:
        edges = self.problem.profile.edges
        before = [edge.producer for edge in edges if edge.consumer in unit]
        return [*before, *(edge.consumer for edge in edges if edge.producer in unit)]

    def _combined(self, parts: Sequence[Stage], groups: Sequence[DeviceGroup]) -> tuple[Stage, ...] | None:
        """All stages in the order of their dependencies; None if a device would hold too many."""
        wide = [Stage(layers=unit, replicas=(group,)) for unit, group in zip(self.units, groups, strict=True)]
        stages = [*parts, *wide]
        held = Counter(name for stage in stages for group in stage.replicas for name in group)
        if max(held.values()) > self.problem.options.max_stages_per_device:
            return None
        return self._in_order(stages)

    def _in_order(self, stages: Sequence[Stage]) -> tuple[Stage, ...] | None:
        """Every stage behind those that send to it, otherwise by its first layer; None if some wait in a circle."""
        stage_of = {name: number for number, stage in enumerate(stages) for name in stage.layers}
        pairs = {(stage_of[edge.producer], stage_of[edge.consumer]) for edge in self.problem.profile.edges}
        pairs = {(a, b) for a, b in pairs if a != b}
        waiting = Counter(b for _, b in pairs)
        rank = [min(self.place[name] for name in stage.layers) for stage in stages]
        ready = [(rank[number], number) for number in range(len(stages)) if not waiting[number]]
        heapify(ready)
        order = []
        while ready:
            number = heappop(ready)[1]
            order.append(stages[number])
            for after in (b for a, b in pairs if a == number):
                waiting[after] -= 1
                if not waiting[after]:
                    heappush(ready, (rank[after], after))
        return tuple(order) if len(order) == len(stages) else None


def _wide_ancestors(profile: ModelProfile, wide: set[str]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for name in profile.topological_order:
        before = [edge.producer for edge in profile.edges if edge.consumer == name]
        found[name] = frozenset().union(*(found[each] | ({each} & wide) for each in before))
    return found

"""Do the statements of a question leave room for any plan? Partition, placement, pins and limits, one against another.

What is found needs no search and no memory: it is refused as the mistake that it is, with both statements and a remedy.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property

from planner.batch_problem import Question, candidates_of
from planner.errors import ContradictionError
from planner.plan import DeviceGroup
from planner.problem import Problem
from profiles.cluster import Device
from profiles.model_profile import Layer


def require_consistent(question: Question) -> None:
    """Raise ContradictionError with two statements and a remedy, if no plan can satisfy both.

    Where the size of microbatches is open, only if that holds at every size.
    """
    found = [next(_conflicts(problem), None) for problem in candidates_of(question)]
    if found and all(found):
        raise ContradictionError(f"options: {found[0]}")


def _conflicts(problem: Problem) -> Iterator[str]:
    """Every pair of statements that contradict each other, in a sentence without its subject."""
    decided = _Decided(problem)
    for rule in RULES:
        yield from rule(decided)


class _Decided:
    """What the options decide, for the rules of this page."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.options = problem, problem.options
        self.layers, self.devices = problem.profile.by_name, problem.cluster.by_name
        self.partition = self.options.partition or ()
        self.placement = self.options.placement or ()

    @cached_property
    def stage_of(self) -> dict[str, int]:
        """The stage of every layer, if they are given."""
        return {name: number for number, names in enumerate(self.partition) for name in names}

    @cached_property
    def pinned(self) -> dict[str, str]:
        """The device of every pinned layer."""
        return {pin.layer: pin.device for pin in self.options.pinned}

    def pins_of(self, number: int) -> dict[str, str]:
        """Devices that a stage of the partition must be on, each with a layer that says so."""
        return {self.pinned[name]: name for name in self.partition[number] if name in self.pinned}

    def widths(self, names: tuple[str, ...], device_type: str) -> set[int]:
        """Widths at which all these layers can run on devices of a type."""
        found = [set(self.problem.widths_of(self.layers[name], device_type)) for name in names]
        return set.intersection(*found) if found else set()

    def all_widths(self, layer: Layer) -> set[int]:
        """Widths at which a layer can run on devices of some type."""
        return {width for kind in self.types for width in self.problem.widths_of(layer, kind)}

    def most_width(self, names: tuple[str, ...]) -> int:
        """Devices that the widest group of these layers can have."""
        return max((max(self.widths((name,), kind), default=1) for name in names for kind in self.types), default=1)

    @property
    def types(self) -> tuple[str, ...]:
        """Of the devices."""
        return tuple(self.problem.cluster.device_types)


def _stage_without_layers(decided: _Decided) -> Iterator[str]:
    for number, names in enumerate(decided.partition):
        if not names:
            yield f"partition gives stage {number} no layers; leave the stage out"


def _stages_out_of_order(decided: _Decided) -> Iterator[str]:
    for edge in decided.problem.profile.edges if decided.partition else ():
        first, second = decided.stage_of[edge.producer], decided.stage_of[edge.consumer]
        if first > second:
            yield (
                f"partition has layer {edge.producer!r} in stage {first} and {edge.consumer!r} in stage {second}, but "
                f"the profile has an edge from {edge.producer!r} to {edge.consumer!r}; give the stages in the order of "
                "the edges, with no layer between two of the same stage"
            )


def _edge_skips(decided: _Decided) -> Iterator[str]:
    for edge in decided.problem.profile.edges if decided.partition and not decided.options.skip_edges else ():
        first, second = decided.stage_of[edge.producer], decided.stage_of[edge.consumer]
        if second > first + 1:
            yield (
                f"partition has layer {edge.producer!r} in stage {first} and {edge.consumer!r}, which it feeds, in "
                f"stage {second}, but skip_edges = false; set skip_edges to true, or give other stages"
            )


def _stage_at_no_width(decided: _Decided) -> Iterator[str]:
    for number, names in enumerate(decided.partition):
        if names and not any(decided.widths(names, kind) for kind in decided.types):
            known = "; ".join(f"{name!r} {_measured(decided, decided.layers[name])}" for name in names[:3])
            yield (
                f"partition has {len(names)} layers in stage {number}, but max_width = {decided.options.max_width}, "
                f"and no width is measured for all of them ({known}); give them stages of their own, or measure more"
            )


def _measured(decided: _Decided, layer: Layer) -> str:
    return f"at {', '.join(map(str, sorted(decided.all_widths(layer))))}"


def _group_wrong(decided: _Decided) -> Iterator[str]:
    """Every stage has groups of devices that differ, of one type and one width."""
    for number, groups in enumerate(decided.placement):
        stage = f"placement gives stage {number} of partition"
        if not groups or not all(groups):
            yield f"{stage} {'no device' if not groups else 'a replica without a device'}; name one, or drop placement"
            continue
        twice = [name for name, count in Counter(name for group in groups for name in group).items() if count > 1]
        if twice:
            yield f"{stage} device {twice[0]!r} twice; name every device of a stage once"
        for group in groups:
            types = sorted({decided.devices[name].type for name in group})
            if len(types) > 1:
                yield f"{stage} a group of devices of types {' and '.join(types)}; a group has devices of one type"
        widths = sorted({len(group) for group in groups})
        if len(widths) > 1:
            yield f"{stage} groups of {' and '.join(map(str, widths))} devices; groups of a stage have one width"


def _group_too_wide(decided: _Decided) -> Iterator[str]:
    most = decided.options.max_width
    for number, group in _groups(decided):
        if len(group) > most:
            yield (
                f"placement gives stage {number} a group of {len(group)} devices ({', '.join(group[:4])}), but "
                f"max_width = {most}; raise max_width, or write replicas as groups of their own: [[...], [...]]"
            )


def _group_unmeasured(decided: _Decided) -> Iterator[str]:
    for number, group in _groups(decided):
        device: Device = decided.devices[group[0]]
        for name in decided.partition[number]:
            if len(group) not in decided.problem.widths_of(decided.layers[name], device.type):
                known = _measured(decided, decided.layers[name])
                yield (
                    f"placement gives stage {number} groups of {len(group)} devices of type {device.type!r}, but layer "
                    f"{name!r} of that stage was measured {known} devices; measure it there, or place it otherwise"
                )


def _groups_overlap(decided: _Decided) -> Iterator[str]:
    """Groups are equal or disjoint; earlier releases made other plans, too, which are still verified."""
    first = dict[str, tuple[int, DeviceGroup]]()
    for number, group in _groups(decided):
        for name in group:
            other, known = first.setdefault(name, (number, group))
            if known != group:
                yield (
                    f"placement gives stage {other} the group {'+'.join(known[:4])} and stage {number} the group "
                    f"{'+'.join(group[:4])}, which overlap; give both the same devices in one order, or different ones"
                )


def _shares_all_devices(decided: _Decided) -> Iterator[str]:
    """Where a layer needs all devices at once, every other layer runs on all of them, too."""
    most, sizes = len(decided.devices), {name: decided.all_widths(layer) for name, layer in decided.layers.items()}
    shared = next((name for name, widths in sizes.items() if widths == {most}), None)
    narrow = next((name for name, widths in sizes.items() if most not in widths), None)
    if most > 1 and shared is not None and narrow is not None:
        yield (
            f"max_width = {decided.options.max_width}, but layer {shared!r} was measured at width {most} only, all "
            f"devices, and layer {narrow!r} not at that width, and groups of devices are equal or disjoint; measure "
            f"{narrow!r} at width {most}, or {shared!r} on fewer devices"
        )


def _groups(decided: _Decided) -> Iterator[tuple[int, DeviceGroup]]:
    for number, groups in enumerate(decided.placement):
        yield from ((number, group) for group in groups if group)


def _too_many_replicas(decided: _Decided) -> Iterator[str]:
    most = decided.options.max_replicas
    for number, groups in enumerate(decided.placement):
        if most is not None and len(groups) > most:
            yield (
                f"placement gives stage {number} {len(groups)} replicas, but max_replicas = {most}; raise "
                "max_replicas, or name fewer groups"
            )


def _uneven_replicas(decided: _Decided) -> Iterator[str]:
    counts = {len(groups): number for number, groups in enumerate(decided.placement) if len(groups) > 1}
    if len(counts) > 1 and not decided.options.uneven_replication:
        said = " and ".join(f"stage {number} {count} replicas" for count, number in list(counts.items())[:2])
        yield f"placement gives {said}, but uneven_replication = false; set it to true, or give equally many"


def _listed_uncut(decided: _Decided) -> Iterator[str]:
    """Microbatches that are listed are cut by the replicas of every stage, or dealt whole to equally many of each."""
    counts = list(map(len, decided.placement))
    for number, count in enumerate(counts if len(set(counts)) > 1 else ()):
        size = next((size for size in decided.problem.sizes if size % count), None)
        if size is not None:
            yield (
                f"placement gives stage {number} {count} replicas, but microbatches lists one of {size} samples, which "
                f"{count} replicas cannot cut; give all stages equally many replicas, or sizes that {count} divides"
            )


def _too_many_placed(decided: _Decided) -> Iterator[str]:
    most = decided.options.max_stages_per_device
    held = Counter(name for groups in decided.placement for name in {name for group in groups for name in group})
    for device, count in held.items():
        if count > most:
            yield (
                f"placement puts {count} stages of partition on device {device!r}, but max_stages_per_device = {most}; "
                f"raise it to {count}, or place a stage elsewhere"
            )


def _placed_idle(decided: _Decided) -> Iterator[str]:
    if decided.options.idle_devices or decided.options.split_placement or not decided.placement:
        return
    used = {name for _, group in _groups(decided) for name in group}
    for name in decided.devices.keys() - used:
        yield f"placement leaves device {name!r} without a stage, but idle_devices = false; set it to true, or use it"


def _pinned_elsewhere(decided: _Decided) -> Iterator[str]:
    for layer, device in decided.pinned.items() if decided.placement else ():
        groups = decided.placement[decided.stage_of[layer]]
        if not all(device in group for group in groups):
            where = ", ".join("+".join(group) for group in groups[:4])
            yield (
                f"pinned has layer {layer!r} on device {device!r}, but placement has its stage "
                f"{decided.stage_of[layer]} on {where}; drop the pin, or place the stage on {device!r} alone"
            )


def _pinned_separately(decided: _Decided) -> Iterator[str]:
    """A stage with layers that are pinned to several devices needs a group that has all of them."""
    for number, names in enumerate(decided.partition):
        pins = decided.pins_of(number)
        types = {decided.devices[device].type for device in pins}
        widths = decided.widths(names, min(types)) if len(types) == 1 else set()
        if len(pins) > 1 and max(widths, default=0) < len(pins):
            (first, one), (second, other) = list(pins.items())[:2]
            yield (
                f"pinned has layer {one!r} on device {first!r} and {other!r} on {second!r}, but partition has both in "
                f"stage {number}, which no group of {len(pins)} devices can run; drop a pin, or give them two stages"
            )


def _pinned_together(decided: _Decided) -> Iterator[str]:
    """No device gets more stages of the partition by pins than it may hold."""
    most = decided.options.max_stages_per_device
    held = Counter(device for number in range(len(decided.partition)) for device in decided.pins_of(number))
    for device, count in held.items():
        if count > most:
            yield (
                f"pinned puts {count} stages of partition on device {device!r}, but max_stages_per_device = {most}; "
                f"raise it to {count}, or drop a pin"
            )


def _pinned_looped(decided: _Decided) -> Iterator[str]:
    """Layers of a device with one of another device on a way between them are in different stages."""
    if decided.partition or decided.options.max_width > 1:
        return
    profile, most = decided.problem.profile, decided.options.max_stages_per_device
    for device in dict.fromkeys(decided.pinned.values()):
        runs = dict[str, tuple[int, bool]]()
        for name in profile.topological_order:
            before = [runs[edge.producer] for edge in profile.edges if edge.consumer == name]
            count, is_away = max(before, default=(0, True))
            pin = decided.pinned.get(name)
            if pin == device:
                count, is_away = count + is_away, False
            runs[name] = count, is_away or pin not in (None, device)
        count = max(count for count, _ in runs.values())
        if count > most:
            yield (
                f"the layers pinned to device {device!r} are in {count} stages at least, for others between them are "
                f"pinned elsewhere, but max_stages_per_device = {most}; raise it to {count}, or drop a pin"
            )


def _too_many_stages(decided: _Decided) -> Iterator[str]:
    devices, most = len(decided.devices), decided.options.max_stages_per_device
    least = [
        min((min(widths) for kind in decided.types if (widths := decided.widths(names, kind))), default=1)
        for names in decided.partition
    ]
    if sum(least) > most * devices:
        yield (
            f"partition has {len(decided.partition)} stages, but max_stages_per_device = {most} on {devices} devices; "
            f"raise it to {-(-sum(least) // devices)}, or give fewer stages"
        )


def _too_few_stages(decided: _Decided) -> Iterator[str]:
    """Without idle devices every device has a stage: of so many stages, on so many groups, of so many devices."""
    options, devices = decided.options, len(decided.devices)
    if options.idle_devices or options.split_placement or decided.placement or decided.problem.microbatches is not None:
        return
    stages = decided.partition or tuple((name,) for name in decided.layers)
    most = decided.problem.most_replicas
    # every replica of a stage with a pinned layer has that layer's device, so there is one, and others share the device
    pins = [{decided.pinned[name] for name in names if name in decided.pinned} for names in stages]
    room = len(set().union(*pins)) + sum(
        max(decided.most_width(names) - len(own), 0) if own else most * decided.most_width(names)
        for own, names in zip(pins, stages, strict=True)
    )
    if room < devices:
        what = f"partition has {len(stages)} stages" if decided.partition else f"the profile has {len(stages)} layers"
        held, count = ", ".join(sorted(set().union(*pins))), sum(map(bool, pins))
        few = f", of which pinned leaves {count} one replica, on {held}" if count else ""
        yield (
            f"idle_devices = false, but {what}{few}, which on at most {most} replicas (microbatch_size = "
            f"{decided.problem.profile.microbatch_size}, cut into whole samples) are on {room} of {devices} devices at "
            "most; set it to true, or allow more replicas"
        )


RULES: tuple[Callable[[_Decided], Iterator[str]], ...] = (
    _stage_without_layers,
    _stages_out_of_order,
    _edge_skips,
    _stage_at_no_width,
    _group_wrong,
    _group_too_wide,
    _group_unmeasured,
    _groups_overlap,
    _shares_all_devices,
    _too_many_replicas,
    _uneven_replicas,
    _listed_uncut,
    _too_many_placed,
    _placed_idle,
    _pinned_elsewhere,
    _pinned_separately,
    _pinned_together,
    _pinned_looped,
    _too_many_stages,
    _too_few_stages,
)
"""The rules, in the order in which they are applied."""

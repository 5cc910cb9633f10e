"""Which steps of a recording belong to which layer, and which tensors pass between layers.

What follows from the batch without weights and chance (masks, positions) is computed again in every layer that wants
it. Other tensors go straight to the layers that take them, or are handed on from layer to layer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn

from planner.execute.model.cut.blocks import Blocks
from planner.execute.model.cut.recording import ForwardRecording, RecordedCall
from planner.execute.model.cut.trees import ScaledLength, leaves_of

BATCH = -1
"""Stands for the batch where the place of a segment would stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerSteps:
    """Calls that a layer repeats, with what they take and give."""

    name: str
    steps: tuple[int, ...]
    """Their places in the recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """What a layer does, takes and gives."""

    steps: tuple[int, ...]
    """Its own, and those that it repeats; places in the recording."""
    takes: tuple[int, ...]
    """The segments all of whose tensors it takes."""
    leaves: tuple[int, ...]
    """Numbers of the tensors that it gives."""
    constant: frozenset[int]
    """Those of its steps that give the same for every batch of one size."""


def find_segments(recording: ForwardRecording, blocks: Blocks, *, module: nn.Module) -> list[_LayerSteps]:
    """A segment begins with each block; what lies before, between and behind lists is one if it has weights."""
    runs: list[tuple[str, list[int]]] = [("", [])]
    for place, step in enumerate(recording.steps):
        if _begins(step, blocks, module=module):
            runs.append((str(step.call), []))
        runs[-1][1].append(place)
    (_, before), *runs = runs
    name, found = _name_of(before, recording, module=module), list[_LayerSteps]()
    if name or not runs:
        found.append(_LayerSteps(name=name or "all", steps=tuple(before)))
        before = []
    for number, (block, places) in enumerate(runs):
        own, after = [*before, places[0]], places[1:]
        before = []
        home = blocks.lists[block]
        is_end = number + 1 == len(runs) or blocks.lists[runs[number + 1][0]] != home
        name = _name_of(after, recording, module=module) if home and is_end else ""
        found.append(_LayerSteps(name=block, steps=tuple(own if name else own + after)))
        found += [_LayerSteps(name=name, steps=tuple(after))] if name else []
    return _with_own_names(found)


def _begins(step: RecordedCall, blocks: Blocks, *, module: nn.Module) -> bool:
    """Blocks without weights begin nothing, unless the model is nothing but its children."""
    if not isinstance(step.call, str) or step.call not in blocks.lists:
        return False
    return not blocks.lists[step.call] or _has_weights(module.get_submodule(step.call))


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _name_of(places: Sequence[int], recording: ForwardRecording, *, module: nn.Module) -> str:
    """The path of the first module with weights, or weight, that the steps use; empty if there is none."""
    parameters = {path for path, _ in module.named_parameters(remove_duplicate=False)}
    for place in places:
        step = recording.steps[place]
        if isinstance(step.call, str) and _has_weights(module.get_submodule(step.call)):
            return step.call
        for number in step.takes:
            if recording.attributes.get(number) in parameters:
                return recording.attributes[number]
    return ""


def _with_own_names(segments: Iterable[_LayerSteps]) -> list[_LayerSteps]:
    """A module that is called again gives its name with a number."""
    taken: dict[str, _LayerSteps] = {}
    for segment in segments:
        number, name = 2, segment.name
        while name in taken:
            name, number = f"{segment.name}.{number}", number + 1
        taken[name] = _LayerSteps(name=name, steps=segment.steps)
    return list(taken.values())


def find_decisions(recording: ForwardRecording) -> list[RecordedCall]:
    """Guards on what the batch or a layer gives: with other samples they may turn out otherwise. Chance aside."""
    open_ones = {*recording.inputs}
    found = []
    for step in recording.steps:
        if isinstance(step.call, str) or open_ones.intersection(step.takes):
            found += [step] if step.is_guard else []
            open_ones.update(step.gives)
    return found


class Liveness:
    """What is computed where, and what has to pass."""

    def __init__(
        self, recording: ForwardRecording, segments: Sequence[_LayerSteps], *, wanted: Sequence[int], buffers: set[str]
    ) -> None:
        """`wanted`: numbers that the last segment gives; `buffers`: paths of tensors that are not trained."""
        self.recording, self.segments, self.wanted, self.buffers = recording, segments, tuple(wanted), buffers
        self.maker = {number: place for place, step in enumerate(recording.steps) for number in step.gives}
        self.still = self._find_still()
        self.free = self._find_free()
        self.needed = self._find_needed()
        self.home = {place: number for number, segment in enumerate(segments) for place in segment.steps}

    def _find_still(self) -> set[int]:
        """Numbers that are the same for every batch of one size: a guard on them is needless."""
        attributes, still = self.recording.attributes.items(), self.buffers - self.recording.written
        return self._follow({*self.recording.constants} | {number for number, path in attributes if path in still})

    def _find_free(self) -> set[int]:
        """Numbers that follow from the batch, buffers and constants alone."""
        return self._follow({*self.still, *self.recording.inputs})

    def _find_needed(self) -> set[int]:
        """Places of steps that something hangs on: modules, chance, buffers that change, and guards on the
        way there always count.
        """
        wanted, needed = set(self.wanted), set[int]()
        for place in reversed(range(len(self.recording.steps))):
            step = self.recording.steps[place]
            counts = (
                isinstance(step.call, str)
                or step.is_random
                or step.writes
                or (step.is_guard and not self.still.issuperset(step.takes))
            )
            if counts or wanted & set(step.gives):
                needed.add(place)
                wanted.update(step.takes)
        return needed

    def _follow(self, start: set[int]) -> set[int]:
        """Numbers that functions make of nothing but these; functions that draw aside."""
        found = set(start)
        for step in self.recording.steps:
            if not isinstance(step.call, str) and not step.is_random and found.issuperset(step.takes):
                found.update(step.gives)
        return found

    def _closure(self, numbers: Iterable[int]) -> tuple[set[int], set[int]]:
        """Of free numbers: the steps that make them, and where these come from."""
        steps, ends, waiting = set[int](), set[int](), list(numbers)
        while waiting:
            number = waiting.pop()
            if number not in self.maker:
                ends.add(number)
            elif self.maker[number] not in steps:
                steps.add(self.maker[number])
                waiting += self.recording.steps[self.maker[number]].takes
        return steps, ends

    def find_passings(self) -> list[Passing]:
        """Per segment; raises ValueError where one gives nothing that is used."""
        own = [self._own_steps(segment) for segment in self.segments]
        wants = [{number for place in steps for number in self.recording.steps[place].takes} for steps in own]
        wants[-1] |= set(self.wanted)
        produced = {number: self.home[place] for number, place in self.maker.items() if number not in self.free}
        users: dict[int, list[int]] = {}
        for segment, numbers in enumerate(wants):
            for number in numbers - self.free:
                if number in produced and produced[number] != segment:
                    users.setdefault(number, []).append(segment)
        leaves, relayed = _find_leaves(produced, users, count=len(self.segments))
        leaves[-1] = list(self.wanted)
        passings = []
        for segment, numbers in enumerate(wants):
            repeated, ends = self._closure(numbers & self.free)
            steps = tuple(sorted(repeated | set(own[segment])))
            takes = self._takes(segment, users, produced=produced, relayed=relayed)
            needed = self._sizes_of(steps)
            if ends & set(self.recording.inputs) or not takes or not self._tells(takes, leaves, needed=needed):
                takes.insert(0, BATCH)
            if not leaves[segment]:
                raise ValueError(f"no layer uses the output of {self.segments[segment].name!r}")
            constant = frozenset(s for s in steps if self._is_constant(s))
            passings.append(Passing(steps=steps, takes=tuple(takes), leaves=tuple(leaves[segment]), constant=constant))
        return passings

    def _is_constant(self, place: int) -> bool:
        step = self.recording.steps[place]
        return bool(step.gives) and self.still.issuperset(step.gives)

    def _own_steps(self, segment: _LayerSteps) -> list[int]:
        """Those that are not free, and guards."""
        steps = self.recording.steps
        return [
            place
            for place in segment.steps
            if place in self.needed
            and (
                steps[place].is_guard
                or isinstance(steps[place].call, str)
                or not self.free.issuperset(steps[place].gives)
            )
        ]

    def _takes(
        self, segment: int, users: dict[int, list[int]], *, produced: dict[int, int], relayed: set[int]
    ) -> list[int]:
        takes = set()
        for number, segments in users.items():
            if number in relayed and produced[number] < segment <= max(segments):
                takes.add(segment - 1)
            elif segment in segments:
                takes.add(produced[number])
        return sorted(takes)

    def _sizes_of(self, steps: Iterable[int]) -> set[int]:
        """The sizes that the arguments of some steps depend on."""
        leaves = (leaf for place in steps for leaf in leaves_of(self.recording.steps[place].arguments))
        return {size for leaf in leaves if isinstance(leaf, ScaledLength) for size in leaf.needs}

    def _tells(self, takes: Sequence[int], leaves: Sequence[Sequence[int]], *, needed: set[int]) -> bool:
        arriving = [number for taken in takes for number in leaves[taken]]
        return needed <= set(find_tellers(self.recording, arriving))


def find_tellers(recording: ForwardRecording, numbers: Sequence[int]) -> dict[int, tuple[int, int, ScaledLength]]:
    """Per size that one of the tensors tells: the tensor's place, the dimension, and how long that is."""
    found: dict[int, tuple[int, int, ScaledLength]] = {}
    for place, number in enumerate(numbers):
        for dimension, length in enumerate(recording.shapes[number]):
            if isinstance(length, ScaledLength) and len(length.needs) == 1:
                (size,) = length.needs
                found.setdefault(size, (place, dimension, length))
    return found


def _find_leaves(
    produced: dict[int, int], users: dict[int, list[int]], *, count: int
) -> tuple[list[list[int]], set[int]]:
    """What each segment gives, and which numbers are handed on by those between: those that go far, out of a segment
    that gives more than them, for all that it gives arrives where any of it is taken.
    """
    relayed = set[int]()
    while True:
        leaves = [
            [
                number
                for number, segments in users.items()
                if produced[number] == segment or (number in relayed and produced[number] < segment < max(segments))
            ]
            for segment in range(count)
        ]
        more = {
            number
            for number, segments in users.items()
            if number not in relayed and len(leaves[produced[number]]) > 1 and max(segments) > produced[number] + 1
        }
        if not more:
            return leaves, relayed
        relayed |= more

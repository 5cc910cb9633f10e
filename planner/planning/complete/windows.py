"""Parts of the complete model: stages near those of a plan, all else open, in windows that grow until they are whole.

Local branching (Fischetti and Lodi, 2003) on the layers of stages: a window has the model's own variables, but for the
sets of layers that are far from where a plan has them. A solver closes small ones in a moment, and starts the next
from what it found.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from solver_models.complete.complete_instance import CompleteInstance

Cut = tuple[frozenset[int], ...]
"""The layers of every stage, by number."""

_FIRST_MOVED = 2
"""Layers by which a stage may differ in the first window; a boundary that moves by one changes two stages by one."""


def window_around(instance: CompleteInstance, cut: Cut, *, moved: int) -> CompleteInstance:
    """Only plans whose stages differ from those of a cut, one by one, by at most so many layers."""
    return replace(
        instance,
        num_slots=len(cut),
        slot_sets=tuple(
            tuple(k for k in own if len(layers.symmetric_difference(instance.sets[k].layers)) <= moved)
            for own, layers in zip(instance.slot_sets, cut, strict=False)
        ),
        slot_assignments=instance.slot_assignments[: len(cut)],
    )


def sets_near(sets: Sequence[tuple[int, ...]], cut: Cut, *, moved: int, most: int) -> list[tuple[int, ...]]:
    """The sets that are at most so many layers from a stage of a cut, or nearer if those are more than `most`."""
    distance = [min(len(layers.symmetric_difference(own)) for layers in cut) for own in sets]
    while moved and sum(each <= moved for each in distance) > most:
        moved -= 1
    return [own for own, each in zip(sets, distance, strict=True) if each <= moved]


@dataclass(slots=True)
class GrowingWindow:
    """How far stages may differ from the incumbent's: as little as at first after every better plan, then more."""

    num_layers: int
    moved: int = _FIRST_MOVED

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out but plans with more stages."""
        return self.moved >= self.num_layers

    def note(self, *, is_better: bool) -> None:
        """After a window: the next one."""
        self.moved = _FIRST_MOVED if is_better else 2 * self.moved


def cut_of(stages: Sequence[Sequence[str]], names: Sequence[str]) -> Cut:
    """The layers of stages by number."""
    number = {name: n for n, name in enumerate(names)}
    return tuple(frozenset(number[name] for name in stage) for stage in stages)

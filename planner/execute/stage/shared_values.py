"""Layers that change in place what other layers are given as well: where stages hold copies, those do not see it."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from planner.execute.table.wiring import BATCH, StageWiring
from planner.execute.training import Tensors


class _Use(NamedTuple):
    """A tensor that a layer is given."""

    layer: str
    maker: str
    """The layer that gave it."""
    number: int
    """Which of those that it gave."""
    memory: int
    """Alike where one process has one memory."""
    own: int
    """Alike where a stage has."""
    is_changed: bool


class SharedValues:
    """What the layers of a model do to each other's memory, seen while they run without data."""

    def __init__(self, wirings: Sequence[StageWiring], order: Sequence[str]) -> None:
        """`order`: of all layers in one process."""
        self._stages = {name: number for number, wiring in enumerate(wirings) for name in wiring.layers} | {BATCH: -1}
        self._places = {name: place for place, name in enumerate([BATCH, *order])}
        self._uses: list[_Use] = []
        self._kept: list[torch.UntypedStorage] = []
        """All that were met: no other takes the place of one that is gone."""
        self.sizes: dict[str, tuple[torch.Size, ...]] = {}
        """Of what each layer gives, and of the batch."""
        self._origins: dict[int, int] = {}
        """Of memory that a copy in another order is in."""

    def note(
        self, layer: str, values: Sequence[tuple[str, int]], *, tensors: Sequence[torch.Tensor], versions: Sequence[int]
    ) -> None:
        """A layer has run; `values`: what it was given, `tensors`: that, with its `versions` before."""
        for value, tensor, version in zip(values, tensors, versions, strict=True):
            own = self._key(tensor)
            self._uses.append(_Use(layer, *value, self._origins.get(own, own), own, tensor._version != version))

    def note_copies(self, given: Tensors, handed_on: Tensors) -> None:
        """What a layer gave, and what is handed on in its place."""
        for own, copy in ((self._key(a), self._key(b)) for a, b in zip(given, handed_on, strict=True) if a is not b):
            self._origins[copy] = self._origins.get(own, own)

    def require_unseen(self) -> None:
        """Raise ValueError for a change that a layer sees in one process and not here, or the other way round."""
        for change in (use for use in self._uses if use.is_changed):
            for other in self._uses:
                if other.memory == change.memory and self._differs(change, other):
                    what = f"layer {change.maker!r}" if change.maker else "the batch"
                    raise ValueError(
                        f"layer {change.layer!r} changes in place what {what} gives it, of which layer "
                        f"{other.layer!r} has a copy here, and not in one process; let it change a copy (`clone()`)"
                    )

    def _differs(self, change: _Use, other: _Use) -> bool:
        """Whether one layer sees the change of another in one process alone, or here alone."""
        places, stages, is_same = self._places, self._stages, other[1:3] == change[1:3]
        if (is_same and other.layer == change.layer) or places[other.maker] >= places[change.layer]:
            return False  # made of it
        here, is_seen = stages[change.layer], places[other.layer] >= places[change.layer]
        is_made_here = other.own == change.own and {stages[change.maker], stages[other.maker]} == {here}
        if stages[other.layer] == here:
            return is_seen and not (is_same or is_made_here)
        return is_seen != is_made_here  # it is sent once the stage's forward is over

    def _key(self, tensor: torch.Tensor) -> int:
        self._kept.append(tensor.untyped_storage())
        return int(self._kept[-1]._cdata)

"""What a layer keeps from run to run, in buffers, attributes and variables outside of it: copied, and put back."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from planner.execute.model.cut.cut_layer import CutLayer
from planner.execute.model.cut.held_state import HeldState
from planner.execute.model.cut.module_state import separate_generators
from planner.execute.model.cut.outside_state import NOTHING, OutsideVariable, find_outside


class ChangingBuffers:
    """Which buffers, attributes and variables outside a layer changes as it runs, or what they lead to, and whether it
    draws from Python's generator or numpy's: found out in its first run, copied before each of the others.

    The running averages of a batch norm in training change nothing that it gives: no copy is taken of them.
    """

    def __init__(self) -> None:
        self._places: list[StatePlace] = []
        """Of all until it is known which change."""
        self._is_known = False
        self.is_compared = False
        """Whether a recomputation was held against its forward."""
        self._spare: dict[StatePlace, torch.Tensor] = {}
        """What running averages that are to be forgotten are written to."""

    def copies(self, layer: nn.Module) -> "Copies":
        """Of those that may change now."""
        if not self._is_known:
            self._places = _places(layer)
        return {place: HeldState(place.held) for place in self._places if not _is_average(place)}

    def learn(self, layer: nn.Module, before: "Copies") -> "Copies":
        """Compare with what was there before the first run; what changed once may do so again.

        Gives those that changed, as they were.
        """
        if self._is_known:
            return before
        now = set(_places(layer))
        held = {place for place in now.union(before) if not _is_average(place)}
        changed = {place for place in held if not before.get(place, _ABSENT).is_like(place.held)}
        self._places = [place for place in now | changed if place in changed or _is_average(place)]
        self._is_known = True
        return {place: old for place, old in before.items() if place in changed}

    @contextmanager
    def put_back(self, before: "Copies") -> Iterator[None]:
        """Copies in the place of what changes, which comes back as it is now."""
        kept = [(place, HeldState(place.held, has_copies=False)) for place in self._places]
        for place, own in kept:
            if _is_average(place):
                place.hold(self._spare_for(place, own.value))
            elif place in before or not _is_of_norm(place):
                place.hold(before.get(place, _ABSENT).make_again())
        try:
            yield
        finally:
            for place, own in kept:
                own.restore()
                place.hold(own.value)

    def _spare_for(self, place: "StatePlace", own: torch.Tensor) -> torch.Tensor:
        spare = self._spare.get(place)
        if spare is None or spare.device != own.device or spare.dtype != own.dtype:
            spare = self._spare[place] = own.clone()
        return spare


class OwnPlace(NamedTuple):
    """A buffer, or an attribute, by the module that has it and its name there."""

    owner: nn.Module
    name: str
    is_buffer: bool

    @property
    def held(self) -> Any:
        """The value that the module has there now, if it has one."""
        return self._store.get(self.name, NOTHING)

    def hold(self, value: Any) -> None:
        """Put a value there, or leave nothing there."""
        if value is NOTHING:
            self._store.pop(self.name, None)
        else:
            self._store[self.name] = value

    @property
    def text(self) -> str:
        """What it is called in messages."""
        return f"its {'buffer' if self.is_buffer else 'attribute'} {self.name!r}"

    @property
    def _store(self) -> dict[str, Any]:
        return self.owner._buffers if self.is_buffer else vars(self.owner)


StatePlace = OwnPlace | OutsideVariable
"""Where a layer may keep something from one microbatch to the next."""

Copies = Mapping[StatePlace, HeldState]
"""Buffers, attributes and variables as they were before a run."""

_ABSENT = HeldState(NOTHING)
_OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes that torch gives every module."""
_AVERAGING = frozenset({nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d})
"""Exactly these take the averages of the batch in training."""


_PROCESS = nn.Module()
"""Has what all layers of the process share."""


def is_memory(place: StatePlace, *, has_buffers: bool = True) -> bool:
    """Whether a layer keeps there what it saw: random generators are everybody's."""
    return isinstance(place, OutsideVariable) or (place.owner is not _PROCESS and (has_buffers or not place.is_buffer))


def _places(layer: nn.Module) -> list[StatePlace]:
    vars(_PROCESS)["generators"] = separate_generators()
    own = [
        OwnPlace(each, name, is_buffer)
        for each in (_PROCESS, *layer.modules())
        for is_buffer, store in ((True, each._buffers), (False, vars(each)))
        for name in store
        if is_buffer or not (name in _OF_TORCH or isinstance(each, CutLayer))
    ]
    return [*own, *find_outside(layer)]


def _is_of_norm(place: StatePlace) -> bool:
    return isinstance(place, OwnPlace) and type(place.owner) in _AVERAGING and isinstance(place.held, torch.Tensor)


def _is_average(place: StatePlace) -> bool:
    return _is_of_norm(place) and isinstance(place, OwnPlace) and place.owner.training

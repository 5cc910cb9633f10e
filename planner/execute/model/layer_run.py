"""One layer on one microbatch: its random numbers, its statistics, and the same once more when it is recomputed."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from planner.execute.model.batch_norms import Exchange, Memory, ReplicaBatchNorms
from planner.execute.model.cut.cut_layer import CutLayer
from planner.execute.model.cut.held_state import HeldState
from planner.execute.model.cut.module_state import separate_generators
from planner.execute.model.deferred import WeightGradStore


class Moment(NamedTuple):
    """What random numbers depend on, beside the layer: neither plan nor rank."""

    seed: int
    iteration: int
    microbatch: int
    replica: tuple[int, int] = (0, 1)
    """Which of how many has these samples."""

    def number(self, layer: str) -> int:
        """A 63-bit seed from the run's seed, iteration, microbatch, replica and layer."""
        text = f"{self.seed} {self.iteration} {self.microbatch} {self.replica} {layer}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def seed_generators(number: int, device: torch.device) -> None:
    """The generators that a layer on this device may draw from."""
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)


class LayerRun:
    """Called once for the forward and, where the layer is recomputed, once more in its backward.

    A recomputation sees the buffers as they were, and what it does to them is forgotten; replicas are not asked again.
    """

    def __init__(
        self,
        layer: nn.Module,
        *,
        changing: "ChangingBuffers",
        exchange: Exchange | None,
        store: WeightGradStore | None,
        seed: Callable[[], None] | None,
    ) -> None:
        """`seed`: gives the generators their numbers of before, for the recomputation; None: they have them."""
        self.layer, self.changing, self.exchange, self.store, self.seed = layer, changing, exchange, store, seed
        self.memory = Memory()
        self.before: Copies = {}
        self.is_first = True

    def __call__(self, *arguments: torch.Tensor) -> Any:
        """Run the layer with the random numbers of its moment."""
        with ExitStack() as stack:
            if self.exchange is not None:
                self.memory.position = None if self.is_first else 0
                stack.enter_context(ReplicaBatchNorms(self.exchange, self.memory))
            if not self.is_first:
                stack.enter_context(self.changing.put_back(self.before))
                if self.store is not None:
                    stack.enter_context(self.store.closed())
                if self.seed is not None:
                    self.seed()
                return self.layer(*arguments)
            self.is_first = False
            self.before = self.changing.copies(self.layer)
            result = self.layer(*arguments)
            self.before = self.changing.learn(self.layer, self.before)
            return result

    def call_again(self, *arguments: torch.Tensor) -> tuple[list[str], Any]:
        """Names of the attributes that its forward changed, and what it gives now that they have changed, if any: all
        else is to it as it was.
        """
        own = {place: each for place, each in self.changing.copies(self.layer).items() if place.is_own_attribute}
        before, self.before = self.before, {**self.before, **own}
        with torch.no_grad():
            result = self(*arguments) if own else None
        self.before = before
        return [place.name for place in own], result


class ChangingBuffers:
    """Which buffers and attributes a layer changes as it runs, or what they lead to, and whether it draws from Python's
    generator or numpy's: found out in its first run, copied before each of the others.

    The running averages of a batch norm in training change nothing that it gives: no copy is taken of them.
    """

    def __init__(self) -> None:
        self._places: list[_StatePlace] = []
        """Of all until it is known which change."""
        self._is_known = False
        self.is_compared = False
        """Whether a recomputation was held against its forward."""
        self._spare: dict[_StatePlace, torch.Tensor] = {}
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
            is_average = _is_average(place)
            place.hold(self._spare_for(place, own.value) if is_average else before.get(place, _ABSENT).make_again())
        try:
            yield
        finally:
            for place, own in kept:
                own.restore()
                place.hold(own.value)

    def _spare_for(self, place: "_StatePlace", own: torch.Tensor) -> torch.Tensor:
        spare = self._spare.get(place)
        if spare is None or spare.device != own.device or spare.dtype != own.dtype:
            spare = self._spare[place] = own.clone()
        return spare


class _StatePlace(NamedTuple):
    """A buffer, or an attribute, by the module that has it and its name there."""

    owner: nn.Module
    name: str
    is_buffer: bool

    @property
    def held(self) -> Any:
        """The value that the module has there now, if it has one."""
        return self._store.get(self.name, _NOTHING)

    def hold(self, value: Any) -> None:
        """Put a value there, or leave nothing there."""
        if value is _NOTHING:
            self._store.pop(self.name, None)
        else:
            self._store[self.name] = value

    @property
    def is_own_attribute(self) -> bool:
        """Whether it is the layer's, and no buffer."""
        return not self.is_buffer and self.owner is not _PROCESS

    @property
    def _store(self) -> dict[str, Any]:
        return self.owner._buffers if self.is_buffer else vars(self.owner)


Copies = Mapping[_StatePlace, HeldState]
"""Buffers and attributes as they were before a run."""

_NOTHING = object()
_ABSENT = HeldState(_NOTHING)
_OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes that torch gives every module."""
_AVERAGING = frozenset({nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d})
"""Exactly these take the averages of the batch in training."""


_PROCESS = nn.Module()
"""Has what all layers of the process share."""


def _places(layer: nn.Module) -> list[_StatePlace]:
    vars(_PROCESS)["generators"] = separate_generators()
    return [
        _StatePlace(each, name, is_buffer)
        for each in (_PROCESS, *layer.modules())
        for is_buffer, store in ((True, each._buffers), (False, vars(each)))
        for name in store
        if is_buffer or not (name in _OF_TORCH or isinstance(each, CutLayer))
    ]


def _is_average(place: _StatePlace) -> bool:
    return place.is_buffer and type(place.owner) in _AVERAGING and place.owner.training

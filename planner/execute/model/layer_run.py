"""One layer on one microbatch: its random numbers, its statistics, and the same once more when it is recomputed."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import nn

from planner.execute.model.batch_norms import Exchange, Memory, ReplicaBatchNorms
from planner.execute.model.cut.cut_layer import CutLayer
from planner.execute.model.cut.held_state import HeldState
from planner.execute.model.cut.module_state import separate_generators
from planner.execute.model.cut.outside_state import NOTHING, OutsideVariable, find_outside
from planner.execute.model.deferred import WeightGradStore
from planner.execute.training import as_tuple

_ROUNDING = 1e-5
"""Of a result's largest number, if its type has so many digits: accelerators add in any order."""


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
        if not self.is_first:
            with self._as_before(self.before):
                return self.layer(*(each.view_as(each) for each in arguments))  # hooks on them stay single
        with self._exchanging(None):
            self.is_first = False
            self.before = self.changing.copies(self.layer)
            result = self.layer(*arguments)
            self.before = self.changing.learn(self.layer, self.before)
            return result

    @contextmanager
    def _as_before(self, before: "Copies") -> Iterator[None]:
        """Meanwhile all is as it was, but for what is given."""
        with self._exchanging(0), self.changing.put_back(before), ExitStack() as stack:
            if self.store is not None:
                stack.enter_context(self.store.closed())
            if self.seed is not None:
                self.seed()
            yield

    @contextmanager
    def _exchanging(self, position: int | None) -> Iterator[None]:
        """Replicas are asked for statistics, or (from a position on) what they said is repeated."""
        if self.exchange is None:
            yield
            return
        self.memory.position = position
        with ReplicaBatchNorms(self.exchange, self.memory):
            yield

    def find_memory(self, *arguments: torch.Tensor, is_asked: Callable[["StatePlace"], bool]) -> tuple[str, str]:
        """What its forward changed first, of the places that are asked for, and by how much its result differs once it
        has seen another microbatch: all else is to it as it was. Both are empty where nothing changed, or differs.
        """
        own = {place: each for place, each in self.changing.copies(self.layer).items() if is_asked(place)}
        if not own:
            return "", ""
        with torch.no_grad():
            with self._as_before(self.before):
                given = as_tuple(self.layer(*arguments))
            with suppress(RuntimeError, ValueError, IndexError), self._as_before({**self.before, **own}):
                self.layer(*other_samples(arguments))  # some remember no more than the largest
                own = {place: HeldState(place.held) for place in own}
            with self._as_before({**self.before, **own}):
                again = as_tuple(self.layer(*arguments))
        text = next(filter(None, map(_tell_difference, given, again)), "")
        return (next(place.text for place in own), text) if text else ("", "")


def _tell_difference(one: torch.Tensor, other: torch.Tensor) -> str:
    """By how much a result differs from another beyond rounding; or nothing, as where its form differs."""
    if one.shape != other.shape or not one.numel() or torch.equal(one, other):
        return ""
    if not (one.is_floating_point() or one.is_complex()):
        return "other whole numbers"
    largest, off = (float(each.nan_to_num().abs().max()) for each in (one, one - other))
    is_near = off <= largest * max(_ROUNDING, 4 * torch.finfo(one.dtype).eps)
    return "" if is_near else f"results that differ by {off:.3g} (the largest is {largest:.3g})"


def other_samples(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A microbatch that might have come: the samples in another order, and larger."""
    others = [tensor.flip(0) if tensor.dim() else tensor for tensor in tensors]
    return [other * 1.5 if other.is_floating_point() or other.is_complex() else other for other in others]


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
            is_average = _is_average(place)
            place.hold(self._spare_for(place, own.value) if is_average else before.get(place, _ABSENT).make_again())
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


def _is_average(place: StatePlace) -> bool:
    if not (isinstance(place, OwnPlace) and place.is_buffer):
        return False
    return type(place.owner) in _AVERAGING and place.owner.training

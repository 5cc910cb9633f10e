"""One layer on one microbatch: its random numbers, its statistics, and the same once more when it is recomputed."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from planner.execute.model.batch_norms import Exchange, Memory, ReplicaBatchNorms
from planner.execute.model.cut.held_state import HeldState
from planner.execute.model.cut.recording import READS, unpack
from planner.execute.model.deferred import WeightGradStore
from planner.execute.model.layer_state import ChangingBuffers, Copies, OwnPlace, StatePlace
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


def evaluating(modules: Sequence[nn.Module]) -> AbstractContextManager[None]:
    """Meanwhile all are in evaluation mode; afterwards each part is as it was."""
    return _holding([part for module in modules for part in module.modules()], name="training", value=False)


@contextmanager
def _holding(parts: Sequence[nn.Module], *, name: str, value: Any) -> Iterator[None]:
    """Meanwhile this attribute of all parts has this value."""
    kept = [(part, getattr(part, name)) for part in parts]
    for part in parts:
        setattr(part, name, value)
    try:
        yield
    finally:
        for part, own in kept:
            setattr(part, name, own)


def draw_state(device: torch.device) -> torch.Tensor:
    """Of the generator that draws on a device: another one once something was drawn."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


class _ValueReads(TorchFunctionMode):
    """Sees whether Python asks for the values of tensors, as layers do that decide by them."""

    is_seen = False

    def __torch_function__(self, func: Any, types: Any, *given: Any) -> Any:
        """Note it, and do it."""
        args, kwargs = unpack(given)
        self.is_seen |= getattr(func, "__name__", "") in READS
        return func(*args, **kwargs)


class LayerRun:
    """Called once for the forward and, where the layer is recomputed, once more in its backward.

    A recomputation sees the buffers as they were, and what it does to them is forgotten; replicas are not asked again.
    """

    def __init__(
        self,
        layer: nn.Module,
        *,
        changing: ChangingBuffers,
        exchange: Exchange | None,
        store: WeightGradStore | None,
        seed: Callable[[], None] | None,
    ) -> None:
        """`seed`: gives the generators their numbers of before, for the recomputation; None: they have them."""
        self.layer, self.changing, self.exchange, self.store, self.seed = layer, changing, exchange, store, seed
        self.memory = Memory()
        self.before: Copies = {}
        self.is_first, self.reads = True, _ValueReads()

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
    def _as_before(self, before: Copies) -> Iterator[None]:
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

    def find_memory(self, *arguments: torch.Tensor, is_asked: Callable[[StatePlace], bool]) -> tuple[str, str]:
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
        text = next(filter(None, map(describe_difference, given, again)), "")
        return (next(place.text for place in own), text) if text else ("", "")

    def find_kept(self, *arguments: torch.Tensor, is_ordered: bool) -> str:
        """What of its buffers is another once it has seen another microbatch too (`is_ordered`: once it has seen both
        the other way round); or nothing.
        """
        for part in self.layer.modules() if is_ordered else ():
            if isinstance(part, _BatchNorm) and part.training and part.momentum and part.track_running_stats:
                return "its running averages"
        others, ends = other_samples(arguments), list[Copies]()
        with torch.no_grad(), suppress(RuntimeError, ValueError, IndexError):
            for row in ([arguments, others], [others, arguments] if is_ordered else [arguments]):
                state = self.before
                for given in row:
                    with self._as_before(state):
                        self.layer(*given)
                        state = {place: HeldState(place.held) for place in state}
                ends.append(state)
        for place in ends[0] if len(ends) > 1 else ():
            one, other = (end[place].value for end in ends)
            is_buffer = isinstance(place, OwnPlace) and place.is_buffer and isinstance(one, torch.Tensor)
            if is_buffer and (not isinstance(other, torch.Tensor) or describe_difference(one, other)):
                return place.text
        return ""

    def find_coupling(
        self,
        arguments: Sequence[torch.Tensor],
        *,
        taken: Sequence[int | None],
        made: Sequence[int | None],
        count: int,
        is_sum: bool,
    ) -> str:
        """By how much its results for one or two samples differ with others beside them; or nothing.

        `taken`, `made`: where samples lie in what it is given and gives; `count`: how many of them there are. What
        belongs to none has to be the mean over parts, or the sum.
        """
        few = max(1, min(2, count // 2))
        some = [
            samples_of(each, dim, start=0, length=few, count=count) for each, dim in zip(arguments, taken, strict=True)
        ]
        more = [
            samples_of(each, dim, start=few, length=few, count=count)
            for each, dim in zip(arguments, taken, strict=True)
        ]
        if count == 1:
            more = [a if dim is None else other for a, other, dim in zip(some, other_samples(some), taken, strict=True)]
        both = [a if dim is None else torch.cat([a, b], dim) for a, b, dim in zip(some, more, taken, strict=True)]
        own = (_DropoutNd,) if self.exchange is not None else (_DropoutNd, _BatchNorm)
        parts = list(self.layer.modules())
        quiet = [part for part in parts if isinstance(part, own)]
        # Compiled parts run as they are written: other numbers of samples would have them compiled anew.
        as_written = _holding(parts, name="_compiled_call_impl", value=None)
        with torch.no_grad(), evaluating(quiet), as_written, suppress(RuntimeError, ValueError, IndexError):
            (first, one), (second, _), (whole, all_) = (self._give(each) for each in (some, more, both))
            for place, kept in one.items() if all_ else ():
                shapes = {getattr(each.value, "shape", None) for each in (kept, all_[place])}
                if len(shapes) == 1 and not kept.is_like(all_[place].value):  # else cached for so many samples
                    return f"other values to {place.text}"
            for a, b, c, dim in zip(first, second, whole, made, strict=True):
                pairs = [(a, c)]
                if dim is not None and c.shape[dim] != (length := a.shape[dim] + b.shape[dim]):
                    return f"results of length {c.shape[dim]}, not {length},"
                if dim is not None:
                    pairs = list(zip((a, b), torch.split(c, [a.shape[dim], b.shape[dim]], dim), strict=True))
                elif a.is_floating_point():
                    pairs = [(a + b if is_sum and not a.dim() else (a + b) / 2, c)]
                for pair in pairs:
                    if text := describe_difference(*pair, has_other_samples=True):
                        return text
        return ""

    def _give(self, arguments: Sequence[torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], Copies]:
        """What it gives of them, and the buffers that it changed: in evaluation mode where it draws random numbers,
        which would be others; nothing if it draws in that as well.
        """
        for owners in ([], [self.layer]):
            with evaluating(owners), self._as_before(self.before):
                state = draw_state(arguments[0].device)
                with self.reads:
                    given = as_tuple(self.layer(*arguments))
                if torch.equal(state, draw_state(arguments[0].device)):
                    own = [place for place in self.before if isinstance(place, OwnPlace) and place.is_buffer]
                    return given, {place: HeldState(place.held) for place in own}
        return (), {}


def samples_of(tensor: torch.Tensor, dim: int | None, *, start: int, length: int, count: int) -> torch.Tensor:
    """Of a tensor with so many samples some; all of what belongs to none, or of a single one."""
    if dim is None or count == 1:
        return tensor
    rows = tensor.shape[dim] // count
    return tensor.narrow(dim, start * rows, length * rows)


def describe_difference(one: torch.Tensor, other: torch.Tensor, *, has_other_samples: bool = False) -> str:
    """By how much a result differs from another beyond rounding; or nothing, as where its form differs.

    `has_other_samples`: they were computed with other numbers of samples, in parts perhaps of shorter types.
    """
    if one.shape != other.shape:
        return f"results of shape {tuple(other.shape)}, not {tuple(one.shape)}," if has_other_samples else ""
    if not one.numel() or torch.equal(one, other):
        return ""
    if not (one.is_floating_point() or one.is_complex()):
        return "other whole numbers"
    if not torch.equal(one.isnan(), other.isnan()):
        return "results that are no numbers"
    largest, off = (float(each.nan_to_num().abs().max()) for each in (one, one - other))
    eps = torch.finfo(one.dtype).eps
    is_near = off <= largest * (eps**0.3 if has_other_samples else max(min(_ROUNDING, 100 * eps), 4 * eps))
    return "" if is_near else f"results that differ by {off:.3g} (the largest is {largest:.3g})"


def other_samples(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A microbatch that might have come: the samples in another order, and larger."""
    others = [tensor.flip(0) if tensor.dim() else tensor for tensor in tensors]
    return [other * 1.5 if other.is_floating_point() or other.is_complex() else other for other in others]

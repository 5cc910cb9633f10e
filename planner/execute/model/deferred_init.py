"""Models whose weights are made later, and only where they are needed: a process then never holds more than its part.

    with deferred_init():
        model = LlamaForCausalLM(config)

Parameters are moved to the meta device as modules take them; what is done to them is noted, the state of the random
numbers included. Replayed, each gets the values that it would have had, to the bit. Buffers are made as ever.
"""

import mmap
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast
from unittest import mock

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from planner.execute.model.cut.recording import unpack

_VALUE = "_deferred_value"
"""Attribute of a parameter that says how its value is made."""


class _Call(NamedTuple):
    """One call of torch's, to be made again."""

    function: Any
    args: Any
    named: Any
    state: torch.Tensor | None
    """Of the random numbers before it, if it draws."""

    def run(self, thaw: Any) -> Any:
        """Make it, with what `thaw` gives for what stands in the place of tensors."""
        args, named = tree_map(thaw, (self.args, self.named), is_leaf=_is_frozen)
        if self.state is None:
            return self.function(*args, **named)
        generator: torch.Generator = self.named.get("generator") or torch.default_generator
        before = generator.get_state()
        generator.set_state(self.state)
        try:
            return self.function(*args, **named)
        finally:
            generator.set_state(before)


class _Memory:
    """What a storage holds, as what has happened to it."""

    def __init__(self, storage: StorageWeakRef, origin: Any, *, place: int = 0) -> None:
        """`origin`: a call, of whose results it is the one at `place`; another's part; a tensor; None: nobody knows."""
        self.storage, self.origin, self.place = storage, origin, place
        self.writes: list[_Call] = []
        self.moved: nn.Parameter | None = None
        """The parameter without values that stands for it."""

    def make(self, count: int) -> torch.Tensor:
        """A tensor with its values after so many writes."""
        if self.origin is None:
            raise ValueError("its values were made before, or by a call that cannot be traced")
        if isinstance(self.origin, torch.Tensor):
            base = self.origin.clone()
        elif isinstance(self.origin, _Part):
            base = self.origin.make().clone()
        else:
            base = [each for each in tree_leaves(self.origin.run(_thaw)) if isinstance(each, torch.Tensor)][self.place]
        for call in self.writes[:count]:
            call.run(lambda leaf: leaf.of(base) if isinstance(leaf, _Part) and leaf.memory is self else _thaw(leaf))
        return base


class _Part(NamedTuple):
    """A tensor that lies in a memory, as it was after some writes."""

    memory: _Memory
    num_writes: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, base: torch.Tensor) -> torch.Tensor:
        """A view of the same part in the tensor of its memory."""
        return base.as_strided(self.size, self.stride, self.offset)

    def make(self) -> torch.Tensor:
        """The tensor after its recorded initialisation."""
        return self.of(self.memory.make(self.num_writes))


class _DeferredValue(NamedTuple):
    """Attribute of a parameter that was created without memory."""

    part: _Part
    storage: StorageWeakRef
    """Its own, on the meta device: another one if it was changed since."""


def _is_frozen(leaf: Any) -> bool:
    return isinstance(leaf, _Part)


def _thaw(leaf: Any) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    return leaf.make() if isinstance(leaf, _Part) else leaf


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what happens to tensors that are made from nothing, and to those without values."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memories: dict[int, _Memory] = {}
        """By storage; a weak reference keeps another from taking its place."""
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def __torch_dispatch__(self, func: Any, types: Any, *told: Any) -> Any:
        args, named = unpack(told)
        given = _tensors_of((args, named))
        is_mutable, is_random = func._schema.is_mutable, torch.Tag.nondeterministic_seeded in func.tags
        is_known = any(tensor.is_meta or self.find(tensor) is not None for tensor in given)
        if not (is_known or not given):
            return func(*args, **named)
        state = (named.get("generator") or torch.default_generator).get_state() if is_random else None
        frozen = tree_map(self._freeze, (args, named))
        result = func(*args, **named)
        if is_random and any(tensor.is_meta for tensor in (*given, *_tensors_of(result))):
            self._draw(func, (args, named))
        call = _Call(func, frozen[0], frozen[1], state)
        if is_mutable:
            self._write(given[0], call)
        elif not given or any(tensor.is_meta for tensor in given):
            olds = {_key(tensor) for tensor in given}
            for place, tensor in enumerate(_tensors_of(result)):
                if _key(tensor) not in olds:
                    self.put(tensor, call, place=place)
        return result

    def note_init(self, tensor: torch.Tensor, function: Any, *, args: Sequence[Any]) -> None:
        """One write, by a function that does nothing to what has no values."""
        call = _Call(function, tree_map(self._freeze, tuple(args)), {}, torch.get_rng_state())
        self._draw(function, (tuple(args), {}))
        self._write(tensor, call)

    def _draw(self, function: Any, given: Any) -> None:
        """Draw what the call would draw, and throw it away: others draw after it."""

        def real(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return self._lend(leaf) if leaf.is_meta else leaf.clone()
            return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

        args, named = tree_map(real, given)
        function(*args, **named)

    def _lend(self, like: torch.Tensor) -> torch.Tensor:
        """Memory for a tensor whose values nobody wants, always the same."""
        extent = 1 + sum((n - 1) * step for n, step in zip(like.size(), like.stride(), strict=True))
        size = extent * like.element_size() if like.numel() else 0
        if self._scratch.numel() < size:
            self._scratch = map_memory(size)
        return self._scratch[:size].view(like.dtype).as_strided(like.size(), like.stride())

    def find(self, tensor: torch.Tensor) -> _Memory | None:
        """What is known of a tensor's memory."""
        return self.memories.get(_key(tensor))

    def put(self, tensor: torch.Tensor, origin: Any, *, place: int = 0) -> _Memory:
        """Note how a tensor's memory came about."""
        made = _Memory(_refer(tensor), origin, place=place)
        self.memories[_key(tensor)] = made
        return made

    def part(self, tensor: torch.Tensor) -> _Part:
        """A tensor as it is now."""
        memory = self.find(tensor)
        if memory is None:
            memory = self.put(tensor, None if tensor.is_meta else tensor.detach().clone())
        count = len(memory.writes)
        return _Part(memory, count, tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()))

    def _freeze(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return self.part(leaf) if leaf.is_meta or self.find(leaf) is not None else leaf.detach().clone()

    def _write(self, target: torch.Tensor, call: _Call) -> None:
        memory = self.find(target)
        if memory is not None:
            memory.writes.append(call)


class _AskingInits(TorchFunctionMode):
    """Some functions of torch.nn.init look whether their tensor has values, and leave it if not: these are noted."""

    def __init__(self, noting: _Noting) -> None:
        super().__init__()
        self.noting = noting

    def __torch_function__(self, func: Any, types: Any, *told: Any) -> Any:
        args, named = unpack(told)
        if getattr(func, "__self__", None) is torch.Tensor.is_meta and args[0].is_meta:
            frame = sys._getframe(1)
            if frame.f_globals is vars(nn.init):
                code = frame.f_code
                given = [frame.f_locals[name] for name in code.co_varnames[: code.co_argcount]]
                self.noting.note_init(args[0], getattr(nn.init, code.co_name), args=given)
            return True
        return func(*args, **named)


def map_memory(size: int) -> torch.Tensor:
    """So many bytes that go back to the host as soon as nobody has them: the heap may keep what it was given."""
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _refer(tensor: torch.Tensor) -> StorageWeakRef:
    """To its storage, without keeping it; no other takes its address meanwhile."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _tensors_of(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@contextmanager
def deferred_init() -> Iterator[None]:
    """Parameters of the modules that are made meanwhile have no values; each process makes those of its layers.

    For `Training.from_module`. Values that follow from other tensors' (`nn.Parameter(table @ table.T)`) are kept.
    """
    noting, original, taken = _Noting(), nn.Module.register_parameter, list[nn.Parameter]()

    def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        original(module, name, param)
        if param is not None and type(param) is nn.Parameter:
            moved = _move(param, noting)
            module._parameters[name] = moved
            taken.append(moved)

    with mock.patch.object(nn.Module, "register_parameter", register), noting, _AskingInits(noting):
        yield
    for parameter in taken:
        own = _refer(parameter)
        setattr(parameter, _VALUE, _DeferredValue(noting.part(parameter), own))


def _move(parameter: nn.Parameter, noting: _Noting) -> nn.Parameter:
    """A parameter without values in its place, always the same one."""
    if parameter.is_meta:
        return parameter
    part = noting.part(parameter)
    known = part.memory.moved
    if known is not None and known.shape == parameter.shape:
        return known
    with torch.no_grad():
        empty = torch.empty_strided(part.size, part.stride, dtype=parameter.dtype, device="meta")
    moved = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    if part.offset == 0 and known is None:
        part.memory.moved = moved
        noting.memories[_key(moved)] = part.memory  # what is done to either is done to both
    else:
        noting.put(moved, part)
    return moved


def has_deferred_value(parameter: torch.Tensor) -> bool:
    """Whether a parameter without values can be made; not if it was changed after `deferred_init`."""
    found = cast(_DeferredValue | None, getattr(parameter, _VALUE, None))
    if found is None or found.part.memory.origin is None:
        return False
    return found.storage.cdata == _key(parameter) and tuple(parameter.shape) == found.part.size


def make_value(parameter: torch.Tensor) -> torch.Tensor:
    """Run the initialisation that was recorded for a deferred parameter."""
    found: _DeferredValue = getattr(parameter, _VALUE)
    return found.part.make()


def require_values(names: Sequence[str]) -> None:
    """Raise ValueError where parameters have no values that could be made."""
    if names:
        raise ValueError(
            f"{names[0]!r} and {len(names) - 1} more have no values (they are on the meta device); make the model "
            "under `planner.execute.model.deferred_init.deferred_init()`, or give `weights=`"
        )

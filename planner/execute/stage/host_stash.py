"""What forwards of some microbatches save, in the memory of the host until their backward (a plan's `offload`).

Autograd saves pieces of storages; whole storages travel, each once, so that pieces come back with their own strides. On
an accelerator copies are pinned, and run on a stream for each direction; on a host they are plain copies. Weights, and
storages of which little is saved (a batch of many microbatches), stay where they are.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks

from planner.actions import ACTION_TEXT, Action, Offload

_LEAST_SHARE = 2
"""A storage travels if one part in so many of it, at least, is saved."""


class _Piece(NamedTuple):
    """A saved tensor, as a view of a storage."""

    storage: "_Storage"
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class _Storage:
    """One storage, on the device or on the host."""

    def __init__(self, tensor: torch.Tensor) -> None:
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        self.here: torch.Tensor | None = whole
        self.host: torch.Tensor | None = None
        self.saved: dict[tuple[Any, ...], tuple[torch.Tensor, int]] = {}
        """Views of it that were saved, each with its version then."""

    def note(self, tensor: torch.Tensor) -> _Piece:
        """A view of it was saved."""
        piece = _Piece(self, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
        self.saved.setdefault(piece[1:], (tensor, tensor._version))
        return piece

    def should_travel(self) -> bool:
        """Whether enough of it was saved; raises RuntimeError if it was changed in place meanwhile."""
        assert self.here is not None
        if any(tensor._version != version for tensor, version in self.saved.values()):
            raise RuntimeError(
                "a tensor that a forward saved for its backward was changed in place before the forward ended; change "
                "a copy of it, or plan with offload = false"
            )
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor, _ in self.saved.values())
        self.saved.clear()
        return num_bytes * _LEAST_SHARE >= self.here.numel()


class _Copies:
    """How bytes get to the host and back: on streams of their own on an accelerator, at once on a host."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.is_host = torch.empty(0, device=device).device, device.type == "cpu"  # with its number
        self.streams = [] if self.is_host else [torch.cuda.Stream(device) for _ in range(2)]  # type: ignore[no-untyped-call]

    def copy(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], *, is_back: bool) -> Any:
        """Copy from the first to the second of each pair, after what was queued before; gives what `wait` takes."""
        if self.is_host:
            for source, target in pairs:
                target.copy_(source)
            return None
        stream = self.streams[is_back]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for source, target in pairs:
                target.copy_(source, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
        return event

    def wait(self, event: Any) -> None:
        """What is queued from now on comes after the copies."""
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)


class _Stash:
    """What the forward of one microbatch of a stage saved."""

    def __init__(self, copies: _Copies, *, weights: frozenset[int]) -> None:
        """`weights`: addresses of storages that stay."""
        self.copies, self.weights = copies, weights
        self.storages: dict[int, _Storage] = {}
        self.travelling: list[_Storage] = []
        self._left: Any = None
        self._returned: Any = None

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | _Piece:
        """What autograd keeps in place of a tensor."""
        is_plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided
        is_plain &= not (tensor.is_conj() or tensor.is_neg())  # marks, which a view of the storage would be without
        if not is_plain or tensor.device != self.copies.device or not tensor.numel():
            return tensor
        address = tensor.untyped_storage().data_ptr()
        if address in self.weights:
            return tensor
        if address not in self.storages:
            self.storages[address] = _Storage(tensor)
        return self.storages[address].note(tensor)

    def unpack(self, packed: torch.Tensor | _Piece) -> torch.Tensor:
        """The tensor for the backward; raises RuntimeError where it is on the host."""
        if not isinstance(packed, _Piece):
            return packed
        self.copies.wait(self._returned)
        here = packed.storage.here
        if here is None:
            raise RuntimeError("a backward needs what is still on the host; report it with the plan")
        empty = torch.empty(0, dtype=packed.dtype, device=here.device)
        return empty.set_(here.untyped_storage(), packed.offset, packed.size, packed.stride)

    def leave(self) -> None:
        """The forward has ended: copy all that travels."""
        self.travelling = [each for each in self.storages.values() if each.should_travel()]
        self.storages.clear()
        pairs = []
        for each in self.travelling:
            assert each.here is not None
            each.host = torch.empty(each.here.numel(), dtype=torch.uint8, pin_memory=not self.copies.is_host)
            pairs.append((each.here, each.host))
        self._left = self.copies.copy(pairs, is_back=False)

    def free(self) -> None:
        """What runs from now on may take the memory."""
        self.copies.wait(self._left)
        for each in self.travelling:
            each.here = None

    def fetch(self) -> None:
        """Copy all back."""
        pairs = []
        for each in self.travelling:
            assert each.host is not None
            each.here = torch.empty(each.host.numel(), dtype=torch.uint8, device=self.copies.device)
            pairs.append((each.host, each.here))
        self._returned = self.copies.copy(pairs, is_back=True)


class HostStashes:
    """The stashes of one process that travel, as it goes through its actions."""

    def __init__(self, offloads: Mapping[int, Sequence[Offload]], *, order: Sequence[Action], device: torch.device):
        """`offloads`: by stage; `order`: all actions of the process."""
        self.copies = _Copies(device)
        self.chosen = {(stage, each.microbatch) for stage, own in offloads.items() for each in own}
        """Stages and microbatches."""
        at = {action: place for place, action in enumerate(order)}
        at |= {each._replace(kind=kind): at[each] for each in order if each.kind == "B" for kind in ("I", "W")}
        self._freed, self._fetched = dict[int, list[tuple[int, int]]](), dict[int, list[tuple[int, int]]]()
        for stage, each in ((stage, each) for stage, own in offloads.items() for each in own):
            self._freed.setdefault(at[each.freed_before], []).append((stage, each.microbatch))
            self._fetched.setdefault(at[each.fetched_before], []).append((stage, each.microbatch))
        self._stashes: dict[tuple[int, int], _Stash] = {}
        self._weights: dict[int, frozenset[int]] = {}
        self._place, self._changed = 0, -1
        """Of the next action, and of the last one before which stashes were freed and fetched."""

    def begin(self) -> None:
        """An iteration begins."""
        self._stashes.clear()
        self._weights.clear()
        self._place, self._changed = 0, -1

    @contextmanager
    def forward(self, stage: int, microbatch: int, *, module: torch.nn.Module) -> Iterator[None]:
        """Around the forward of a microbatch: what it saves travels, if it is one of the chosen."""
        key = stage, microbatch
        if key not in self.chosen or not torch.is_grad_enabled():
            yield
            return
        if stage not in self._weights:
            held = (*module.parameters(), *module.buffers())
            self._weights[stage] = frozenset(each.untyped_storage().data_ptr() for each in held)
        stash = self._stashes[key] = _Stash(self.copies, weights=self._weights[stage])
        with saved_tensors_hooks(stash.pack, stash.unpack):
            yield
        stash.leave()

    def take(self, cell: str) -> None:
        """To be called with what the process does next: actions, messages and reductions."""
        if self._changed < self._place:
            self._changed = self._place
            for key in self._freed.get(self._place, ()):
                self._stashes[key].free()
            for key in self._fetched.get(self._place, ()):
                self._stashes.pop(key).fetch()
        self._place += ACTION_TEXT.fullmatch(cell) is not None

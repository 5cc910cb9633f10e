"""Bytes of one layer: what autograd saves, what waits for W, and the most that is alive at once.

The same code runs on real and on fake tensors, and both give the same figures.
"""

import ctypes
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.function import FunctionCtx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from profiles.estimates.sustained_rates import Phase
from profiles.measure.model import Tensors
from profiles.measure.record import LayerBytes
from profiles.measure.segment import Segment

CLEAR_REFS, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operations make, for as long as they live; knows nothing inside an operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = self.made = 0
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, *rest: Any) -> Any:
        _, args, kwargs = (*rest, (), None)[:3]
        given = {storage._cdata for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage._cdata not in given:  # views of what was there before are nothing new
                self._note(storage)
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._alive:
            return
        size = storage.nbytes()
        self._alive[key] = size
        self.made += size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._release, key)

    def _release(self, key: int) -> None:
        self.now -= self._alive.pop(key, 0)

    def mark(self) -> int:
        """Start the peak anew; gives what is alive."""
        self.peak = self.now
        return self.now


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    return (part.untyped_storage() for part in tensors_in(tree))


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The dense parts of all tensors of a tree."""
    return [part for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) for part in _dense_parts(leaf)]


def _dense_parts(tensor: torch.Tensor) -> Tensors:
    """What holds a tensor: itself, or indices and values of a sparse one, and the parts of one that wraps others."""
    if (flatten := getattr(tensor, "__tensor_flatten__", None)) is not None:
        return tuple(part for name in flatten()[0] for part in _dense_parts(getattr(tensor, name)))
    if tensor.layout is torch.strided:
        return (tensor,)
    names: tuple[str, ...] = ("_indices", "_values") if tensor.is_sparse else ()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        names = "crow_indices", "col_indices", "values"
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        names = "ccol_indices", "row_indices", "values"
    with torch.no_grad():
        return tuple(getattr(tensor, name)() for name in names) or (tensor,)


class SavedBytes:
    """Storages that autograd saves."""

    def __init__(self, module: nn.Module) -> None:
        self._own = {storage._cdata for storage in _storages([*module.parameters(), *module.buffers()])}
        self._kept: dict[int, Any] = {}
        self._contexts: list[weakref.ref[Any]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note all that is saved inside; what is noted stays alive until `forget`."""

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            self._note(tensor)
            return tensor

        gc.collect(0)  # what was there before is none of what is looked through
        was_enabled = gc.isenabled()
        gc.disable()
        collections = sum(each["collections"] for each in gc.get_stats())
        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                yield
        finally:
            is_aged = sum(each["collections"] for each in gc.get_stats()) != collections  # by what ran inside
            there = gc.get_objects(generation=None if is_aged else 0)
            self._contexts = [weakref.ref(each) for each in there if issubclass(type(each), FunctionCtx)]
            if was_enabled:
                gc.enable()

    def note_contexts(self) -> None:
        """Note what custom functions that are still there keep as attributes of their context: no hook sees it.

        They are not looked for in the graph: one of 50,000 nodes that Python has seen overflows the stack as it goes.
        """
        waiting: list[Any] = [vars(context) for there in self._contexts if (context := there()) is not None]
        self._contexts, seen = [], {}
        while waiting:
            each = waiting.pop()
            if isinstance(each, torch.Tensor):
                self._note(each)
            elif isinstance(each, dict | list | tuple | set) and id(each) not in seen:
                seen[id(each)] = each
                waiting += each.values() if isinstance(each, dict) else each

    def _note(self, tensor: torch.Tensor) -> None:
        self._kept |= {each._cdata: each for each in _storages(tensor) if each._cdata not in self._own}

    def total(self, *, without: Iterable[torch.Tensor] = ()) -> int:
        """Bytes of distinct storages, those of some tensors aside."""
        aside = {storage._cdata for storage in _storages(list(without))}
        return sum(size for key, size in self.sizes().items() if key not in aside)

    def sizes(self) -> dict[int, int]:
        """Bytes of each storage."""
        return {key: int(storage.nbytes()) for key, storage in self._kept.items()}

    def forget(self) -> None:
        """Drop the references to saved tensors, so that the next measurement begins at zero."""
        self._kept.clear()


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the distinct storages of some tensors."""
    return sum({storage._cdata: int(storage.nbytes()) for storage in _storages(list(tensors))}.values())


Watch = Callable[[Phase, Callable[[], None]], int]
"""Runs a phase (F, I or W); gives the bytes that it held inside of operations, beside the tensors that they make."""


def _run_only(_: Phase, run: Callable[[], None]) -> int:
    run()
    return 0


class LayerMemory:
    """One F, I and W of a segment, and what was alive meanwhile."""

    def __init__(self, segment: Segment, *, watch: Watch | None = None) -> None:
        """`watch`: runs the phases; None: they run, and nothing inside of operations counts."""
        self.segment = segment
        self.live, self.saved = LiveBytes(), SavedBytes(segment.module)
        self.stash = self.weight_stash = self.workspace = 0
        self.results: Tensors = ()
        """The outputs, detached, each with the requires_grad that it had."""
        self.takes: tuple[tuple[int, int], ...] = ()
        self.gives: tuple[tuple[int, int, int], ...] = ()
        """What is kept of inputs and outputs, as a `LayerRecord` has it."""
        self.unsplit = ""
        """Class of the module with the most weights, if I computed the gradients of all and left W nothing."""
        self._watch = watch or _run_only
        self._inputs: Tensors = ()
        self._outputs: Tensors = ()
        self._gradients: list[torch.Tensor] | None = None
        segment.make_grads()
        if self._forward():
            self._backward()

    def _forward(self) -> bool:
        """Whether anything can go back."""
        with self.live:
            self._inputs = tuple(tensor.detach().clone() for tensor in self.segment.inputs)
            for tensor, wanted in zip(self._inputs, self.segment.wants, strict=True):
                tensor.requires_grad_(wanted)
            self._base = self.live.mark()
            self.segment.waiting.is_noting = True
            with self.saved.watching():
                inside = self._watch("F", self._call)
        self.saved.note_contexts()
        self.stash = self.saved.total()
        self._noted = self._note_tensors()
        self._base += self.saved.total(without=self._inputs)
        self.saved.forget()
        self.workspace = self.live.peak - self._base + inside
        self._find_kept(has_backward=False)
        self.results = tuple(tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in self._outputs)
        return any(result.requires_grad for result in self.results)

    def _note_tensors(self) -> list[list[tuple[int, int, Any]]]:
        """Of inputs and outputs what is saved, the input that it is, and what tells whether it is there."""
        inputs, outputs = ([each.untyped_storage() for each in tensors] for tensors in (self._inputs, self._outputs))
        place = {storage._cdata: number for number, storage in enumerate(inputs)}
        saved = self.saved.sizes()
        return [
            [(saved.get(each._cdata, 0), place.get(each._cdata, -1), weakref.ref(each)) for each in row]
            for row in (inputs, outputs)
        ]

    def _find_kept(self, *, has_backward: bool = True) -> None:
        """After I: what is still there waits for W."""
        taken, given = (
            [(size, size * (has_backward and there() is not None), source) for size, source, there in row]
            for row in self._noted
        )
        self.takes, self.gives = tuple((size, waiting) for size, waiting, _ in taken), tuple(given)

    def _call(self) -> None:
        self._outputs = self.segment.call(self._inputs)

    def _backward(self) -> None:
        waiting = self.segment.waiting
        with self.live:
            roots = [tensor for tensor in self._outputs if tensor.requires_grad]
            self._gradients = None if self.segment.loss is not None else [torch.ones_like(root) for root in roots]
            del roots
            before = self._versions()
            waiting.is_deferring = True
            self.live.mark()
            inside = self._watch("I", self._differentiate)
            waiting.is_deferring = False
            self.workspace = max(self.workspace, self.live.peak - self._base + inside)
            if before and all(now != then for now, then in zip(self._versions(), before, strict=True)):
                self.unsplit = self._largest()
            later = waiting.take()
            self._inputs = ()
            self.weight_stash = self.live.mark()
            self._find_kept()
            inside = self._watch("W", later)
            self.workspace = max(self.workspace, self.live.peak - self.weight_stash + inside)

    def _versions(self) -> list[int]:
        """How often each gradient was added to."""
        return [-1 if each.grad is None else each.grad._version for each in self.segment.parameters()]

    def _largest(self) -> str:
        """Class of the module that holds the most weights itself; their names where it was made to hold them."""
        parts = self.segment.module.modules()
        largest = max(parts, key=lambda part: sum(each.numel() for each in part.parameters(recurse=False)))
        kind = type(largest)
        if kind is nn.Module or kind.__module__.startswith("planner."):
            return ", ".join(name for name, _ in largest.named_parameters(recurse=False))
        return f"{kind.__module__}.{kind.__qualname__}"

    def _differentiate(self) -> None:
        outputs, self._outputs = self._outputs, ()
        gradients, self._gradients = self._gradients, None
        torch.autograd.backward([tensor for tensor in outputs if tensor.requires_grad], gradients)
        for tensor in self._inputs:
            tensor.grad = None

    def sizes(self, *, optimizer_bytes: int) -> LayerBytes:
        """Weights, optimizer state, activations and workspace of the layer, as measured."""
        module = self.segment.module
        parameters, trained = count_bytes(module.parameters()), count_bytes(self.segment.parameters())
        return LayerBytes(
            parameters=parameters,
            trained=trained,
            state=parameters + trained + count_bytes(module.buffers()) + optimizer_bytes,
            saved=self.stash,
            weight_saved=self.weight_stash,
            inputs=storage_bytes(self.segment.inputs),
            workspace=max(0, self.workspace),
            optimizer=optimizer_bytes,
        )


def count_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of all elements that are held."""
    return sum(part.numel() * part.element_size() for part in tensors_in(list(tensors)))


def optimizer_bytes(optimizer: torch.optim.Optimizer | None) -> int:
    """Bytes of its state."""
    return 0 if optimizer is None else count_bytes(optimizer.state.values())


_PAGES = 2**16
"""Bytes that a host's pages, and what Python makes meanwhile, may count more than tensors have."""


class OperationMemory(LayerMemory):
    """The same of a layer that has run before, with the memory that operations hold inside them: copies in the order
    of a kernel, sums of threads, unfolded pictures. What the device's allocator has at most tells of it.
    """

    def __init__(self, segment: Segment) -> None:
        self._device = segment.inputs[0].device
        super().__init__(segment, watch=self._watch_device)

    def _watch_device(self, _: Phase, run: Callable[[], None]) -> int:
        before, alive = _begin_peak(self._device), self.live.mark()
        run()
        peak = _read_peak(self._device)
        inside = 0 if before is None or peak is None else peak - before - (self.live.peak - alive)
        return inside if inside > _PAGES else 0


def _begin_peak(device: torch.device) -> int | None:
    """Bytes that are held now, from when on the peak counts; None on a host that does not tell.

    Pages of files are left out there: they can be dropped.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return int(torch.cuda.memory_allocated(device))
    try:
        _give_back()
        CLEAR_REFS.write_text("5", encoding="ascii")  # see proc(5)
        return _kibibytes("VmRSS") - _kibibytes("RssFile")
    except OSError:
        return None


def _read_peak(device: torch.device) -> int | None:
    """The most bytes since; None on a host that does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        return _kibibytes("VmHWM") - _kibibytes("RssFile")
    except OSError:
        return None


def _kibibytes(name: str) -> int:
    """A line of the process's status, in bytes."""
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _give_back() -> None:
    """Free pages go back to the host, so that what is counted is held."""
    library: Any = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)

"""What tensors a piece of code holds, and the most it ever held: every storage that an operation gives is watched."""

import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class MemoryMeter(TorchDispatchMode):
    """Counts the bytes of the storages that were made inside; `known` ones are counted from the start."""

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self._ignored: set[int] = set()
        self._live: dict[int, tuple[Any, int]] = {}
        self.held = self.peak = 0
        for tensor in known:
            self._note(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {
            leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)
        }
        result = func(*args, **(kwargs or {}))
        self._forget()
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in given:
                self._note(leaf)
        return result

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if tensor.device.type == "meta" or storage._cdata in self._live:
            return
        self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.held += storage.nbytes()
        self.peak = max(self.peak, self.held)

    def _forget(self) -> None:
        for key in [key for key, (reference, _) in self._live.items() if reference.expired()]:
            self.held -= self._live.pop(key)[1]


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the distinct storages."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def all_tensors() -> list[torch.Tensor]:
    """Those that Python knows of."""
    gc.collect()
    return [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor) and each.device.type == "cpu"]

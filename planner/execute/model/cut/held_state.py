"""What a value holds, and all that it leads to: taken down at one moment, compared with another, and brought back."""

import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

ATOMS: frozenset[type] = frozenset(
    {bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
)
"""Types whose values never change, and are compared by equality."""
NOT_USERS = sys.stdlib_module_names | {"torch", "numpy", "planner"}
"""Packages of objects whose attributes are none of a model's state: locks, loggers, process groups."""


class HeldState:
    """Items of containers, attributes of users' objects, states of generators and elements of tensors at one moment.

    Modules and parameters are left alone.
    """

    def __init__(self, value: Any, *, has_copies: bool = True) -> None:
        """`has_copies`: of tensors, which may change in place."""
        self.value = value
        self.tensors: dict[int, torch.Tensor] = {}
        """All that it leads to, by identity."""
        self._contents: dict[int, tuple[Any, Any]] = {}
        """By identity of a holder: it, and what it held."""
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        pending = [value]
        while pending:
            held = pending.pop()
            key = id(held)
            if key in self._contents or key in self.tensors or isinstance(held, nn.Parameter | nn.Module):
                continue
            if isinstance(held, torch.Tensor):
                self.tensors[key] = held
                if has_copies:
                    self._copies[key] = held, _copy(held)
            elif (contents := _read(held)) is not None:
                self._contents[key] = held, contents
                items = contents.values() if isinstance(contents, dict) else contents
                pending += [item for item in items if type(item) not in ATOMS]

    def restore(self) -> None:
        """Every holder has its items again, and tensors of which there are copies their elements."""
        self._put_back({})
        with torch.no_grad():
            for tensor, copy in self._copies.values():
                if tensor.grad_fn is not None and not copy.requires_grad:
                    tensor.detach_()  # its forward wrote there what has a gradient
                if tensor.is_meta or _is_equal(tensor, copy):
                    continue  # nothing can be written to what is expanded
                (tensor if tensor.grad_fn is None else tensor.data).copy_(copy)

    def make_again(self) -> Any:
        """The value as it was, with copies in the place of its tensors: they stay as they are now."""
        again = {key: _copy(copy) for key, (_, copy) in self._copies.items()}
        self._put_back(again)
        return _exchange(self.value, again)

    def has(self, then: Any, now: Any) -> bool:
        """Whether something that it led to, or an object of no state, is now what another object is."""
        return next(self.find_moved(then, now, text="", seen=set(), has_tensors=True), None) is None

    def is_like(self, now: Any) -> bool:
        """Whether a value is what this one was then; objects of which nothing is known are only like themselves."""
        return self.has(self.value, now)

    def find_moved(
        self, then: Any, now: Any, *, text: str, seen: set[tuple[int, int]], has_tensors: bool = False
    ) -> Iterator[str]:
        """What is another than it was; of dictionaries and objects, by the items that are. `seen`: pairs that were
        compared; `has_tensors`: whether tensors' elements count.
        """
        mine, pair = self._contents.get(id(then), (None, None))[1], (id(then), id(now))
        theirs: Any = None if mine is None else _read(now)
        if isinstance(then, torch.Tensor) and isinstance(now, torch.Tensor):
            copy = self._copies.get(id(then), (None, then))[1]
            is_kind = (copy.dtype, copy.device) == (now.dtype, now.device)
            is_same = not has_tensors or (then is now if copy is then else is_kind and _is_equal(copy, now))
        elif type(then) is not type(now) or mine is None:
            is_same = then is now or (type(then) is type(now) and type(then) in ATOMS and bool(then == now))
        elif pair in seen or isinstance(mine, bytes):
            is_same = pair in seen or mine == theirs
        elif is_same := len(mine) == len(theirs) and (isinstance(mine, list) or list(mine) == list(theirs)):
            seen.add(pair)
            for key in mine if isinstance(mine, dict) else range(len(mine)):
                inner = f"{key!r} of {text}" if isinstance(mine, dict) else text
                yield from self.find_moved(mine[key], theirs[key], text=inner, seen=seen, has_tensors=has_tensors)
        if not is_same:
            yield text

    def _put_back(self, others: Mapping[int, torch.Tensor]) -> None:
        for held, contents in self._contents.values():
            if isinstance(contents, dict):
                contents = {key: _exchange(item, others) for key, item in contents.items()}
            elif isinstance(contents, list):
                contents = [_exchange(item, others) for item in contents]
            _write(held, contents)


def _exchange(item: Any, others: Mapping[int, torch.Tensor]) -> Any:
    """A tensor for another, by identity; or those of a tuple, in which none can be put in another's place."""
    return tuple(_exchange(each, others) for each in item) if type(item) is tuple else others.get(id(item), item)


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Without data shapes alone tell."""
    return one.shape == other.shape and (one.is_meta or other.is_meta or torch.equal(one, other))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _read(held: Any) -> Any:
    """What a holder holds, as a dictionary, a list, or (of generators and arrays) bytes; None: it holds nothing."""
    if isinstance(held, dict):
        return dict(held)
    if isinstance(held, list | tuple | set | deque):
        return list(held)
    if (accessors := _find_accessors(held)) is not None:
        return pickle.dumps(accessors[0]())
    return dict(vars(held)) if is_users(held) else None


def _write(held: Any, contents: Any) -> None:
    if isinstance(held, tuple):
        return
    if (accessors := _find_accessors(held)) is not None:
        accessors[1](pickle.loads(contents))
        return
    into = held if isinstance(held, dict | list | set | deque) else vars(held)
    into.clear()
    (into.extend if isinstance(into, list | deque) else into.update)(contents)


def _find_accessors(held: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """How a generator or an array tells its state, and how it is told."""
    numpy = sys.modules.get("numpy")
    if isinstance(held, random.Random):
        return held.getstate, held.setstate
    if isinstance(held, torch.Generator):
        return lambda: held.get_state().tolist(), lambda state: held.set_state(torch.ByteTensor(state))
    if numpy is not None and isinstance(held, numpy.random.RandomState):
        return held.get_state, held.set_state
    if numpy is not None and isinstance(held, numpy.random.Generator):
        return partial(getattr, held.bit_generator, "state"), partial(setattr, held.bit_generator, "state")
    if numpy is not None and isinstance(held, numpy.ndarray):
        return held.copy, partial(held.__setitem__, ...)
    return None


def is_users(held: Any) -> bool:
    """Whether it is an object of a user's own class, whose attributes may be a model's state."""
    home = type(held).__module__.partition(".")[0]
    is_open = isinstance(held, SimpleNamespace) or (home not in NOT_USERS and not isinstance(held, type))
    return is_open and hasattr(held, "__dict__")

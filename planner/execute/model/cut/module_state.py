"""What a model holds that running it changes: buffers, plain attributes, random numbers; and, trained, all the rest."""

import random
import sys
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn

from planner.execute.model.cut.held_state import ATOMS, HeldState, is_users
from planner.execute.model.cut.outside_state import NOTHING, find_outside

_EMPTY = nn.Module()
"""Has what torch gives every module."""


class ModuleState:
    """The state of a model at one moment, which comes back as often as it is asked for."""

    def __init__(self, module: nn.Module, *, has_weights: bool = False) -> None:
        """`has_weights`: keep the values of trained parameters, and their gradients, too."""
        self._attributes = [(path, vars(part), dict(vars(part))) for path, part in module.named_modules()]
        self._held = HeldState([[vars(part) for part in module.modules()], separate_generators()])
        weights = module.parameters() if has_weights else ()
        self._weights = [(each, each.detach().clone(), each.grad) for each in weights]
        self._outside = [(each, HeldState(each.held)) for each in find_outside(module)]

    @torch.no_grad()
    def restore(self) -> None:
        """Tensors get the values that they had; attributes the objects; containers their items, however deep."""
        self._held.restore()
        for parameter, value, grad in self._weights:
            parameter.copy_(value)
            parameter.grad = grad

    def restore_all(self) -> None:
        """And variables outside of the model likewise."""
        self.restore()
        for each, held in self._outside:
            held.restore()
            if each.held is not held.value:
                each.hold(held.value)

    def find_changed(self) -> list[str]:
        """Variables outside of the model, and its plain attributes, that are not what they were, for messages."""
        changed = [text for held, text, then, now in self._rows() if not held.has(then, now)]
        return [f"{each}, which changes from call to call: keep it in a buffer of one block" for each in changed]

    def find_moved(self) -> set[str]:
        """The same without tensors, wherever they are held, by the items that are others; and random generators."""
        drawn = "random numbers of Python's or NumPy's that its forward draws"
        rows = [*self._rows(), *((self._held, drawn, each, each) for each in separate_generators())]
        seen = set[tuple[int, int]]()
        return {each for held, text, *pair in rows for each in held.find_moved(*pair, text=text, seen=seen)}

    def _rows(self) -> Iterator[tuple[HeldState, str, Any, Any]]:
        """Variables and attributes: who knows what they held, how they are called, what they were and what they are."""
        for each, held in self._outside:
            yield held, each.text, held.value, each.held
        for path, holder, items in self._attributes:
            for name in dict.fromkeys([*items, *holder]):
                now = holder.get(name, NOTHING)
                if not (hasattr(_EMPTY, name) or isinstance(now, torch.Tensor | nn.Module)):
                    yield (
                        self._held,
                        f"attribute {name!r} of module {path or 'itself'!r}",
                        items.get(name, NOTHING),
                        now,
                    )


class ReadState:
    """What a model's code reads, and nobody else may change: layers were recorded with it, or hold copies. The mode
    does not count, as a model may be evaluated beside its training.
    """

    def __init__(self, module: nn.Module) -> None:
        self._outside = find_outside(module, has_still=True)
        self._own = [
            (vars(part), name, value, f"attribute {name!r} of module {path or 'itself'!r}")
            for path, part in module.named_modules()
            for name, value in vars(part).items()
            if type(value) in ATOMS and name != "training"
        ]
        self._weights = [(each, each.requires_grad, path) for path, each in module.named_parameters()]

    def outside(self) -> list[Any]:
        """Numbers and texts outside of modules, or held there by dictionaries and users' objects."""
        return [_atoms_of(each.held) for each in self._outside]

    def find_changed(self, before: list[Any], *, number: int) -> str:
        """The first that is not what it was before a call, or an attribute since the beginning; or nothing.

        `number`: of an iteration; attributes are many, so most iterations do not look at them.
        """
        rows = [(then, now, each.text) for then, now, each in zip(before, self.outside(), self._outside, strict=True)]
        if number < _FIRST or not number % _OFTEN:
            rows += [(then, holder.get(name, NOTHING), text) for holder, name, then, text in self._own]
            rows += [(then, each.requires_grad, f"requires_grad of {path!r}") for each, then, path in self._weights]
        return next((text for then, now, text in rows if then is not now and then != now), "")


_FIRST, _OFTEN = 4, 64


def _atoms_of(held: Any) -> Any:
    if isinstance(held, dict) or is_users(held):
        items = held if isinstance(held, dict) else vars(held)
        return {key: item for key, item in items.items() if type(item) in ATOMS}
    return held if type(held) in ATOMS else None


def separate_generators() -> list[Any]:
    """Random generators that are not torch's, and belong to nobody."""
    numpy, own = sys.modules.get("numpy"), cast(Any, random.random).__self__
    return [own] if numpy is None else [own, numpy.random.rand.__self__]


def seed_separately(number: int) -> None:
    """Likewise, to begin with a number."""
    random.seed(number)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number)

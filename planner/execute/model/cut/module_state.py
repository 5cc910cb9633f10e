"""What a model holds that running it changes: buffers, plain attributes, random numbers; and, trained, all the rest."""

import random
import sys
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn

from planner.execute.model.cut.held_state import HeldState
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


def separate_generators() -> list[Any]:
    """Random generators that are not torch's, and belong to nobody."""
    numpy, own = sys.modules.get("numpy"), cast(Any, random.random).__self__
    return [own] if numpy is None else [own, numpy.random.rand.__self__]


def seed_separately(number: int) -> None:
    """Likewise, to begin with a number."""
    random.seed(number)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number)

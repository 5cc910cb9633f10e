"""What a model holds that running it changes: buffers, plain attributes, random numbers; and, trained, all the rest."""

import random
import sys
from typing import Any, cast

import torch
from torch import nn

from planner.execute.model.cut.held_state import HeldState
from planner.execute.model.cut.outside_state import find_outside

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

    def find_changed(self, *, is_plain: bool = False) -> list[str]:
        """Variables outside of the model, and its plain attributes, that are not what they were, for messages;
        `is_plain`: only those that hold no tensor, and random generators.
        """
        outside = [(each.text, each.held) for each, held in self._outside if not held.is_like(each.held)]
        own = [
            (f"attribute {name!r} of module {path or 'itself'!r}", value)
            for path, holder, items in self._attributes
            for name, value in (dict.fromkeys(items) | holder).items()
            if not (hasattr(_EMPTY, name) or isinstance(value, torch.Tensor | nn.Module))
            and not (name in items and name in holder and self._held.has(items[name], value))
        ]
        found = [text for text, value in (*outside, *own) if not (is_plain and HeldState(value).tensors)]
        drawn = is_plain and not all(self._held.has(each, each) for each in separate_generators())
        return [
            *(f"{each}, which changes from call to call: keep it in a buffer of one block" for each in found),
            *(["random numbers of Python's or NumPy's that its forward draws: take torch's"] if drawn else []),
        ]


def separate_generators() -> list[Any]:
    """Random generators that are not torch's, and belong to nobody."""
    numpy, own = sys.modules.get("numpy"), cast(Any, random.random).__self__
    return [own] if numpy is None else [own, numpy.random.rand.__self__]


def seed_separately(number: int) -> None:
    """Likewise, to begin with a number."""
    random.seed(number)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number)

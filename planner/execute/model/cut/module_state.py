"""What a model holds that running it changes: buffers, plain attributes, random numbers; and, trained, all the rest."""

import random
import sys
from typing import Any, cast

import torch
from torch import nn

from planner.execute.model.cut.held_state import HeldState


class ModuleState:
    """The state of a model at one moment, which comes back as often as it is asked for."""

    def __init__(self, module: nn.Module, *, has_weights: bool = False) -> None:
        """`has_weights`: keep the values of trained parameters, and their gradients, too."""
        self._attributes = [(vars(part), dict(vars(part))) for part in module.modules()]
        self._held = HeldState([[vars(part) for part in module.modules()], separate_generators()])
        weights = module.parameters() if has_weights else ()
        self._weights = [(each, each.detach().clone(), each.grad) for each in weights]

    @torch.no_grad()
    def restore(self) -> None:
        """Tensors get the values that they had; attributes the objects; containers their items, however deep."""
        self._held.restore()
        for parameter, value, grad in self._weights:
            parameter.copy_(value)
            parameter.grad = grad

    def find_changed(self) -> list[str]:
        """Plain attributes that are not what they were, for messages."""
        return [
            f"attribute {name!r}, which changes from call to call"
            for holder, items in self._attributes
            for name, value in holder.items()
            if not name.startswith("_")
            and isinstance(value, int | float | str)
            and not (name in items and items[name] == value)
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

"""What a model holds that running it changes: buffers, plain attributes, random numbers; and, trained, all the rest."""

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from planner.execute.model.cut.held_state import HeldState


class ModuleState:
    """The state of a model at one moment, which comes back as often as it is asked for."""

    def __init__(self, module: nn.Module, *, has_weights: bool = False) -> None:
        """`has_weights`: keep the values of trained parameters, and their gradients, too."""
        self._attributes = [(vars(part), dict(vars(part))) for part in module.modules()]
        self._held = HeldState([vars(part) for part in module.modules()])
        weights = module.parameters() if has_weights else ()
        self._weights = [(each, each.detach().clone(), each.grad) for each in weights]
        self._restore_numbers = keep_separately()

    @torch.no_grad()
    def restore(self) -> None:
        """Tensors get the values that they had; attributes the objects; containers their items, however deep."""
        self._held.restore()
        for parameter, value, grad in self._weights:
            parameter.copy_(value)
            parameter.grad = grad
        self._restore_numbers()

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


def separate_numbers() -> tuple[Any, ...]:
    """The state of random generators that are not torch's."""
    numpy = sys.modules.get("numpy")
    state = () if numpy is None else numpy.random.get_state()[1:3]
    return random.getstate(), *(str(each) if isinstance(each, int) else each.tobytes() for each in state)


def keep_separately() -> Callable[[], None]:
    """Brings those generators back to where they are now."""
    numbers, numpy = random.getstate(), sys.modules.get("numpy")
    state = None if numpy is None else numpy.random.get_state()

    def restore() -> None:
        random.setstate(numbers)
        if numpy is not None:
            numpy.random.set_state(state)

    return restore


def seed_separately(number: int) -> None:
    """Likewise, to begin with a number."""
    random.seed(number)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number)

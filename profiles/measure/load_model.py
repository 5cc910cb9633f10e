"""What the user names becomes a model: a built-in family, a training, or a module that is cut into one."""

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from profiles.measure.families.catalog import FAMILIES, make_family
from profiles.measure.model import Model, as_model

_FORMS = (
    "a planner.execute.training.Training, or a torch.nn.Module with an example: (module, inputs), "
    "(module, inputs, target, loss)"
)


Kind = Literal["family", "training"]
"""`training`: the executor can run it as it is named."""

Cut = Callable[..., Any]
"""(what a factory gave, source=its name) to a training if it gave a module with an example: the executor's own way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model, and the kind of source that it was made from."""

    model: Model
    kind: Kind


def load_model(name: str, *, cut: Cut | None = None) -> LoadedModel:
    """The model called `name`: `module:factory`, or a family such as `gpt:layers=4,width=256`.

    Raises ValueError that says what is wrong with the name, the factory or what it gives.
    """
    head, colon, rest = name.partition(":")
    if head in FAMILIES and (not rest or "=" in rest):
        return LoadedModel(model=make_family(head, rest), kind="family")
    if not colon or not head or not rest:
        known = ", ".join(FAMILIES)
        raise ValueError(
            f"{name!r} is neither a factory nor a family; give module:factory, e.g. my_model:make_training, "
            f"or one of {known} with settings, e.g. gpt:layers=4,width=256"
        )
    return _interpret(_call(name, head, factory=rest), source=name, cut=cut)


def _call(name: str, module_name: str, *, factory: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does, and hence torchrun
    try:
        found: Any = importlib.import_module(module_name)
        for part in factory.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name!r} cannot be imported: {error}; check the spelling and the current folder") from error
    if not callable(found):
        raise ValueError(f"{name!r} is a {type(found).__name__}, not a function; give a factory without arguments")
    torch.manual_seed(0)  # as the executor does
    try:
        return found()
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{name!r} fails when it is called without arguments: {reason}") from error


def _interpret(given: Any, *, source: str, cut: Cut | None = None) -> LoadedModel:
    """The model of whatever a factory gave; raises ValueError that lists what may be given."""
    is_module = isinstance(given, tuple | list) and len(given) in (2, 4) and isinstance(given[0], nn.Module)
    model = as_model(cut(given, source=repr(source)) if is_module and cut is not None else given)
    if model is None:
        shown = f"{len(given)} things" if isinstance(given, tuple | list) else f"a {type(given).__name__}"
        raise ValueError(f"{source!r} gives {shown}; give {_FORMS}")
    if not model.layers:
        raise ValueError(f"{source!r} has no layers; give at least one")
    return LoadedModel(model=model, kind="training")

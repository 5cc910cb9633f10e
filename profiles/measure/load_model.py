"""What the user names becomes a model: a built-in family, a training, a sequential or a traceable module."""

import copy
import importlib
import os
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from profiles.measure.families.catalog import FAMILIES, make_family
from profiles.measure.model import Model, as_model, as_tuple
from profiles.measure.traced import cut_module

FORMS = (
    "a planner.execute.training.Training, or a torch.nn.Module with an example: (module, inputs), "
    "(module, inputs, target, loss)"
)


Kind = Literal["family", "training", "module"]
"""`training`: the executor can run it as it is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """A model, and what it was made of."""

    model: Model
    kind: Kind


def load_model(name: str) -> Intake:
    """The model called `name`: `module:factory`, or a family such as `gpt:layers=4,width=256`.

    Raises ValueError that says what is wrong with the name, the factory or what it gives.
    """
    head, colon, rest = name.partition(":")
    if head in FAMILIES and (not rest or "=" in rest):
        return Intake(model=make_family(head, rest), kind="family")
    if not colon or not head or not rest:
        known = ", ".join(FAMILIES)
        raise ValueError(
            f"{name!r} is neither module:factory (e.g. my_model:make_training) nor a family with its settings "
            f"(e.g. gpt:layers=4,width=256; there are {known})"
        )
    return interpret(_call(name, head, factory=rest), source=name)


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
    try:
        return found()
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{name!r} fails when it is called without arguments: {reason}") from error


def interpret(given: Any, *, source: str) -> Intake:
    """The model of whatever a factory gave; raises ValueError that lists what may be given."""
    model = as_model(given)
    kind: Kind = "module" if model is None else "training"
    if model is None:
        parts = tuple(given) if isinstance(given, tuple | list) else (given,)
        if not parts or not isinstance(parts[0], nn.Module) or len(parts) not in (2, 4):
            shown = f"{len(parts)} things" if isinstance(given, tuple | list) else f"a {type(given).__name__}"
            raise ValueError(f"{source!r} gives {shown}; give {FORMS}")
        model = _from_module(parts, source=source)
    if not model.layers:
        raise ValueError(f"{source!r} has no layers; give at least one")
    return Intake(model=model, kind=kind)


def _from_module(parts: tuple[Any, ...], *, source: str) -> Model:
    """Of a module and its example inputs, and a target and a loss if there are four parts."""
    module, inputs, target, loss = (*parts, None, None)[:4]
    examples = as_tuple(inputs)
    if any(tensor.dim() == 0 or not tensor.shape[0] for tensor in examples):
        raise ValueError(f"{source!r}: an example input has no samples along dimension 0; give at least one sample")
    layers, takes = cut_module(module, examples, source=source)
    return Model(
        layers={name: partial(copy.deepcopy, part) for name, part in layers.items()},
        inputs=takes,
        loss=_mean_of_squares if loss is None else loss,
        batch=lambda _: (examples, examples[0] if target is None else target),
        optimizer=_adamw,
    )


def _mean_of_squares(output: Any, target: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """Stands for a loss where none is given."""
    return torch.stack([tensor.float().square().mean() for tensor in as_tuple(output)]).sum()


def _adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)

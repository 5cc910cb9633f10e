"""A model that people have, with their batch and their loss, as the parts of a training."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from planner.execute.cut.cut_layer import copy_part
from planner.execute.cut.cut_model import FEWEST, Arguments, CutModel, cut_model
from planner.execute.cut.late_values import LateValues, find_late_values
from planner.execute.cut.recording import unpack
from planner.execute.cut.trees import Ref, change_leaves, leaves_of, tensors_of

LABELS = "labels"
"""The name under which models that compute their own loss take the target."""

GivenBatch = Callable[[int], Any]
"""Number of an iteration to (inputs, target): inputs as one tensor, as a tuple for the places of the model's forward,
or as a dictionary for its names; or, where the model computes its own loss, to such a dictionary with `labels`."""

Loss = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """What a training is made of, under the names that it has there."""

    layers: Mapping[str, Callable[[], nn.Module]]
    """How each is made."""
    inputs: Mapping[str, tuple[str, ...]]
    """What each takes."""
    tied: tuple[tuple[str, ...], ...]
    """Weights that several have."""
    aliases: Mapping[str, str]
    """Names in the model's state dictionary that no layer has, to the `layer:path` of the same weight."""
    batch: "BatchReader"
    """The tensors of an iteration."""
    loss: Loss
    """Of what the last layer gives."""


class BatchReader:
    """The user's batch as a tuple of tensors, and the target."""

    def __init__(self, batch: GivenBatch, *, has_own_loss: bool) -> None:
        self.given, self.has_own_loss, self.form = batch, has_own_loss, ""
        self.example, self.target = self.example_of(0)
        self.form = _form_of(self.example)

    def __call__(self, number: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Of one iteration; raises ValueError if it has another form than the first one."""
        inputs, target = self.example_of(number)
        if _form_of(inputs) != self.form:
            raise ValueError(
                f"the batch of iteration {number} has {_form_of(inputs)}, that of the first has {self.form}"
            )
        return tuple(tensors_of(inputs)), target

    def example_of(self, number: int) -> tuple[Any, torch.Tensor]:
        """Inputs as the model's forward takes them (a tuple, or by name), and the target."""
        given = self.given(number)
        if isinstance(given, Mapping):
            inputs, target = dict(given), given.get(LABELS)
        elif isinstance(given, tuple | list) and len(given) == 2:
            inputs, target = given
            inputs = dict(inputs) if isinstance(inputs, Mapping) else inputs
        else:
            raise ValueError(f"the batch is a {type(given).__name__}; give (inputs, target), or names and tensors")
        if not isinstance(target, torch.Tensor):
            raise ValueError(f"the batch has no target; give (inputs, target), or a dictionary with {LABELS!r}")
        if self.has_own_loss and (not isinstance(inputs, dict) or LABELS not in inputs):
            raise ValueError(f"without a loss the model has to compute it, of {LABELS!r} in the batch; give a loss")
        return inputs if isinstance(inputs, dict | tuple | list) else (inputs,), target


def _form_of(inputs: Any) -> str:
    names = f"{', '.join(map(str, inputs))} " if isinstance(inputs, dict) else ""
    kinds = [
        f"{leaf.dim()}-dimensional" if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves_of(inputs)
    ]
    return f"{names}({', '.join(kinds)})"


def make_parts(module: nn.Module, *, batch: GivenBatch, loss: Loss | None, weights: Path | None) -> ModelParts:
    """Cut the model on samples of the first batch; raises ValueError that says why it cannot be cut.

    `weights`: files with the values that its layers start with.
    """
    values = find_late_values(module, weights=weights)
    reader = BatchReader(batch, has_own_loss=loss is None)
    further = _further_arguments(module)

    def arguments(count: int) -> Arguments:
        given = change_leaves(reader.example, lambda leaf: _take(leaf, count))
        return ((), given | further) if isinstance(given, dict) else (tuple(given), further)

    def uses(output: Any) -> list[torch.Tensor]:
        return [_own_loss(output)] if loss is None else _used_by(loss, output, target=_take(reader.target, FEWEST))

    cut = cut_model(module, arguments, uses=uses)
    return ModelParts(
        layers={name: partial(_make_copy, layer, name=name, values=values) for name, layer in cut.layers.items()},
        inputs=cut.inputs,
        tied=cut.tied,
        aliases=_find_aliases(module, cut),
        batch=reader,
        loss=_given_loss if loss is None else OutputLoss(loss, cut),
    )


def _find_aliases(module: nn.Module, cut: CutModel) -> dict[str, str]:
    homes: dict[int, str] = {}
    known: set[str] = set()
    for name, layer in cut.layers.items():
        for path, tensor in layer.state_dict(keep_vars=True).items():
            homes.setdefault(id(tensor), f"{name}:{path}")
            known.add(path)
    state = module.state_dict(keep_vars=True)
    return {key: homes[id(tensor)] for key, tensor in state.items() if key not in known and id(tensor) in homes}


def _further_arguments(module: nn.Module) -> dict[str, Any]:
    """Models of transformers keep keys and values unless they are told not to."""
    parameters = inspect.signature(module.forward).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    has_caches = getattr(getattr(module, "config", None), "use_cache", None) is not None
    return {"use_cache": False} if "use_cache" in parameters or (takes_any and has_caches) else {}


def _take(leaf: Any, count: int) -> Any:
    """The first samples of a tensor, again from the first one where there are not so many."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.dim() == 0 or not leaf.shape[0]:
        raise ValueError("the batch has no samples along dimension 0; give at least one")
    return torch.cat([leaf] * -(-count // leaf.shape[0]))[:count].clone()


def _make_copy(layer: nn.Module, *, name: str, values: LateValues) -> nn.Module:
    is_empty = torch.get_default_device().type == "meta"
    return copy_part(layer, values=None if is_empty else values.make(layer, name=name))


def _own_loss(output: Any) -> torch.Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if not isinstance(loss, torch.Tensor):
        raise ValueError(f"what the model gives ({type(output).__name__}) has no loss; give `loss`")
    return loss


def _given_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """The last layer computes it."""
    return output


class OutputLoss:
    """The user's loss of what the model gives, of which the last layer gives the part that the loss uses."""

    def __init__(self, loss: Loss, cut: CutModel) -> None:
        self.loss, self.output, self.given = loss, cut.output, cut.given

    def __call__(self, output: Any, target: torch.Tensor) -> torch.Tensor:
        """Of one microbatch."""
        values = dict(zip(self.given, output if isinstance(output, tuple | list) else (output,), strict=True))
        given = change_leaves(self.output, lambda leaf: values.get(leaf.number) if isinstance(leaf, Ref) else leaf)
        return self.loss(given, target)


class _Touched(TorchFunctionMode):
    """Notes which tensors functions are given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, *given: Any) -> Any:
        args, named = unpack(given)
        self.seen.update(id(tensor) for tensor in tensors_of((args, named)))
        return func(*args, **named)


def _used_by(loss: Loss, output: Any, *, target: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of the output that the loss looks at."""
    with _Touched() as touched:
        loss(output, target)
    return [tensor for tensor in tensors_of(output) if id(tensor) in touched.seen]

"""The model that is measured: layers by name, and how they are trained."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

Tensors = tuple[torch.Tensor, ...]
"""What a layer takes or gives; a single tensor counts as a tuple of one."""

BATCH = ""
"""Stands for the batch where the name of a producing layer would stand."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """The twin of the executor's Training, field by field (profiles knows no planner), and accepted in its stead."""

    layers: Mapping[str, Callable[[], nn.Module]]
    """How each layer is made, by its name, in topological order."""
    loss: Callable[..., torch.Tensor]
    """(output of the last layer, target) of one microbatch to a scalar."""
    batch: Callable[[int], tuple[torch.Tensor | Tensors, torch.Tensor]]
    """Inputs and target of an iteration; samples along dimension 0."""
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    """Makes the optimizer of some parameters."""
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Layers that take something else than the layer before them."""
    tied: tuple[tuple[str, ...], ...] = ()
    """Groups of parameters that are one."""
    loss_is_sum: bool = False
    """Whether the loss adds up its samples."""
    seed: int = 0
    """Seed of the initial weights."""
    not_compared: tuple[str, ...] = ()
    """Modules of a model as it is that were not trained beside their layers for a trial."""


FIELDS = ("layers", "loss", "batch", "optimizer", "inputs", "tied", "loss_is_sum", "seed")


class Waiting(Protocol):
    """Holds weight gradients that are put off while `is_deferring`, of what ran forward while `is_noting`."""

    is_deferring: bool
    is_noting: bool

    def take(self) -> Callable[[], None]:
        """A function that computes all that waits: W."""
        ...

    def recompute(self, *inputs: torch.Tensor) -> Any:
        """The module's outputs of a forward that runs again in its backward."""
        ...

    def find_memory(self, *inputs: torch.Tensor) -> str:
        """What the module keeps of a microbatch that changes what it gives of the next; empty: nothing."""
        ...


Defer = Callable[[nn.Module], Waiting]
"""Changes a module so that its weight gradients can wait. The executor's own way is given by the caller: what is timed
as I and W is what the executor will run, and no second copy of it exists here."""


def as_model(given: Any) -> Model | None:
    """A Model or anything with its fields (the executor's Training); None for everything else."""
    if isinstance(given, Model):
        return given
    if all(hasattr(given, name) for name in FIELDS):
        not_compared = tuple(getattr(given, "not_compared", ()))
        return Model(**{name: getattr(given, name) for name in FIELDS}, not_compared=not_compared)
    return None


def as_tuple(value: Any) -> Tensors:
    """A tuple of tensors; raises ValueError for anything else."""
    tensors = tuple(value) if isinstance(value, tuple | list) else (value,)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"a {type(tensor).__name__} cannot be passed between layers; give tensors, alone or in a tuple"
            )
        if tensor.layout is not torch.strided:
            dense = "to_padded_tensor(0)" if tensor.is_nested else "to_dense()"
            raise ValueError(f"a tensor of layout {tensor.layout} cannot be passed between layers; give `.{dense}`")
    return tensors


def sources_of(model: Model) -> dict[str, tuple[str, ...]]:
    """Per layer the producers that it takes; raises ValueError where one is not an earlier layer."""
    takes: dict[str, tuple[str, ...]] = {}
    before, known = BATCH, {BATCH}
    for name in model.layers:
        takes[name] = tuple(model.inputs.get(name, (before,)))
        for source in takes[name]:
            if source not in known:
                raise ValueError(f"layer {name!r} takes {source!r}, which is not an earlier layer; correct `inputs`")
        known.add(name)
        before = name
    if unknown := set(model.inputs) - known:
        raise ValueError(f"`inputs` names {min(unknown)!r}, which is not a layer; correct `inputs`")
    return takes


def take_samples(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` samples, again from the first one where there are not so many."""
    if tensor.dim() == 0 or tensor.shape[0] == 0:
        raise ValueError("the batch has no samples along dimension 0; give at least one")
    repeats = -(-count // tensor.shape[0])
    return torch.cat([tensor] * repeats)[:count].clone() if repeats > 1 else tensor[:count].clone()


def num_samples(model: Model) -> int:
    """Samples of one iteration; raises ValueError where the batch is no inputs and target."""
    given: Any = model.batch(0)
    if isinstance(given, Mapping) or len(given) != 2 or not isinstance(given[1], torch.Tensor):
        raise ValueError(
            "the batch of iteration 0 lists its microbatches one by one; to be profiled, give (inputs, target) of "
            "samples of one length, such as the longest"
        )
    target = given[1]
    return int(target.shape[0]) if target.dim() else 1

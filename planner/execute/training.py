"""What a user gives beside the plan: the layers, the loss, the data and the optimizer."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Tensors = tuple[torch.Tensor, ...]
"""What a layer takes or gives; a single tensor counts as a tuple of one."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """A model in pieces, and how it is trained."""

    layers: Mapping[str, Callable[[], nn.Module]]
    """How each layer is made, by its name in the plan, in topological order. A process makes its own layers; it makes
    the others on the meta device, to learn their shapes. Random numbers are seeded by the layer's position."""
    loss: Callable[..., torch.Tensor]
    """(output of the last layer, target) of one microbatch to a scalar; the mean over the samples, or see
    `loss_is_sum`."""
    batch: Callable[[int], tuple[torch.Tensor | Tensors, torch.Tensor]]
    """The inputs and the target of the whole iteration with this number, on any device; samples along dimension 0."""
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    """Makes the optimizer of one process from the parameters that it holds."""
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Layers that take something else than the layer before them: the names of those whose outputs they take, in the
    order of their arguments; `""` stands for the batch."""
    tied: tuple[tuple[str, ...], ...] = ()
    """Groups of parameters that are one, as `layer:path.of.parameter`: they start with the value of the first, and
    their gradients are added up."""
    loss_is_sum: bool = False
    """The loss adds up its samples, so the iteration's loss is the sum over microbatches and replicas, not the mean."""
    max_norm: float | None = None
    """Gradients are scaled so that the norm of all of them together, over all processes, is this at most."""
    seed: int = 0
    """Seed of the initial weights."""


def load_training(name: str) -> Training:
    """Call the factory `module:factory`; raises ValueError if there is none or if it gives something else."""
    module_name, _, factory_name = name.partition(":")
    if not module_name or not factory_name:
        raise ValueError(f"--model {name!r} is not of the form module:factory, e.g. my_package.my_model:make_training")
    try:
        factory: Any = importlib.import_module(module_name)
        for part in factory_name.split("."):
            factory = getattr(factory, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--model {name!r} cannot be imported: {error}") from error
    training = factory()
    if not isinstance(training, Training):
        raise ValueError(f"--model {name!r} gives a {type(training).__name__}, not a planner.execute.training.Training")
    if not training.layers:
        raise ValueError(f"--model {name!r} has no layers")
    return training


def as_tuple(value: torch.Tensor | Tensors) -> Tensors:
    """A tuple of tensors, whatever a layer or a loader gave; raises ValueError for anything else."""
    tensors = tuple(value) if isinstance(value, tuple | list) else (value,)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"a {type(tensor).__name__} cannot travel between stages; give tensors, alone or in a tuple"
            )
    return tensors

"""What a user gives beside the plan: the layers, the loss, the data and the optimizer."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from planner.execute.model.cut.trees import leaves_of, tensors_of
from planner.execute.model.cut.whole_model import GivenBatch, make_parts, require_blind_factory
from planner.execute.model.user_code import calling
from planner.execute.model.weight_conversion import WeightConversion, conversion_of

Tensors = tuple[torch.Tensor, ...]
"""What a layer takes or gives; a single tensor counts as a tuple of one."""


Batch = tuple[torch.Tensor | Tensors, torch.Tensor]
"""Inputs and target of a whole iteration, samples along dimension 0."""

Microbatches = Sequence[Batch] | Mapping[int, Batch]
"""Inputs and target of every microbatch, each of its own size; or, by their numbers, of those that this process takes
at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """Dynamic loss scaling for float16, as torch.amp.GradScaler does it: one factor for all processes."""

    initial: float = 2.0**16
    """Factor of the loss to begin with."""
    growth: float = 2.0
    """By what it is multiplied after `interval` good iterations."""
    backoff: float = 0.5
    """By what it is multiplied when a gradient is not finite; that iteration's step is left out."""
    interval: int = 2000
    """Iterations."""

    def __post_init__(self) -> None:
        if not (self.initial > 0 and self.growth >= 1 and 0 < self.backoff <= 1 and self.interval > 0):
            raise ValueError(
                f"loss_scale: initial {self.initial}, growth {self.growth}, backoff {self.backoff} and interval "
                f"{self.interval} are out of range; give initial > 0, growth >= 1, 0 < backoff <= 1, interval >= 1"
            )


@dataclass(frozen=True, kw_only=True)
class Training:
    """A model in pieces, and how it is trained."""

    layers: Mapping[str, Callable[[], nn.Module]]
    """How each layer is made, by its name in the plan, in topological order. A process makes its own layers; it makes
    the others on the meta device, to learn their shapes. Random numbers are seeded by the layer's position."""
    loss: Callable[..., torch.Tensor]
    """(output of the last layer, target) of one microbatch to a scalar; the mean over the samples, or see
    `loss_is_sum`."""
    batch: Callable[[int], Batch | Microbatches]
    """The inputs and the target of the whole iteration with this number, on any device; samples along dimension 0. Or
    a list of its microbatches, which may differ in size (docs/how-to/uneven-sequences.md)."""
    optimizer: Callable[[list[Any]], torch.optim.Optimizer | Sequence[torch.optim.Optimizer]]
    """Makes the optimizer of one process, or several, from the trained parameters that it holds, in the model's order:
    a list of parameters, or of groups (dictionaries) where `settings` is given."""
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
    """Seed of the initial weights, and of what layers draw (dropout): by iteration, layer, microbatch and replica."""
    settings: Callable[[str, nn.Parameter], Mapping[str, Any]] | None = None
    """(`layer:path.of.parameter`, parameter) to what its optimizer's group is told, as `{"weight_decay": 0.0}`."""
    schedule: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None
    """Makes the schedule of the learning rate; it takes a step after each of the optimizer's."""
    accumulate: int = 1
    """The optimizer takes a step every so many iterations, with the mean over all microbatches of them (or the mean of
    their sums)."""
    num_tokens: Callable[[torch.Tensor], Any] | None = None
    """(target of some samples) to how many tokens count in them: the gradient, and the loss told, are divided by their
    number in the whole step. Goes with `loss_is_sum`."""
    loss_scale: LossScale | None = None
    """Scales the loss up for the backward, and gradients down before they are used."""
    sync_batch_norm: bool = True
    """Batch norms of replicas take statistics over the whole microbatch, as one process does. False: each replica over
    its own samples, as DistributedDataParallel does; the running averages are then the first replica's."""
    float32_gradients: bool = False
    """Gradients of shorter parameters are added up, and reduced, in float32."""
    on_nonfinite: Literal["stop", "skip", "ignore"] = "stop"
    """When a loss or a gradient is not finite: stop all processes, leave out the step, or look away."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Names of the model's state dictionary that say another weight's, to that weight's `layer:path`."""
    order: Mapping[str, int] = field(default_factory=dict)
    """Of `layer:path` the place in which the optimizer's factory gets a weight; left out: as layers come."""
    conversion: WeightConversion | None = None
    """Between the model's state dictionary and files of it, where transformers' differ."""
    not_compared: tuple[str, ...] = ()
    """Modules of a model as it is that were not trained beside their layers for a trial, for want of memory."""
    deal: Callable[[Sequence[torch.Size], int], Sequence[Sequence[int]]] | None = None
    """(shape of the first input of every microbatch of an iteration, number of pipelines) to the microbatches of each
    pipeline, in the order in which it runs them: they are dealt anew, whole, in every iteration, and every pipeline
    runs 1F1B. Called in every process, and has to give the same in all of them. None: as the plan says."""
    evaluation: Callable[[int], Batch | Microbatches] | None = None
    """As `batch`, for `--evaluate-every`."""
    parallelize: Callable[[str, nn.Module, int], Mapping[str, Any]] | None = None
    """(layer's name, layer, width) to what `parallelize_module` is told where a group of `width` devices runs the
    layer together: the styles (`torch.distributed.tensor.parallel`) of its parts by their paths. It may change what the
    layer counts (heads). None: families that are known (docs/reference/executor.md)."""

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise ValueError(f"accumulate = {self.accumulate} is not positive; give the number of iterations per step")
        if self.num_tokens is not None and not self.loss_is_sum:
            raise ValueError(
                "num_tokens is given, but the loss is a mean; sum it over tokens and set loss_is_sum = True"
            )
        if self.on_nonfinite not in ("stop", "skip", "ignore"):
            raise ValueError(f"on_nonfinite = {self.on_nonfinite!r} is not allowed; give stop, skip or ignore")
        if self.max_norm is not None and not self.max_norm > 0:
            raise ValueError(f"max_norm = {self.max_norm} is not positive; leave it out, or give the norm to clip to")

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        *,
        batch: GivenBatch,
        optimizer: Callable[[list[Any]], torch.optim.Optimizer | Sequence[torch.optim.Optimizer]],
        loss: Callable[..., torch.Tensor] | None = None,
        weights: Path | str | None = None,
        **more: Any,
    ) -> "Training":
        """A model as it is, cut into layers at its blocks; they start with its weights.

        `batch`: the number of an iteration to (inputs, target), inputs as a tensor, as a tuple for the places of the
        model's forward or as a dictionary for its names. `loss`: (what the model gives, target) of one microbatch to a
        scalar; without it the batch is a dictionary with `labels`, and the model gives the loss itself. `weights`: file
        or folder of a state dictionary, of which each process reads its layers' part; the model's own parameters may
        then be on the meta device. `optimizer` is called more than once. `more`: other fields. Raises ValueError that
        says why the model cannot be cut, the factory goes by the model's own weights, or the batch's tensors have
        unequal numbers of samples, and what to write instead.
        """
        conversion = conversion_of(module)
        path = None if weights is None else Path(weights)
        made = make_parts(module, batch=batch, loss=loss, weights=path, conversion=conversion)
        if more.get("settings") is None:
            require_blind_factory(module, optimizer)
        return cls(**made, optimizer=optimizer, conversion=conversion, **more)


def load_training(name: str) -> Training:
    """Call the factory `module:factory`; raises ValueError if there is none or if it gives something else."""
    module_name, _, factory_name = name.partition(":")
    if not module_name or not factory_name:
        raise ValueError(f"--model {name!r} is malformed; give module:factory, e.g. my_package.my_model:make_training")
    try:
        factory: Any = importlib.import_module(module_name)
        for part in factory_name.split("."):
            factory = getattr(factory, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--model {name!r} cannot be imported: {error}") from error
    with calling(f"--model {name}"):
        torch.manual_seed(0)  # a model that is made whole starts with the same weights in every process
        training = factory()
    training = training_of(training, source=f"--model {name!r}")
    if not isinstance(training, Training):
        raise ValueError(
            f"--model {name!r} gives a {type(training).__name__}, not a Training; "
            "return a planner.execute.training.Training"
        )
    if not training.layers:
        raise ValueError(f"--model {name!r} has no layers; give at least one")
    return training


def training_of(given: Any, *, source: str) -> Any:
    """A Training of (module, inputs, target, loss), or of a module and inputs alone, with a mean of squares as loss
    and AdamW as optimizer; anything else as it is. Raises ValueError where the module cannot be cut.
    """
    parts = tuple(given) if isinstance(given, tuple | list) else ()
    if len(parts) not in (2, 4) or not isinstance(parts[0], nn.Module):
        return given
    module, inputs, target, loss = (*parts, None, None)[:4]
    found = [leaf for leaf in leaves_of(inputs) if isinstance(leaf, torch.Tensor)]
    if not found or any(tensor.dim() == 0 or not tensor.shape[0] for tensor in found):
        raise ValueError(f"{source}: an example input has no samples along dimension 0; give at least one sample")
    batch = inputs, found[0] if target is None else target
    return Training.from_module(
        module, batch=lambda _: batch, loss=loss or _mean_of_squares, optimizer=partial(torch.optim.AdamW, lr=1e-4)
    )


def _mean_of_squares(output: Any, target: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """Stands for a loss where none is given."""
    squares = [tensor.float().square().mean() for tensor in leaves_of(output) if isinstance(tensor, torch.Tensor)]
    return torch.stack(squares).sum()


def as_tuple(value: torch.Tensor | Tensors) -> Tensors:
    """A tuple of tensors, whatever a layer or a loader gave; raises ValueError for anything else."""
    tensors = tuple(value) if isinstance(value, tuple | list) else (value,)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"a {type(tensor).__name__} cannot be sent between stages; give tensors, alone or in a tuple"
            )
        if tensor.layout is not torch.strided:
            dense = "to_padded_tensor(0)" if tensor.is_nested else "to_dense()"
            raise ValueError(f"a tensor of layout {tensor.layout} cannot be sent between stages; give `.{dense}`")
    return tensors


def require_numbered(batch: Callable[[int], Any], *, steps: int) -> None:
    """Raise ValueError for a function that gives other samples when it is asked for an iteration once more, as one that
    takes the next of a loader: it is asked before the training, too, and not by every process.
    """
    with calling("the batch of iteration 0"):
        first = [each.clone() for each in tensors_of(batch(0))]  # some fill the same tensors again
    for number in (1, 0) if steps > 1 else (0,):
        with calling(f"the batch of iteration {number}"):
            again = tensors_of(batch(number))
    if len(first) == len(again) and all(map(_is_same, first, again)):
        return
    raise ValueError(
        "`batch` gives other samples when it is called for iteration 0 again, as the next of a loader; "
        "let them hang on the number alone (a generator seeded with it), or hand them over in a loop of your own"
    )


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.layout is not torch.strided or one.is_nested or one.is_meta:
        return True  # nothing that could be sent
    return one.shape == other.shape and bool(((one == other) | (one != one)).all())

"""What a transformers `Trainer` would train, as a `Training`: to be profiled, planned and run."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel, Trainer, get_scheduler

from planner.execute.data.data_agreement import IGNORED
from planner.execute.training import Training

_SHORT = (torch.bfloat16, torch.float16)

_UNKNOWN_OPTIMIZERS = ("params", "model", "optimizer_dict")
"""What the `Trainer` tells optimizers that look at the whole model."""


def make_training(
    trainer: Trainer, *, batch: Callable[[int], Mapping[str, Any]] | None = None, num_steps: int = 1
) -> Training:
    """The model of a `Trainer` with its optimizer, schedule, clipping, accumulation and division of the loss by tokens.

    `batch`: number of an iteration to what the model is called with; None: the first of the trainer's loader, always.
    `num_steps`: of the optimizer, which the schedule is told. Raises ValueError for what would be trained otherwise
    than in one process, with what to write instead.
    """
    require_trainable(trainer)
    args, model, ask = trainer.args, cast(PreTrainedModel, trainer.model), batch or _always(first_batch(trainer))
    is_per_token = trainer.model_accepts_loss_kwargs and "labels" in ask(0)
    kind, options = _optimizer_of(trainer)
    decays = _decaying(trainer)
    more: dict[str, Any] = {}
    if is_per_token:
        more = {"loss_is_sum": True, "num_tokens": lambda target: count_tokens(trainer, {"labels": target})}
    training = Training.from_module(
        model,
        batch=lambda number: {**ask(number), **({"num_items_in_batch": 1} if is_per_token else {})},
        optimizer=lambda groups: kind(groups, **options),
        settings=lambda name, _: {"weight_decay": args.weight_decay if name.partition(":")[2] in decays else 0.0},
        schedule=lambda optimizer: get_scheduler(
            args.lr_scheduler_type,
            optimizer=optimizer,
            num_warmup_steps=args.get_warmup_steps(num_steps),
            num_training_steps=num_steps,
            scheduler_specific_kwargs=cast(Any, args.lr_scheduler_kwargs),
        ),
        accumulate=args.gradient_accumulation_steps,
        max_norm=args.max_grad_norm or None,
        seed=args.seed,
        float32_gradients=any(parameter.dtype in _SHORT for parameter in model.parameters()),
        **more,
    )
    if not args.bf16:
        return training
    return replace(training, layers={name: partial(make_casting, make) for name, make in training.layers.items()})


def make_casting(make: Callable[[], nn.Module]) -> nn.Module:
    """A layer that computes under autocast."""
    layer = make()
    layer.forward = _CastingForward(layer)
    return layer


class _CastingForward:
    """Computes in bfloat16 what `torch.autocast` does, as accelerate lets the whole model do.

    What the layer gives is in float32, and so it is without data, where there is no autocast; another layer that would
    have computed in bfloat16 casts it back.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, *arrived: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Output of the wrapped layer."""
        kind = arrived[0].device.type
        with nullcontext() if kind == "meta" else torch.autocast(kind, torch.bfloat16):
            found = type(self.layer).forward(self.layer, *arrived)
        if isinstance(found, torch.Tensor):
            return _lengthened(found)
        return tuple(map(_lengthened, found))


def _lengthened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in _SHORT else tensor


def _always(given: Mapping[str, Any]) -> Callable[[int], Mapping[str, Any]]:
    return lambda _: given


def _optimizer_of(trainer: Trainer) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Class and arguments; raises ValueError for one that has to see the whole model."""
    model = cast(PreTrainedModel, trainer.model)
    kind, options = trainer.optimizer_cls_and_kwargs or Trainer.get_optimizer_cls_and_kwargs(trainer.args, model)
    is_known = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    if not is_known or set(options) & {*_UNKNOWN_OPTIMIZERS}:
        raise ValueError(
            f"optim = {trainer.args.optim!r} needs the whole model; give one that takes parameters, such as adamw_torch"
        )
    return kind, options


def _decaying(trainer: Trainer) -> set[str]:
    """Names of the parameters whose weights decay, all names of those that have several included."""
    model = cast(PreTrainedModel, trainer.model)
    names = set(trainer.get_decay_parameter_names(model))
    decayed = {id(parameter) for name, parameter in model.named_parameters() if name in names}
    return {name for name, each in model.named_parameters(remove_duplicate=False) if id(each) in decayed}


def require_trainable(trainer: Trainer) -> None:
    """Raise ValueError for what a plan would leave out without a word."""
    args = trainer.args
    found = {
        "fp16 (its loss scaling needs an accelerator and is untested; bf16 is supported)": args.fp16,
        "label_smoothing_factor": args.label_smoothing_factor,
        "compute_loss_func": trainer.compute_loss_func is not None,
        "neftune_noise_alpha": args.neftune_noise_alpha is not None,
        "torch_compile": args.torch_compile,
        "gradient_checkpointing (the plan decides it: pipeplan plan --recompute)": args.gradient_checkpointing,
        "auto_find_batch_size": args.auto_find_batch_size,
        "deepspeed or fsdp": args.deepspeed or args.fsdp,
        "ReduceLROnPlateau and GreedyLR": str(args.lr_scheduler_type).endswith(("reduce_lr_on_plateau", "greedy")),
        "`optimizers` (give optimizer_cls_and_kwargs)": isinstance(trainer.optimizer, torch.optim.Optimizer),
    }
    wrong = [name for name, is_there in found.items() if is_there]
    if wrong:
        raise ValueError(f"under a plan the Trainer does not support {', '.join(wrong)}; leave it out")


def first_batch(trainer: Trainer) -> dict[str, Any]:
    """What the model is called with first; the loader and the generators are as they were."""
    with torch.random.fork_rng(devices=[]):
        found: Mapping[str, Any] = next(iter(trainer.get_train_dataloader()))
    return dict(found)


def count_tokens(trainer: Trainer, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Of some samples, as the `Trainer` counts them: the first of each is nobody's prediction in causal models."""
    labels = inputs["labels"]
    return (labels[..., 1:] if trainer._loss_shifts_labels else labels).ne(IGNORED).sum()


def require_even_loss(inputs: Mapping[str, Any]) -> None:
    """Raise ValueError where the mean over a batch is not that of its microbatches' means."""
    labels = inputs.get("labels")
    if isinstance(labels, torch.Tensor) and labels.dim() > 1 and bool(labels.eq(IGNORED).any()):
        raise ValueError(
            f"labels of {IGNORED} leave microbatches with different numbers of tokens, but this model does not accept "
            "num_items_in_batch; give labels without them"
        )

"""The transformers `Trainer`, whose steps are iterations of a plan.

Every process has the whole `Trainer` and believes itself alone; it is given the whole batch, of which the plan cuts its
part. `per_device_train_batch_size` is that of an iteration, as if all devices were one.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import distributed, nn
from transformers import Trainer

from planner.execute.run.execution import Execution
from planner.execute.session import Choices, join
from planner.execute.state.checkpoint import load_checkpoint, save_checkpoint
from planner.execute.state.state_dict import share_weights
from planner.execute.transformers_trainer.trainer_training import (
    count_tokens,
    first_batch,
    make_training,
    require_even_loss,
    require_trainable,
)

_CHECKPOINT = "pipeplan"
"""Folder of a checkpoint of the `Trainer` with what the processes have to continue from."""


class PlannedTrainer(Trainer):
    """Trains as planned what `Trainer` would train in one process."""

    plan: ClassVar[Path]
    """Document of the plan."""
    choices: ClassVar[Choices] = Choices()
    """Options of the executor."""
    launcher: ClassVar[Mapping[str, str]] = {}
    """The variables by which the launcher tells a process its rank; accelerate does not see them."""

    num_trained: ClassVar[int] = 0
    """How often a training has begun in this process."""

    def __init__(self, *args: Any, **named: Any) -> None:
        """As `Trainer`; raises ValueError for what cannot be trained under a plan."""
        self.process = int(self.launcher.get("RANK", "0"))
        self.execution: Execution | None = None
        self._stack, self._given = ExitStack(), dict[str, Any]()
        self._number = 0
        self._norm: float | None = None
        super().__init__(*args, **named)
        require_trainable(self)

    def create_accelerator_and_postprocess(self) -> None:
        """The first process alone writes, logs and pushes."""
        super().create_accelerator_and_postprocess()
        state = self.args.distributed_state
        state.process_index = state.local_process_index = self.process

    def train(self, *args: Any, **named: Any) -> Any:
        """As `Trainer.train`; a collective call. What goes wrong ends all processes with one message."""
        with self._stack:
            return super().train(*args, **named)

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, *more: Any) -> Any:
        """Meet the other processes in the place of wrapping the model; gives model and loader."""
        (resume_from_checkpoint,) = more
        state = torch.get_rng_state()
        training = make_training(self, batch=self._batch, num_steps=max_steps)
        with self._launched():
            self.execution = self._stack.enter_context(join(self.plan, training, choices=self.choices))
        PlannedTrainer.num_trained += 1
        torch.set_rng_state(state)  # loaders have to draw the same everywhere
        self._number, schedules = 0, self.execution.update.schedules
        schedule = _OwnSchedule(schedules)
        self.optimizer, self.lr_scheduler = _OwnOptimizer(self.execution), cast(Any, schedule)
        if resume_from_checkpoint is not None:
            self._number = load_checkpoint(self.execution, Path(resume_from_checkpoint, _CHECKPOINT))
            schedule.step()
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = train_dataloader
        return self.model, train_dataloader

    def _batch(self, number: int) -> dict[str, Any]:  # noqa: ARG002
        """Of the iteration that is under way; before the first one, that of the first."""
        self._given = self._given or first_batch(self)
        return self._given

    @contextmanager
    def _launched(self) -> Iterator[None]:
        os.environ.update(self.launcher)
        try:
            yield
        finally:
            for name in self.launcher:
                del os.environ[name]

    def training_step(self, model: nn.Module, inputs: Mapping[str, Any], *more: Any, **named: Any) -> torch.Tensor:  # noqa: ARG002
        """An iteration of the plan, the optimizer's step included where it is due; gives the loss as `Trainer` does."""
        num_items: Any = more[0] if more else named.get("num_items_in_batch")
        execution, args = self.execution, self.args
        assert execution is not None
        if self.current_gradient_accumulation_steps != args.gradient_accumulation_steps:
            raise ValueError(
                f"the epoch ends after {self.current_gradient_accumulation_steps} of "
                f"{args.gradient_accumulation_steps} accumulated batches; give gradient_accumulation_steps that "
                "divides the number of batches of an epoch (dataloader_drop_last=True leaves out a smaller last one)"
            )
        self._given = dict(inputs)
        is_per_token = execution.training.num_tokens is not None
        if not is_per_token:
            require_even_loss(inputs)
        told = execution.step(self._number)
        self._number += 1
        self._norm = told.gradient_norm
        loss = torch.tensor(0.0 if told.loss is None else told.loss, dtype=torch.float64)
        distributed.broadcast(loss, src=execution.layout.owners[-1][0])
        share = float(count_tokens(self, inputs) / num_items) if is_per_token else 1 / args.gradient_accumulation_steps
        return (loss * share).to(args.device, torch.float32)

    def _clip_grad_norm(self, model: nn.Module) -> float | None:  # noqa: ARG002
        return self._norm  # clipped in the step

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:  # noqa: ARG002
        return grad_norm

    def _share(self) -> None:
        """The model here has the weights of all processes afterwards; a collective call while a plan is run."""
        if self.execution is not None:
            share_weights(self.execution, cast(nn.Module, self.model))

    def evaluation_loop(self, *args: Any, **named: Any) -> Any:
        """Every process evaluates the whole model, on all samples."""
        self._share()
        return super().evaluation_loop(*args, **named)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """The first process writes the whole model."""
        self._share()
        if self.args.should_save:
            super().save_model(output_dir, _internal_call=_internal_call)
        if self.execution is not None:
            distributed.barrier()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        assert self.execution is not None
        save_checkpoint(self.execution, Path(output_dir, _CHECKPOINT), iteration=self._number)

    def _save_rng_state(self, output_dir: str) -> None:
        if self.args.should_save:
            super()._save_rng_state(output_dir)

    def _finalize_training(self, *args: Any, **named: Any) -> Any:
        """Leave the others; what comes after is done by a `Trainer` that is alone."""
        self._share()
        distributed.barrier()
        self._stack.close()
        self.execution = None
        return cast(Any, super())._finalize_training(*args, **named)


class _OwnOptimizer(torch.optim.Optimizer):
    """Stands for the optimizer, which has taken its step when the iteration is over."""

    def __init__(self, execution: Execution) -> None:
        real = execution.optimizer
        super().__init__([nn.Parameter(torch.empty(0))], {})
        if real is not None:
            self.param_groups = real.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Taken already."""


class _OwnSchedule:
    """Tells the rate of the step before, until it is told of the next one."""

    def __init__(self, schedules: Sequence[Any]) -> None:
        self.schedules = schedules
        self.step()

    def step(self) -> None:
        """Taken already."""
        self.rates = [float(rate) for schedule in self.schedules for rate in schedule.get_last_lr()]

    def get_last_lr(self) -> list[float]:
        """Of every group."""
        return self.rates

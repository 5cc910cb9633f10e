"""Runs a stage that is the whole model: no messages, so none of what torch's schedule runtime does around an action."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from planner.actions import Action
from planner.execute.model.user_code import calling
from planner.execute.stage.batch_copies import to_device
from planner.execute.stage.runtime import PlanStage
from planner.execute.stage.stage_module import StageModule
from planner.execute.training import Tensors, as_tuple


class DirectRuntime:
    """F and B of one stage, in the plan's order."""

    def __init__(
        self,
        stage: PlanStage,
        *,
        actions: Sequence[Action],
        loss: Any,
        take_losses: Callable[[Mapping[int, torch.Tensor]], None],
    ) -> None:
        """`take_losses`: called with all losses before the last backward, whose gradients may take them along."""
        self.stage, self.loss, self.take_losses, self.loss_factor = stage, loss, take_losses, 1.0
        """What the loss is multiplied by for the backward."""
        self._cells = [(str(action), action.kind == "F", action.microbatch) for action in actions]
        self._reduce = f"{stage.stage_index}REDUCE_GRAD"
        self._calling_loss = calling("the loss")
        stage.store.is_noting = stage.store.is_deferring = False

    def run(self, batches: Mapping[int, Tensors], targets: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """One iteration of samples and targets by microbatch; returns the loss of every microbatch."""
        stage, log = self.stage, self.stage.log
        losses, pending = dict[int, torch.Tensor](), dict[int, torch.Tensor]()
        last = self._cells[-1]
        for cell in self._cells:
            name, is_forward, microbatch = cell
            log.note(name)
            if is_forward:
                loss = self._forward(microbatch, batches[microbatch], target=targets[microbatch])
                losses[microbatch] = loss.detach()
                pending[microbatch] = loss if self.loss_factor == 1 else loss * self.loss_factor
                continue
            if cell is last:
                self._expect_last(dict(sorted(losses.items())))
            start = log.begin()
            pending.pop(microbatch).backward()  # type: ignore[no-untyped-call]
            log.end(start)
        log.note(self._reduce)
        stage.perform_reduce_grad(1)
        return dict(sorted(losses.items()))

    def _expect_last(self, losses: Mapping[int, torch.Tensor]) -> None:
        self.take_losses(losses)
        is_alone = cast(StageModule, self.stage.submod).exchange is None  # others use the same queue of messages
        if is_alone and self.stage.reduction is not None:
            self.stage.reduction.expect_last()

    def _forward(self, microbatch: int, samples: Tensors, *, target: torch.Tensor) -> torch.Tensor:
        stage, module = self.stage, cast(StageModule, self.stage.submod)
        module.begin(microbatch, moment=stage.moment)
        given = [to_device(tensor, device=stage.device) for tensor in samples]
        start = stage.log.begin()
        output = module(*given)
        stage.require_planned(as_tuple(output), microbatch=microbatch)
        with self._calling_loss:
            loss: torch.Tensor = self.loss(output, target)
        stage.log.end(start)
        return loss


def is_direct(stages: Sequence[PlanStage], *, actions: Sequence[Action]) -> bool:
    """Whether a process whose only stage is the whole model runs it without splitting its backward."""
    return len(stages) == 1 and stages[0].is_first and stages[0].is_last and all(a.kind in "FB" for a in actions)

"""Runs a stage that is the whole model: no messages, and as little as can be around an action."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from planner.actions import Action
from planner.execute.model.user_code import calling
from planner.execute.stage.batch_copies import to_device
from planner.execute.stage.plan_stage import PlanStage
from planner.execute.training import Tensors


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
        self.module = stage.module
        self._cells = [(str(action), action.kind == "F", action.microbatch) for action in actions]
        self._reduce = f"{stage.stage_index}REDUCE_GRAD"
        self._calling_loss = calling("the loss")
        self._root: torch.Tensor | None = None
        """What a backward begins with, where it is not 1: it takes no operation of the graph."""
        self._root_factor = 1.0
        stage.store.is_noting = stage.store.is_deferring = False

    def run(self, targets: Mapping[int, torch.Tensor] | None) -> dict[int, torch.Tensor]:
        """One iteration of the stage's batch, with targets by microbatch; returns the loss of every microbatch."""
        assert targets is not None
        stage, log = self.stage, self.stage.log
        losses, pending = dict[int, torch.Tensor](), dict[int, torch.Tensor]()
        is_reduced = stage.reduction is not None and not stage.reduction.is_alone
        last, start = self._cells[-1], log.take_up(self._cells[0][0])
        for cell in self._cells:
            name, is_forward, microbatch = cell
            if cell is not self._cells[0]:
                start = log.follow(start, name)
            if cell is last and is_reduced:
                self._expect_last(dict(sorted(losses.items())))
            if is_forward:
                loss = self._forward(microbatch, stage.batch[microbatch], target=targets[microbatch])
                losses[microbatch], pending[microbatch] = loss.detach(), loss
            else:
                loss = pending.pop(microbatch)
                loss.backward(None if self.loss_factor == 1 else self._find_root(loss))  # type: ignore[no-untyped-call]
        log.end(start)
        if is_reduced:
            log.note(self._reduce)
            stage.start_reduction()
        return losses if len(losses) == 1 else dict(sorted(losses.items()))

    def _find_root(self, loss: torch.Tensor) -> torch.Tensor:
        root, kind = self._root, (loss.shape, loss.dtype)
        if root is None or self._root_factor != self.loss_factor or (root.shape, root.dtype) != kind:
            self._root = root = torch.full_like(loss, self.loss_factor, requires_grad=False)
            self._root_factor = self.loss_factor
        return root

    def _expect_last(self, losses: Mapping[int, torch.Tensor]) -> None:
        self.take_losses(losses)
        is_alone = self.module.exchange is None  # others use the same queue of messages
        if is_alone and self.stage.reduction is not None:
            self.stage.reduction.expect_last()

    def _forward(self, microbatch: int, samples: Tensors, *, target: torch.Tensor) -> torch.Tensor:
        stage, module = self.stage, self.module
        module.begin(microbatch, moment=stage.moment)
        if stage.device.type != "cpu":
            samples = tuple(to_device(tensor, device=stage.device) for tensor in samples)
        output = module.forward(*samples)
        stage.require_planned((output,) if isinstance(output, torch.Tensor) else output, microbatch=microbatch)
        with self._calling_loss:
            loss: torch.Tensor = self.loss(output, target)
        return loss


def is_direct(stages: Sequence[PlanStage], *, actions: Sequence[Action]) -> bool:
    """Whether a process whose only stage is the whole model runs it without splitting its backward."""
    return len(stages) == 1 and stages[0].is_first and stages[0].is_last and all(a.kind in "FB" for a in actions)

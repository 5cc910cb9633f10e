"""Torch's schedule runtime, told what to do by a plan; pinned to torch 2.13.

What differs from `_PipelineScheduleRuntime` itself: losses are filed under their microbatch, gradients are reduced by
our own hand, weight gradients may be put off, and every action is noted.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

from planner.execute.action_log import ActionLog, WatchedRow
from planner.execute.deferred import WeightGradStore, defer_weight_grads
from planner.execute.reduction import StageReduction
from planner.execute.stage_module import StageModule, StageShape
from planner.execute.table_check import check_lowered_table
from planner.execute.training import as_tuple

SUPPORTED_TORCH = "2.13"
"""The runtime is private to torch: another version may differ in anything that this module relies on."""


class PlanStage(PipelineStage):
    """One stage of the plan on this process."""

    def __init__(
        self,
        module: StageModule,
        number: int,
        *,
        num_stages: int,
        shape: StageShape,
        device: torch.device,
        group: Any,
        log: ActionLog,
        is_deferring: bool,
    ) -> None:
        """`is_deferring`: split the backward by putting off weight gradients; otherwise by torch's own two passes."""
        self.log, self.store, self.outputs = log, WeightGradStore(), shape.outputs
        self.reduction: StageReduction | None = None
        if is_deferring:
            defer_weight_grads(module, self.store)
        module.clones_views = not is_deferring
        super().__init__(
            module,
            number,
            num_stages,
            device,
            input_args=shape.inputs,
            output_args=shape.outputs,
            group=group,
            dw_builder=self.store.take if is_deferring else None,
        )

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """F; raises RuntimeError if it gives something else than was made room for where it is sent to."""
        with self.log.computing():
            output = super().forward_one_chunk(*args, **kwargs)
        for place, (mine, planned) in enumerate(zip(as_tuple(output), self.outputs, strict=True)):
            if mine.shape != planned.shape or mine.dtype != planned.dtype:
                raise RuntimeError(
                    f"stage {self.stage_index} gives {tuple(mine.shape)} {mine.dtype} as tensor {place}, but gave "
                    f"{tuple(planned.shape)} {planned.dtype} when the model was traced; shapes and types have to stay "
                    "as they are in every iteration, and on the meta device as on any other"
                )
        return output

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        """B, or I: then weight gradients wait."""
        self.store.is_deferring = not kwargs.get("full_backward", True)
        with self.log.computing():
            super().backward_one_chunk(*args, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """W."""
        with self.log.computing():
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:  # noqa: ARG002
        """Once per iteration, after the last W or B; the factor is ours to know."""
        if self.reduction is None:
            raise RuntimeError(f"stage {self.stage_index} has no reduction")
        self.reduction.start()


class StepRuntime(_PipelineScheduleRuntime):
    """What the runtimes have in common: one iteration after the other, and a loss for every microbatch."""

    def __init__(self, stages: Sequence[PlanStage], *, num_microbatches: int, loss: Any) -> None:
        super().__init__(list(stages), num_microbatches, loss_fn=loss, scale_grads=False)  # type: ignore[no-untyped-call]
        self._pending: dict[int, torch.Tensor] = {}
        self._losses: dict[int, torch.Tensor] = {}
        self.row = WatchedRow([], stages[0].log)

    def watch(self, cells: Sequence[Any], log: ActionLog) -> None:
        """Take these as the cells of this process, and note each as it is taken up."""
        self.row = WatchedRow(cells, log)
        self.pipeline_order_with_comms[self.rank] = self.row

    def run(self, inputs: Sequence[torch.Tensor], target: torch.Tensor | None) -> dict[int, torch.Tensor]:
        """One iteration; inputs are empty and the target is None where the first or the last stage is elsewhere.

        Returns the loss of every microbatch (empty unless the last stage is here).
        """
        self._losses.clear()
        self._pending.clear()
        self.row.is_armed = True
        self.step(*inputs, target=target, return_outputs=False)
        return dict(sorted(self._losses.items()))

    def _maybe_compute_loss(self, stage: Any, output: Any, *rest: Any) -> None:
        """Torch would file the k-th loss computed under microbatch k, whichever it belongs to."""
        targets, microbatch, *_ = rest
        if stage.is_last:
            loss = self._compute_loss(output, targets[microbatch])  # type: ignore[no-untyped-call]
            self._pending[microbatch] = loss
            self._losses[microbatch] = loss.detach()
            stage.log.prolong()  # the last layer carries the loss

    def _maybe_get_loss(self, stage: Any, mb_index: int) -> torch.Tensor | None:
        return self._pending.pop(mb_index) if stage.is_last else None

    def _update_losses(self, stages: Any, losses: Any) -> None:
        """They are handed out by `run`."""


class PlanRuntime(StepRuntime):
    """Runs the rows of one pipeline, a chain of stages; sends and receives are torch's own."""

    def __init__(
        self, stages: Sequence[PlanStage], *, table: Sequence[Sequence[str]], num_microbatches: int, loss: Any
    ) -> None:
        """`table`: the actions of every rank of the pipeline; raises ValueError if it cannot run to its end."""
        super().__init__(stages, num_microbatches=num_microbatches, loss=loss)
        self.pipeline_order = {rank: [_Action.from_str(cell) for cell in row] for rank, row in enumerate(table)}
        self._prepare_schedule_with_comms(self.pipeline_order)
        self.lowered = [[str(cell) for cell in row] for _, row in sorted(self.pipeline_order_with_comms.items())]
        faults = check_lowered_table(self.lowered, num_stages=stages[0].num_stages, num_microbatches=num_microbatches)
        if faults:
            raise ValueError(f"torch lowers the plan to a table that cannot be trusted: {'; '.join(faults[:3])}")
        self.watch(self.pipeline_order_with_comms[self.rank], stages[0].log)

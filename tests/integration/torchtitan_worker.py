"""One rank of torchtitan's own program, started with the shipped recipe: its parser, its trainer, its training loop.

What a torch of version 2.13 on processors lacks stands in for it: an accelerator's memory figures, `step` of lists of
microbatches and `set_timeout` (both from torch 2.14 on), gloo's sum with a factor, triton, TensorBoard. Writes what
every stage ran, the losses, the first loss of one process with the same weights, and how far the first gradients are
from its own.
"""

import json
import os
import sys
import types
from typing import Any

import torch
import torch._utils
from lacking_triton import stand_in  # type: ignore[import-not-found]
from torch import distributed
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.distributed.pipelining.stage import _PipelineStageBase


def step_microbatches(
    self: Any, *, arg_mbs: Any = None, kwarg_mbs: Any = None, target_mbs: Any = None, **how: Any
) -> None:
    """Torch's `step`, for those that cut their batch themselves."""
    for stage in self._stages:
        stage.has_backward = self._has_backward
        stage.clear_runtime_states()
    self._step_microbatches(arg_mbs, kwarg_mbs, target_mbs, how["losses"], False, loss_kwargs=how["loss_kwargs"])


def note_actions() -> list[str]:
    """What all stages of this process run from now on."""
    order: list[str] = []
    for kind, name in (("F", "forward_one_chunk"), ("B", "backward_one_chunk")):
        run = getattr(_PipelineStageBase, name)

        def noting(self: Any, number: int, *given: Any, kind: str = kind, run: Any = run, **named: Any) -> Any:
            order.append(f"{self.stage_index}{kind}{number}")
            return run(self, number, *given, **named)

        setattr(_PipelineStageBase, name, noting)
    return order


def of_all_ranks(tensors: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Copies of what all ranks have, by their names in the model."""
    mine = {name: each.full_tensor() if hasattr(each, "full_tensor") else each for name, each in tensors.items()}
    every: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(every, {name: each.detach().clone() for name, each in mine.items()})
    return {name: each for theirs in every for name, each in theirs.items()}


def alone(trainer: Any, weights: dict[str, torch.Tensor]) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of one process on the first step's microbatches."""
    import torchtitan_base  # type: ignore[import-not-found]

    model = trainer.config.model_spec.model.build()
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    model.load_state_dict(weights)
    count = trainer.num_pipeline_parallel_microbatches
    size = trainer.config.parallelism.pipeline_parallel_microbatch_size * trainer.dataloader.copies
    total = 0.0
    for _, (tokens, target) in zip(range(count), torchtitan_base.microbatches(size), strict=False):
        logits = model(tokens).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, target.flatten()) / count
        loss.backward()
        total += float(loss)
    return total, {name: parameter.grad for name, parameter in model.named_parameters()}


def sum_without_factor() -> None:
    """Gradients that are not divided are summed, where gloo cannot multiply."""
    divide = FSDPModule.set_gradient_divide_factor

    def divide_and_sum(self: FSDPModule, factor: float) -> None:
        divide(self, factor)
        self.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = divide_and_sum  # type: ignore[method-assign]


def main(folder: str) -> None:
    sum_without_factor()
    torch._utils._get_available_device_type = lambda: "cpu"
    lacking: dict[str, Any] = {
        "get_device_name": "a processor",
        "get_device_properties": types.SimpleNamespace(total_memory=2**34),
        "memory_stats": {},
        "current_device": 0,
    } | dict.fromkeys(("reset_peak_memory_stats", "empty_cache", "set_device"))
    for name, value in lacking.items():
        setattr(torch.cpu, name, lambda *_, value=value: value)
    if not hasattr(distributed, "set_timeout"):
        _PipelineScheduleRuntime.step = step_microbatches  # type: ignore[method-assign]
        distributed.set_timeout = lambda *_, **__: None  # type: ignore[attr-defined]
    sys.modules["torch.utils.tensorboard"] = board = types.ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = None  # type: ignore[attr-defined]
    stand_in()
    from torchtitan import train  # type: ignore[import-not-found]
    from torchtitan.components.metrics import MetricsProcessor  # type: ignore[import-not-found]
    from torchtitan.components.optimizer import OptimizersContainer  # type: ignore[import-not-found]

    order, losses, found, grads = note_actions(), list[float](), dict[str, Any](), list[dict[str, torch.Tensor]]()
    run, log, update = train.Trainer.train, MetricsProcessor.log, OptimizersContainer.step

    def train_noting(trainer: Any) -> None:
        weights = of_all_ranks({name: each for part in trainer.model_parts for name, each in part.state_dict().items()})
        run(trainer)
        found["alone"], expected = alone(trainer, weights)
        assert expected.keys() == grads[0].keys()
        apart = [(grads[0][name] - each).abs().max() / each.abs().max() for name, each in expected.items()]
        found["apart"] = float(torch.stack(apart).max())

    def log_noting(metrics: Any, step: int, loss: float, *more: Any, **named: Any) -> None:
        losses.append(loss)
        log(metrics, step, loss, *more, **named)

    def update_noting(optimizers: Any, *given: Any, **named: Any) -> None:
        parameters = (pair for part in optimizers.model_parts for pair in part.named_parameters())
        grads.append(of_all_ranks({name: each.grad for name, each in parameters}))
        update(optimizers, *given, **named)

    train.Trainer.train, MetricsProcessor.log, OptimizersContainer.step = train_noting, log_noting, update_noting
    train.main()
    found |= {"order": order, "losses": losses}
    with open(f"{folder}/rank{os.environ['RANK']}.json", "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv.pop(1))

"""Contenders for the race between plans and torch's own schedules; all train the same layers."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules
from torch.nn.parallel import DistributedDataParallel

from planner.execute.stage.stage_module import StageModule, StageTracer, make_layer
from planner.execute.table.wiring import BATCH, StageWiring, make_wirings
from planner.execute.training import Tensors, Training, as_tuple, load_training


class WholeModelData:
    """Plain data parallelism: every process has the whole model and its part of the batch."""

    def __init__(self, training: Training, *, num_microbatches: int = 1) -> None:
        """`num_microbatches`: a process's part is taken in so many pieces, whose gradients are added up. One process
        alone needs no wrapper.
        """
        self.training = training
        self.rank, self.count, self.num_microbatches = (
            distributed.get_rank(),
            distributed.get_world_size(),
            num_microbatches,
        )
        names = list(self.training.layers)
        wirings = make_wirings([names], names, inputs=self.training.inputs)
        inputs, _ = self.training.batch(0)
        (shape,) = StageTracer(self.training, wirings).trace(tuple(t[:1] for t in as_tuple(inputs)))
        layers = {name: make_layer(self.training, name, device=torch.device("cpu")) for name in names}
        module: nn.Module = StageModule(wirings[0], layers, counts=shape.counts)
        self.module: nn.Module = self._distribute(module) if self.count > 1 else module
        made = self.training.optimizer([p for p in self.module.parameters() if p.requires_grad])
        self.optimizers: Sequence[torch.optim.Optimizer] = [made] if isinstance(made, torch.optim.Optimizer) else made

    def _distribute(self, module: nn.Module) -> nn.Module:
        """DDP wants to be told of parameters that the loss does not depend on, as BERT's pooler."""
        inputs, target = self.training.batch(0)
        self.training.loss(module(*(tensor[:2] for tensor in as_tuple(inputs))), target[:2]).backward()
        has_unused = any(each.requires_grad and each.grad is None for each in module.parameters())
        module.zero_grad(set_to_none=True)
        return DistributedDataParallel(module, find_unused_parameters=has_unused)

    def step(self, number: int) -> None:
        """As a training loop does it."""
        inputs, target = self.training.batch(number)
        size = target.shape[0] // (self.count * self.num_microbatches)
        for piece in range(self.num_microbatches):
            begin = (self.rank * self.num_microbatches + piece) * size
            part = tuple(tensor[begin : begin + size] for tensor in as_tuple(inputs))
            if isinstance(self.module, DistributedDataParallel):
                self.module.require_backward_grad_sync = piece == self.num_microbatches - 1
            loss = self.training.loss(self.module(*part), target[begin : begin + size])
            (loss / self.num_microbatches).backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        loss.item()


class FullyShardedData(WholeModelData):
    """Of every layer each process holds a part (FSDP2); one piece per iteration."""

    def _distribute(self, module: nn.Module) -> nn.Module:
        mesh = init_device_mesh("cpu", (self.count,))
        for layer in cast(StageModule, module).layers:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        return fully_shard(module, mesh=mesh)


class TorchSchedule:
    """One of torch's own schedule classes, with torch's own stages, on the same modules and shapes."""

    def __init__(
        self,
        *,
        schedule: str,
        model: str,
        num_microbatches: int,
        stages: Sequence[Sequence[str]],
        owners: Sequence[int],
    ) -> None:
        """`stages`: the layers of each; `owners`: the rank of each."""
        self.training = load_training(model)
        self.num_microbatches, self.num_stages = num_microbatches, len(stages)
        self.stages = _make_stages(self.training, stages, owners=owners, num_microbatches=num_microbatches)
        make: Callable[..., Any] = getattr(torch_schedules, f"Schedule{schedule}")
        is_single = issubclass(make, torch_schedules.PipelineScheduleSingle)  # type: ignore[arg-type]
        given = self.stages[0] if is_single else self.stages
        self.schedule = make(given, num_microbatches, loss_fn=self.training.loss)
        parameters = [p for stage in self.stages for p in stage.submod.parameters() if p.requires_grad]
        self.optimizer = self.training.optimizer(parameters)

    def step(self, number: int) -> None:
        """As a training loop does it."""
        inputs, target = self.training.batch(number)
        is_last = any(stage.stage_index == self.num_stages - 1 for stage in self.stages)
        losses: list[torch.Tensor] = []
        arguments = as_tuple(inputs) if self.stages[0].stage_index == 0 else ()
        self.schedule.step(
            *arguments, target=target if is_last else None, losses=losses if is_last else None, return_outputs=False
        )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if losses:
            torch.stack(losses).tolist()


def _make_stages(
    training: Training, stages: Sequence[Sequence[str]], *, owners: Sequence[int], num_microbatches: int
) -> list[PipelineStage]:
    wirings = _relayed(make_wirings(stages, list(training.layers), inputs=training.inputs), [BATCH, *training.layers])
    inputs, _ = training.batch(0)
    size = as_tuple(inputs)[0].shape[0] // num_microbatches
    shapes = StageTracer(training, wirings).trace(tuple(tensor[:size] for tensor in as_tuple(inputs)))
    made = []
    for number, (wiring, shape) in enumerate(zip(wirings, shapes, strict=True)):
        if owners[number] != distributed.get_rank():
            continue
        layers = {name: make_layer(training, name, device=torch.device("cpu")) for name in wiring.layers}
        made.append(
            PipelineStage(
                _OwnOutputs(wiring, layers, counts=shape.counts),
                number,
                len(stages),
                torch.device("cpu"),
                input_args=tuple(tensor.contiguous() for tensor in shape.inputs),
                output_args=tuple(tensor.contiguous() for tensor in shape.outputs),
            )
        )
    return made


class _OwnOutputs(StageModule):
    """Gives rows and no views: gloo sends nothing else, torch's split of a backward fails on stages that end in one."""

    def forward(self, *arrived: torch.Tensor) -> torch.Tensor | Tensors:
        """As any stage."""
        given = [each.contiguous() for each in as_tuple(super().forward(*arrived))]
        given = [each.clone() if each._is_view() else each for each in given]
        return given[0] if len(given) == 1 else tuple(given)


def _relayed(wirings: Sequence[StageWiring], order: Sequence[str]) -> list[StageWiring]:
    """The same stages, of which each also hands on what later ones take: torch's talk to the next one alone."""
    crossing = []
    for number in range(len(wirings)):
        made = {name for wiring in wirings[number:] for name in wiring.layers}
        taken = {name for wiring in wirings[number:] for name in wiring.arrives}
        crossing.append(tuple(sorted(taken - made, key=order.index)))
    cuts = itertools.pairwise([*crossing, wirings[-1].leaves])
    return [
        replace(wiring, arrives=before, leaves=after) for wiring, (before, after) in zip(wirings, cuts, strict=True)
    ]

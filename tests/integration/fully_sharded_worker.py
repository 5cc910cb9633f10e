"""One rank of torch's own runtime on an exported table, each stage fully sharded (FSDP2) over two ranks.

Writes how far its gradients are from those of one process, relative to the largest of each parameter.
"""

import copy
import json
import os
import sys

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

SAMPLES, STEPS = 2, 2


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).sum()


def main(table: str, folder: str, num_microbatches: int) -> None:
    distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stages", "shards"))
    number, replica = mesh["stages"].get_local_rank(), mesh["shards"].get_local_rank()
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).double() for _ in range(4)]
    alone, stage = nn.Sequential(*copy.deepcopy(layers)), nn.Sequential(*layers[2 * number : 2 * number + 2])
    for module in (*stage, stage):
        fully_shard(module, mesh=mesh["shards"], reshard_after_forward=False)
    size = num_microbatches * SAMPLES
    inputs, target = torch.randn(2, 2 * size, 8, dtype=torch.double)
    own = slice(replica * size, (replica + 1) * size)
    schedule = _PipelineScheduleRuntime(
        [PipelineStage(stage, number, 2, torch.device("cpu"), group=mesh["stages"].get_group())],
        n_microbatches=num_microbatches,
        loss_fn=loss,
        scale_grads=False,
    )
    schedule._load_csv(table)
    for _ in range(STEPS):  # without an update in between: gradients of both are added up
        if number == 0:
            schedule.step(inputs[own])
        else:
            schedule.step(target=target[own])
        loss(alone(inputs), target).backward()
    expected = [parameter.grad for parameter in alone[2 * number : 2 * number + 2].parameters()]
    apart = [
        (2 * parameter.grad.full_tensor() - wanted).abs().max() / wanted.abs().max()  # it gives the mean over two ranks
        for parameter, wanted in zip(stage.parameters(), expected, strict=True)
    ]
    held = sum(parameter.to_local().numel() for parameter in stage.parameters())
    whole = sum(parameter.numel() for parameter in stage.parameters())
    with open(f"{folder}/rank{os.environ['RANK']}.json", "w") as file:
        json.dump({"apart": float(torch.stack(apart).max()), "held": held, "whole": whole}, file)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

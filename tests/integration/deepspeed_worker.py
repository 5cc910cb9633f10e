"""One rank of DeepSpeed's own engine on a PipelineModule cut by an exported module: trains three batches.

Writes its stage, bounds, parts, what its engine ran of the first batch, losses and weights, and those of one process.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import deepspeed  # type: ignore[import-not-found]
import torch
from deepspeed.pipe import LayerSpec  # type: ignore[import-not-found]
from deepspeed.runtime.pipe import schedule  # type: ignore[import-not-found]
from torch import distributed, nn

NUM_STEPS = 3
SAMPLES = 4
"""Of a microbatch on each replica."""


class Block(nn.Module):
    """Starts alike wherever it is made."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(number)) / 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(inputs @ self.weight)


def load(path: str) -> Any:
    specification = importlib.util.spec_from_file_location("planned", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def batch(step: int, replica: int, *, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A replica's microbatches."""
    for number in range(count):
        noise = torch.Generator().manual_seed(1000 * step + 10 * number + replica)
        yield torch.randn(SAMPLES, 4, generator=noise), torch.randn(SAMPLES, 4, generator=noise)


def note_actions(engine_type: Any) -> list[str]:
    """What any engine runs from now on: forwards and backwards, counted."""
    order: list[str] = []

    def noting(kind: str, run: Callable[..., None]) -> Callable[..., None]:
        def note(engine: Any, buffer_id: int) -> None:
            order.append(f"{engine.stage_id}{kind}{sum(kind in action for action in order)}")
            run(engine, buffer_id)

        return note

    table = engine_type._INSTRUCTION_MAP
    for kind, instruction in (("F", schedule.ForwardPass), ("B", schedule.BackwardPass)):
        table[instruction] = noting(kind, table[instruction])
    return order


def train_alone(planned: Any, replicas: int) -> tuple[list[float], list[list[float]]]:
    """Losses and weights of one process."""
    net = nn.Sequential(*map(Block, range(planned.PARTS[-1])))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(NUM_STEPS):
        total = 0.0
        for replica in range(replicas):
            for inputs, target in batch(step, replica, count=planned.NUM_MICROBATCHES):
                loss = nn.functional.mse_loss(net(inputs), target) / (planned.NUM_MICROBATCHES * replicas)
                loss.backward()
                total += float(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, [parameter.flatten().tolist() for parameter in net.parameters()]


def main(path: str, folder: str) -> None:
    planned = load(path)
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]  # it compiles for minutes
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    module = planned.PlannedPipelineModule(
        layers=[LayerSpec(Block, number) for number in range(planned.PARTS[-1])],
        num_stages=len(planned.PARTS) - 1,
        loss_fn=nn.functional.mse_loss,
        activation_checkpoint_interval=planned.ACTIVATION_CHECKPOINT_INTERVAL,
    )
    config = {
        "train_micro_batch_size_per_gpu": SAMPLES,
        "gradient_accumulation_steps": planned.NUM_MICROBATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": planned.ZERO_OPTIMIZATION,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    engine, *_ = deepspeed.initialize(model=module, model_parameters=list(module.parameters()), config=config)
    order = note_actions(type(engine))
    replica = engine.grid.get_data_parallel_id()
    losses = [
        float(engine.train_batch(data_iter=batch(step, replica, count=planned.NUM_MICROBATCHES)))
        for step in range(NUM_STEPS)
    ]
    alone, weights = train_alone(planned, engine.grid.data_parallel_size)
    start, stop = module._local_start, module._local_stop
    found = {
        "stage": module.stage_id,
        "replica": replica,
        "bounds": [start, stop],
        "parts": module.parts,
        "zero": int(engine.zero_optimization_stage()),
        "checkpoints": module.activation_checkpoint_interval,
        "order": order[: 2 * planned.NUM_MICROBATCHES],
        "losses": losses,
        "alone": alone,
        "weights": [parameter.detach().flatten().tolist() for parameter in module.parameters()],
        "alone_weights": weights[start:stop],
    }
    with open(f"{folder}/rank{os.environ['RANK']}.json", "w") as file:
        json.dump(found, file)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])

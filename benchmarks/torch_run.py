"""One process of a run of torch's own: `torchrun --nproc-per-node N -m benchmarks.torch_run ABOUT.json FOLDER`.

Trains with one of torch's schedule classes, or with DistributedDataParallel, and writes when every iteration began and
ended on this process.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from benchmarks.real_torch import TorchSchedule
from planner.execute.stage_module import StageModule, make_layer, trace_stages
from planner.execute.training import Training, as_tuple, load_training
from planner.execute.wiring import make_wirings


class WholeModelData:
    """Plain data parallelism: every process has the whole model and its part of the batch."""

    def __init__(self, *, model: str, num_microbatches: int = 1) -> None:
        """`num_microbatches`: a process's part is taken in so many pieces, whose gradients are added up."""
        self.training: Training = load_training(model)
        self.rank, self.count, self.num_microbatches = (
            distributed.get_rank(),
            distributed.get_world_size(),
            num_microbatches,
        )
        names = list(self.training.layers)
        wirings = make_wirings([names], names, inputs=self.training.inputs)
        inputs, _ = self.training.batch(0)
        (shape,) = trace_stages(self.training, wirings, batch=tuple(t[:1] for t in as_tuple(inputs)))
        layers = {name: make_layer(self.training, name, device=torch.device("cpu")) for name in names}
        self.module = DistributedDataParallel(StageModule(wirings[0], layers, counts=shape.counts))
        made = self.training.optimizer([p for p in self.module.parameters() if p.requires_grad])
        self.optimizers: Sequence[torch.optim.Optimizer] = [made] if isinstance(made, torch.optim.Optimizer) else made

    def step(self, number: int) -> None:
        """As a training loop does it."""
        inputs, target = self.training.batch(number)
        size = target.shape[0] // (self.count * self.num_microbatches)
        for piece in range(self.num_microbatches):
            begin = (self.rank * self.num_microbatches + piece) * size
            part = tuple(tensor[begin : begin + size] for tensor in as_tuple(inputs))
            self.module.require_backward_grad_sync = piece == self.num_microbatches - 1
            loss = self.training.loss(self.module(*part), target[begin : begin + size])
            (loss / self.num_microbatches).backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        loss.item()


def make_runner(about: dict[str, Any]) -> Callable[[int], None]:
    """What trains an iteration: with `schedule`, one of torch's own, otherwise data parallel."""
    if "schedule" in about:
        return TorchSchedule(**about).step
    return WholeModelData(**about).step


def main() -> None:
    """Train as many iterations as are asked for."""
    about = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder, steps = Path(sys.argv[2]), about.pop("steps")
    distributed.init_process_group("gloo", timeout=timedelta(seconds=120))
    step, times = make_runner(about), []
    for number in range(steps):
        begin = time.time_ns()
        step(number)
        times.append((begin, time.time_ns()))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"times{distributed.get_rank()}.json").write_text(json.dumps(times), encoding="utf-8")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

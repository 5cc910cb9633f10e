"""One rank of a pipeline in torch's own schedule runtime; started by `test_torch_runtime.py`, not imported.

For every case of a folder it runs the table and one process's own forward and backward of the whole model, and writes
down how far they differ, as JSON. Models are chains of float64 layers made from the layer's number alone.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.profiler import ProfilerActivity, profile

WIDTH, SAMPLES = 6, 2
"""Features, and samples per microbatch."""


class Block(nn.Module):
    """x + W2 tanh(W1 x): 2-D throughout, and its output is no view (torch 2.13 cannot split the backward of a view)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.tanh(self.inner(x)))


def make_layer(number: int, kind: str) -> nn.Module:
    torch.manual_seed(100 + number)
    if kind == "tanh":
        return nn.Tanh()
    return Block().double().requires_grad_(kind != "frozen")


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).sum()


def make_batch(num_microbatches: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(7)
    shape = (num_microbatches * SAMPLES, WIDTH)
    return torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)


def run_whole(case: dict[str, Any]) -> tuple[list[float], dict[int, nn.Module]]:
    """Losses per microbatch and layers with gradients, from one process."""
    layers = {number: make_layer(number, kind) for number, kind in enumerate(case["layers"])}
    model = nn.Sequential(*layers.values())
    count = case["num_microbatches"]
    batch, target = make_batch(count)
    losses = []
    for x, y in zip(batch.chunk(count), target.chunk(count), strict=True):
        loss = loss_of(model(x), y)
        loss.backward()
        losses.append(loss.item())
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= count
    return losses, layers


def run_pipeline(case: dict[str, Any], rank: int) -> tuple[list[float], dict[int, nn.Module], list[str]]:
    """Losses, the layers of this rank with gradients, and the actions as they were executed."""
    layers: dict[int, nn.Module] = {}
    stages = []
    for number, (owner, members) in enumerate(case["stages"]):
        if owner == rank:
            layers |= {member: make_layer(member, case["layers"][member]) for member in members}
            stages.append(make_stage(case, number, [layers[member] for member in members]))
    count = case["num_microbatches"]
    schedule = _PipelineScheduleRuntime(stages, n_microbatches=count, loss_fn=loss_of, scale_grads=True)
    schedule._load_csv(case["table"], format="compute_only")
    batch, target = make_batch(count)
    is_first, is_last = (case["stages"][place][0] == rank for place in (0, -1))
    losses: list[torch.Tensor] = []
    with profile(activities=[ProfilerActivity.CPU]) as record:
        schedule.step(*([batch] if is_first else []), **({"target": target, "losses": losses} if is_last else {}))
    events = sorted(record.events(), key=lambda event: event.time_range.start)
    executed = [event.name.removeprefix("PP:") for event in events if event.name.startswith("PP:")]
    return [loss.item() for loss in losses], layers, executed


def make_stage(case: dict[str, Any], number: int, layers: list[nn.Module]) -> PipelineStage:
    """A stage whose shapes are stated, so that torch runs no layer merely to learn them."""
    members = case["stages"][number][1]
    trained = [position for position, kind in enumerate(case["layers"]) if kind == "block"]
    before = bool(trained) and trained[0] < members[0]
    after = bool(trained) and trained[0] <= members[-1]
    example = torch.empty((SAMPLES, WIDTH), dtype=torch.float64, device="meta")
    return PipelineStage(
        nn.Sequential(*layers),
        number,
        len(case["stages"]),
        torch.device("cpu"),
        input_args=example.clone().requires_grad_(before),
        output_args=example.clone().requires_grad_(after),
    )


def compare(case: dict[str, Any], rank: int) -> dict[str, Any]:
    losses, whole = run_whole(case)
    own_losses, own, executed = run_pipeline(case, rank)
    largest = difference = 0.0
    missing = []
    for number, layer in own.items():
        pairs = zip(layer.named_parameters(), whole[number].named_parameters(), strict=True)
        for (name, mine), (_, theirs) in pairs:
            if (mine.grad is None) != (theirs.grad is None):
                missing.append(f"{number}.{name}")
            elif mine.grad is not None and theirs.grad is not None:
                largest = max(largest, theirs.grad.abs().max().item())
                difference = max(difference, (mine.grad - theirs.grad).abs().max().item())
    is_last = case["stages"][-1][0] == rank
    return {
        "losses": own_losses,
        "expected_losses": losses if is_last else [],
        "gradient_difference": difference,
        "largest_gradient": largest,
        "missing": missing,
        "executed": executed,
    }


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder / 'meeting'}"
    distributed.init_process_group("gloo", meeting, timedelta(seconds=30), world_size=2, rank=rank)
    answers = {}
    for path in sorted(folder.glob("*.case.json")):
        case = json.loads(path.read_text())
        answers[case["name"]] = compare(case, rank)
    (folder / f"rank{rank}.json").write_text(json.dumps(answers))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

"""One rank of `benchmarks.dealt_iterations`: the same sequences in the same steps, dealt, in order, and padded.

`python -m benchmarks.dealt_worker STORE RANK COUNT PER_STEP STEPS`; rank 0 prints what all took, as JSON.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

from planner.dealing import StageTimes, deal
from planner.execute.run.execution import Execution
from planner.execute.run.preparation import prepare
from planner.execute.training import Batch, Training
from tests.planner.execute.orders import make_random_plan

WIDTH, BLOCKS, LONGEST = 128, 2, 1024
LENGTHS = (8, 128, 384, 1024)
"""At which a stage is timed."""
IGNORED = -100


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(256, WIDTH), nn.Embedding(LONGEST, WIDTH)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        return self.letter(letters) + self.place(torch.arange(letters.shape[1], device=letters.device))


class Block(nn.TransformerEncoderLayer):
    def __init__(self) -> None:
        super().__init__(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return super().forward(x, src_mask=mask, is_causal=True)


def read_paragraphs() -> list[torch.Tensor]:
    """The prose of this repository's documents, paragraph by paragraph, as bytes; the first 1,025 of each."""
    found = []
    for path in sorted(Path(__file__).resolve().parents[1].glob("docs/*.md")):
        for text in path.read_text(encoding="utf-8").split("\n\n"):
            if len(text) > 1 and not text.lstrip().startswith(("|", "```", "#")):
                found.append(torch.tensor(list(text.encode()[: LONGEST + 1])))
    return found


def measure_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=IGNORED, reduction="sum")


def num_tokens(target: torch.Tensor) -> torch.Tensor:
    return (target != IGNORED).sum()


def make_training(batch: Callable[[int], Any], **more: Any) -> Training:
    blocks = {f"l{number + 1}": Block for number in range(BLOCKS)}
    head = partial(nn.Linear, WIDTH, 256)
    return Training(
        layers={"l0": Embedding, **blocks, f"l{BLOCKS + 1}": head},
        loss=measure_loss,
        loss_is_sum=True,
        num_tokens=num_tokens,
        batch=batch,
        optimizer=partial(torch.optim.AdamW, lr=1e-3),
        **more,
    )


def as_microbatches(texts: Sequence[torch.Tensor]) -> list[Batch]:
    return [(text[None, :-1], text[None, 1:]) for text in texts]


def as_padded(texts: Sequence[torch.Tensor]) -> list[Batch]:
    """All as long as the longest of the step."""
    padded = nn.utils.rnn.pad_sequence(list(texts), batch_first=True, padding_value=IGNORED)
    return [(text[None, :-1].clamp(min=0), text[None, 1:]) for text in padded]


def deal_in_order(shapes: Sequence[torch.Size], pipelines: int) -> Sequence[Sequence[int]]:
    return [range(number, len(shapes), pipelines) for number in range(pipelines)]


def time_stage() -> StageTimes:
    """All layers, in nanoseconds of processor time."""
    training = make_training(lambda _: [])
    model = nn.Sequential(*(make() for make in training.layers.values()))
    forward, backward = [], []
    for length in LENGTHS:
        text, rows = torch.zeros(1, length + 1, dtype=torch.long), []
        for _ in range(4):
            start = time.process_time_ns()
            loss = measure_loss(model(text[:, :-1]), text[:, 1:])
            middle = time.process_time_ns()
            loss.backward()
            rows.append((middle - start, time.process_time_ns() - middle))
        forward.append(int(median(row[0] for row in rows[1:])))
        backward.append(int(median(row[1] for row in rows[1:])))
    return StageTimes(lengths=LENGTHS, forward_ns=tuple(forward), backward_ns=tuple(backward))


def main(store: str, rank: int, *, count: int, per_step: int, steps: int) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{store}", timedelta(seconds=600), world_size=count, rank=rank)
    told: list[Any] = [time_stage() if rank == 0 else None]
    distributed.broadcast_object_list(told)
    stages, texts = [told[0]], read_paragraphs()
    chosen = [random.Random(number).sample(texts, per_step) for number in range(steps)]

    def deal_by_length(shapes: Sequence[torch.Size], pipelines: int) -> Sequence[Sequence[int]]:
        return deal([shape[1] for shape in shapes], pipelines, stages=stages).pipelines

    ways = {
        "dealt": make_training(lambda number: as_microbatches(chosen[number]), deal=deal_by_length),
        "in order": make_training(lambda number: as_microbatches(chosen[number]), deal=deal_in_order),
        "padded": make_training(lambda number: as_padded(chosen[number]), deal=deal_in_order),
    }
    executions = {}
    plan = make_random_plan("/".join(map(str, range(count))), cut=[BLOCKS + 2], num_microbatches=per_step, backward="B")
    for name, training in ways.items():
        executions[name] = Execution(prepare(plan, training), device=torch.device("cpu"))
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    for number in range(steps):
        for name, execution in executions.items():
            distributed.barrier()
            wall, own = time.perf_counter(), time.process_time()
            iteration = execution.step(number)
            rows[name].append((time.perf_counter() - wall, time.process_time() - own, iteration.loss or 0.0))
    everyone: list[Any] = [None] * count
    distributed.all_gather_object(everyone, rows)
    if rank == 0:
        bounds = [deal([len(text) - 1 for text in each], count, stages=stages) for each in chosen]
        lengths = [len(text) - 1 for each in chosen for text in each]
        sys.stdout.write(
            json.dumps({"rows": everyone, "gaps": [dealing.gap for dealing in bounds], "lengths": lengths})
        )
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    place, (own, num_ranks, each, number) = sys.argv[1], map(int, sys.argv[2:])
    main(place, own, count=num_ranks, per_step=each, steps=number)

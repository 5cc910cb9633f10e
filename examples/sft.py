"""A small GPT fine-tuned on sentences of uneven length: whole sentences, dealt anew to equal pipelines in every step.

    torchrun --nproc-per-node 2 -m examples.sft plan.json            # a loop of one's own with torch's DataLoader
    torchrun --nproc-per-node 2 -m planner.execute plan.json --model examples.sft:make_training --steps 20

The plan is one of equal pipelines that run 1F1B. No sentence is padded or cut, and none waits for a longer one.
"""

import re
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from examples.dealing import DealtBatches
from examples.small_gpt import BLOCKS, WIDTH, Block, Head, read_text
from planner.dealing import StageTimes, deal
from planner.execute.session import join
from planner.execute.training import Batch, Training

PER_STEP = 8
"""Sentences, each a microbatch."""
STAGES = (
    StageTimes(
        lengths=(1, 64, 256), forward_ns=(600_000, 900_000, 3_000_000), backward_ns=(1_200_000, 1_800_000, 6_000_000)
    ),
)
"""What the one stage of a pipeline takes by the letters of a sentence; with several, give the times of each."""


class Sentences(Dataset[Batch]):
    """Those of the text: 23 to 192 letters, and for each the letter that follows."""

    def __init__(self) -> None:
        text, _ = read_text()
        letters = Path(__file__).with_name("text.txt").read_text(encoding="utf-8")
        ends = [match.end() for match in re.finditer(r"[.!?]\s+", letters)]
        pieces = zip([0, *ends], [*ends, len(letters)], strict=True)
        self.sentences = [text[start:end] for start, end in pieces if end - start > 1]

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, place: int) -> Batch:
        sentence = self.sentences[place]
        return sentence[None, :-1], sentence[None, 1:]


class Embedding(nn.Module):
    """Letters and places to vectors, for sentences of any length up to the longest."""

    def __init__(self) -> None:
        super().__init__()
        longest = max(map(len, read_sentences().sentences))
        self.letter, self.place = nn.Embedding(read_text()[1], WIDTH), nn.Embedding(longest, WIDTH)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """The sum of both vectors."""
        return self.letter(letters) + self.place(torch.arange(letters.shape[1], device=letters.device))


@cache
def read_sentences() -> Sentences:
    return Sentences()


def make_batch(number: int) -> list[Batch]:
    """A step's microbatches, one sentence each, where the executor asks for them by number."""
    order = torch.randperm(len(read_sentences()), generator=torch.Generator().manual_seed(number))
    return [read_sentences()[int(place)] for place in order[:PER_STEP]]


def measure_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy, the sum over all letters; `num_tokens` says what it is divided by."""
    return functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum")


def deal_sentences(shapes: Sequence[torch.Size], pipelines: int) -> Sequence[Sequence[int]]:
    """By their letters."""
    return deal([shape[1] for shape in shapes], pipelines, stages=STAGES).pipelines


def make_training() -> Training:
    """What `planner.execute` trains."""
    blocks = {f"block{number}": Block for number in range(BLOCKS)}
    return Training(
        layers={"embedding": Embedding, **blocks, "head": Head},
        loss=measure_loss,
        loss_is_sum=True,
        num_tokens=torch.numel,
        batch=make_batch,
        deal=deal_sentences,
        optimizer=partial(torch.optim.AdamW, lr=3e-3),
    )


def main(plan: str, *, epochs: int = 2) -> None:
    """Each process loads what its own pipeline is dealt, and nothing else."""
    sentences = read_sentences()
    with join(plan, make_training()) as execution:
        sampler = DealtBatches(
            [len(inputs[0]) for inputs, _ in sentences],
            per_step=PER_STEP,
            pipelines=execution.layout.num_replicas_of(0),
            rank=execution.pipeline,
            stages=STAGES,
        )
        for sampler.epoch in range(epochs):
            for microbatches in sampler.microbatches(DataLoader(sentences, batch_sampler=sampler, collate_fn=alone)):
                iteration = execution.step(microbatches)
                if execution.is_speaker:
                    sys.stderr.write(f"loss {iteration.loss:.6g} over {len(iteration.losses)} sentences\n")


def alone(sentences: list[Batch]) -> Batch:
    """A microbatch of one."""
    return sentences[0]


if __name__ == "__main__":
    main(sys.argv[1])

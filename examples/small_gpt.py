"""A small GPT that learns to continue the text beside it, letter by letter.

    pipeplan profile examples.small_gpt:make_training ...
    torchrun --nproc-per-node 2 -m planner.execute plan.json --model examples.small_gpt:make_training --steps 100

On accelerators it runs as it is, too: the executor moves layers and batches to the device that it finds.
"""

from functools import cache, partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from planner.execute.training import Training

BLOCKS, WIDTH, HEADS = 4, 64, 4
LENGTH = 32
"""Letters of context."""
SAMPLES = 16
"""Per iteration, over all microbatches and replicas."""


@cache
def read_text() -> tuple[torch.Tensor, int]:
    """The text as numbers, and how many letters there are."""
    text = Path(__file__).with_name("text.txt").read_text(encoding="utf-8")
    letters = sorted(set(text))
    number = {letter: place for place, letter in enumerate(letters)}
    return torch.tensor([number[letter] for letter in text]), len(letters)


class Embedding(nn.Module):
    """Letters and places to vectors: (samples, length) to (samples, length, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(read_text()[1], WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """The sum of both vectors."""
        return self.letter(letters) + self.place(torch.arange(letters.shape[1], device=letters.device))


class Block(nn.Module):
    """Attention to what came before, then a perceptron, each beside the way straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(samples, length, width) to the same."""
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.mixed(self.before(x)).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(attended)
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Head(nn.Module):
    """Vectors to what each letter speaks for being the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, read_text()[1], bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(samples, length, width) to (samples, length, letters)."""
        return self.out(self.norm(x))


def make_batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pieces of the text from anywhere, and the same moved by one letter."""
    text, _ = read_text()
    noise = torch.Generator().manual_seed(number)
    starts = torch.randint(len(text) - LENGTH, (SAMPLES, 1), generator=noise)
    pieces = text[starts + torch.arange(LENGTH + 1)]
    return pieces[:, :-1], pieces[:, 1:]


def measure_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy, the mean over all letters."""
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def make_training() -> Training:
    """What `pipeplan profile` measures and `planner.execute` trains."""
    blocks = {f"block{number}": Block for number in range(BLOCKS)}
    return Training(
        layers={"embedding": Embedding, **blocks, "head": Head},
        loss=measure_loss,
        batch=make_batch,
        optimizer=partial(torch.optim.AdamW, lr=3e-3),
    )

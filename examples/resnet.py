"""A residual network that tells generated pictures apart: discs, squares, rings and stripes, in noise.

    pipeplan profile examples.resnet:make_training ...
    torchrun --nproc-per-node 2 -m planner.execute plan.json --model examples.resnet:make_training --steps 100

On accelerators it runs as it is, too: the executor moves layers and batches to the device that it finds.
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from planner.execute.training import Training

SIZE = 16
"""Pixels along each side."""
SAMPLES = 32
"""Per iteration, over all microbatches and replicas."""
STAGES = ((16, 2), (32, 2), (64, 2))
"""Channels, and blocks with as many; the picture is halved where the channels are doubled."""
SHAPES = 4


class Stem(nn.Module):
    """(samples, 3, size, size) to (samples, channels, size, size)."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, STAGES[0][0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(STAGES[0][0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A convolution."""
        return torch.relu(self.norm(self.convolution(x)))


class Block(nn.Module):
    """Two convolutions beside the way straight through."""

    def __init__(self, channels: int, *, out_channels: int) -> None:
        super().__init__()
        stride = out_channels // channels
        self.first = nn.Conv2d(channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm, self.last_norm = nn.BatchNorm2d(out_channels), nn.BatchNorm2d(out_channels)
        self.way = nn.Conv2d(channels, out_channels, 1, stride=stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(samples, channels, height, width) to (samples, out_channels, height / stride, width / stride)."""
        y = torch.relu(self.norm(self.first(x)))
        return torch.relu(self.way(x) + self.last_norm(self.second(y)))


class Head(nn.Module):
    """(samples, channels, height, width) to (samples, shapes)."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(STAGES[-1][0], SHAPES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the mean over all pixels."""
        return self.out(x.mean((2, 3)))


def make_batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures with a shape each, of any place, size and colour, and which shape it is."""
    noise = torch.Generator().manual_seed(number)
    shape = torch.randint(SHAPES, (SAMPLES,), generator=noise)
    x, y, radius = (torch.rand((3, SAMPLES, 1, 1), generator=noise) * 0.3 + 0.35) * SIZE
    radius = radius * 0.6
    across, down = torch.arange(SIZE) - x, torch.arange(SIZE).unsqueeze(1) - y
    distance = (across**2 + down**2).sqrt()
    square = torch.maximum(across.abs(), down.abs()) < radius
    ring = (distance < radius) & (distance > radius / 2)
    masks = torch.stack([distance < radius, square, ring, square & (down % 4 < 2)])
    mask = masks[shape, torch.arange(SAMPLES)].float().unsqueeze(1)
    colour = torch.rand((SAMPLES, 3, 1, 1), generator=noise) + 0.5
    return mask * colour + 0.2 * torch.randn((SAMPLES, 3, SIZE, SIZE), generator=noise), shape


def make_training() -> Training:
    """What `pipeplan profile` measures and `planner.execute` trains."""
    blocks, channels = {}, STAGES[0][0]
    for out_channels, count in STAGES:
        for _ in range(count):
            blocks[f"block{len(blocks)}"] = partial(Block, channels, out_channels=out_channels)
            channels = out_channels
    return Training(
        layers={"stem": Stem, **blocks, "head": Head},
        loss=functional.cross_entropy,
        batch=make_batch,
        optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    )

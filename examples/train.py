"""A model of four layers, trained as planned: `pipeplan launch torchrun examples/two-ranks.json -- examples/train.py`.

The plan's path is in PIPEPLAN_PLAN; every option of `python -m planner.execute` may follow the name of this file.
"""

import sys

import torch
from torch import nn

from planner.execute.__main__ import main
from planner.execute.training import Training


def make_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """32 samples of noise; the same in every process that asks."""
    noise = torch.Generator().manual_seed(step)
    return torch.randn(32, 64, generator=noise), torch.randint(10, (32,), generator=noise)


def make_training() -> Training:
    """What the plan does not know: the layers, the loss, the data, the optimizer."""
    return Training(
        layers={
            "l0": lambda: nn.Linear(64, 256),
            "l1": lambda: nn.Sequential(nn.GELU(), nn.Linear(256, 256)),
            "l2": lambda: nn.Sequential(nn.GELU(), nn.Linear(256, 256)),
            "l3": lambda: nn.Sequential(nn.GELU(), nn.Linear(256, 10)),
        },
        loss=nn.functional.cross_entropy,
        batch=make_batch,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    )


if __name__ == "__main__":
    main(["--model", "__main__:make_training", *sys.argv[1:]])

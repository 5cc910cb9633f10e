#!/usr/bin/env bash
# How much a checkpointed block computes twice depends on its last operation.
#
# Who plans recomputation takes one forward for its cost: the backward runs the block again. But the repetition stops
# as soon as the last tensor that the backward needs has been saved again, and a Linear saves its input before it
# computes. So a Linear alone is repeated for nothing, and of the two equal products of Linear, GELU, Linear only the
# first comes twice. A residual addition behind them changes nothing, for it saves nothing. A dropout behind them saves
# its mask and a norm its input: now both products come twice. A dropout of 0 saves nothing again. So a dropout's
# probability, or where the norm stands, doubles the cost of recomputation.
#
# Guessed: 1.0 forwards in every row. Versions: torch 2.13.0 (CPU), Python 3.11. Seen, in multiplications of the
# forward:
#     Linear 0.00; MLP 0.50; residual MLP 0.50; MLP, dropout 0.0 0.50; MLP, dropout 0.1 1.00; MLP, norm 1.00
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'numpy==2.4.6'
cd "$folder"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

WIDTH = 64


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, given):
        return given + self.inner(given)


def make_mlp(*last):
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), *last)


def count(run):
    with FlopCounterMode(display=False) as counter:
        result = run()
    return counter.get_total_flops(), result


def repeated(block):
    """Multiplications that checkpointing adds to the backward, in those of a forward."""
    given = torch.randn(8, WIDTH, requires_grad=True)
    forward, output = count(lambda: block(given))
    backward, _ = count(output.sum().backward)
    output = checkpoint(block, given, use_reentrant=False)
    with_repetition, _ = count(output.sum().backward)
    return (with_repetition - backward) / forward


expected = {
    "Linear": (nn.Linear(WIDTH, WIDTH), 0.0),
    "MLP": (make_mlp(), 0.5),
    "residual MLP": (Residual(make_mlp()), 0.5),
    "MLP, dropout 0.0": (make_mlp(nn.Dropout(0.0)), 0.5),
    "MLP, dropout 0.1": (make_mlp(nn.Dropout(0.1)), 1.0),
    "MLP, norm": (make_mlp(nn.LayerNorm(WIDTH)), 1.0),
}
found = {name: repeated(block) for name, (block, _) in expected.items()}
for name, share in found.items():
    print(f"{name:18} {share:.2f} of the forward computed again")
sys.exit(found != {name: share for name, (_, share) in expected.items()})
PYTHON

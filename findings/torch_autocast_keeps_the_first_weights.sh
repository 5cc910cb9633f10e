#!/usr/bin/env bash
# Within one torch.autocast context, a model computes with the weights that it had at its first forward.
#
# Autocast may keep the bf16 copy of a float32 weight for its next use, which saves a cast per microbatch. One expects
# the copy to be made anew once the weight has changed: torch numbers the versions of a tensor, and its autograd refuses
# one that was changed in place. The copy is kept by the tensor's identity only, until the outermost context ends. Put
# the context around the loop instead of into it, and the optimizer steps along a gradient that never changes: the loss
# is constant and the weights run away. Loading a checkpoint or an average of weights within the context has no effect
# on what is computed either, nor has a nested context.
#
# Guessed: the same losses. Versions: torch 2.13.0 (CPU), Python 3.11. Seen for the loss w * w from w = 1, at 0.25:
#     context in the loop: 1, 0.25, 0.0625, 0.0156; around it: 1, 1, 1, 1 and w = -1; around it, no cache: as in it
#     weight 3 loaded within the context: computes with 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'numpy==2.4.6'
cd "$folder"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import sys
from contextlib import nullcontext

import torch
from torch import nn


def autocast(**options):
    return torch.autocast("cpu", torch.bfloat16, **options)


def make_model():
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


def train(around, within):
    """Losses of four steps, and the weight after them."""
    model, losses = make_model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    with around:
        for _ in range(4):
            optimizer.zero_grad()
            with within:
                loss = model(given).float().square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, model.weight.item()


def compute_loaded():
    """What a model of weight 1 computes from 1 after a weight of 3 was loaded."""
    model = make_model()
    with autocast():
        model(given)
        model.load_state_dict({"weight": torch.full((1, 1), 3.0)})
        with autocast():
            return model(given).item()


given = torch.ones(1, 1)
found = {
    "in the loop": train(nullcontext(), autocast()),
    "around the loop": train(autocast(), nullcontext()),
    "around the loop, no cache": train(autocast(cache_enabled=False), nullcontext()),
}
for name, (losses, weight) in found.items():
    print(f"{name:26} losses {', '.join(f'{loss:.4f}' for loss in losses)}; weight {weight:.4f}")
loaded = compute_loaded()
print(f"weight 3 loaded within the context: computes {loaded:.0f} from 1")
right = ([1.0, 0.25, 0.0625, 0.015625], 0.0625)
sys.exit(list(found.values()) != [right, ([1.0] * 4, -1.0), right] or loaded != 1)
PYTHON

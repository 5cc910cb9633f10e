#!/usr/bin/env bash
# Saving the state of an optimizer that has not stepped yet changes the training.
#
# `get_optimizer_state_dict` of torch's distributed checkpoints gives an optimizer's state by parameter name. By name
# and page it only reads. If there is no state yet, it makes one by a step with gradients and learning rate 0, and
# leaves it in the optimizer. Weights do not move in that step, but Adam counts it: the first real update is corrected
# as if it were the second, and is a quarter smaller. SGD with momentum and dampening halves its first update. So a run
# that saves its initial state differs from one that does not. Who compares two runs, one of which was saved at its
# beginning, finds a difference that no seed explains. The checkpoint says that one step was made.
#
# Guessed: no difference. Versions: torch 2.13.0 (CPU), Python 3.11. Seen, as the first update without and with a save
# before it, at a learning rate of 0.1 and a gradient of 1:
#     Adam 0.1000 and 0.0744; RAdam 0.1000 and 0.0526; SGD with momentum, dampening 0.5: 0.1000 and 0.0500; SGD: equal
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'numpy==2.4.6'
cd "$folder"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict


def first_update(make_optimizer, is_saved):
    """How far the first step moves a weight whose gradient is 1."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = make_optimizer(model.parameters())
    if is_saved:
        get_optimizer_state_dict(model, optimizer)
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    return round(1 - model.weight.item(), 4)


kinds = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
    "RAdam": lambda parameters: torch.optim.RAdam(parameters, lr=0.1),
    "SGD, momentum, dampening": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.5),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
}
found = {name: [first_update(make, is_saved) for is_saved in (False, True)] for name, make in kinds.items()}
for name, (without, after) in found.items():
    print(f"{name:25} first update {without:.4f}, after a save {after:.4f}")
sys.exit(list(found.values()) != [[0.1, 0.0744], [0.1, 0.0526], [0.1, 0.05], [0.1, 0.1]])
PYTHON

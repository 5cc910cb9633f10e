#!/usr/bin/env bash
# Sharding every block with FSDP2, and not the model around them, frees no weights after the forward.
#
# `fully_shard(block)` for each block, with the default `reshard_after_forward`, looks as if every block gathered its
# weights for its own forward and freed them after it; sharding the model too seems to add its left-over parameters, and
# here there are none. But which module is the root is found out in the first forward: a sharded module without a sharded
# one around it is a root of its own, and roots keep their weights for the backward. So at the end of the forward all
# weights are whole on every rank, as much memory as without sharding, and nothing warns of it. Losses and gradients are
# right. What runs blocks one by one (a pipeline's stage, a list of layers) has no model to shard: it must say
# `reshard_after_forward=True`.
#
# Versions: torch 2.13.0 (CPU, gloo, two processes), Python 3.11. Seen: 0 of 6 blocks whole after the forward where the
# model is sharded as well, 6 of 6 where it is not, and 0 with `reshard_after_forward=True`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'numpy==2.4.6'
cat >"$folder/forward.py" <<'PYTHON'
import sys

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

BLOCKS, WIDTH = 6, 64


def count_whole(with_model, **how):
    """Blocks whose weights this rank has whole between forward and backward."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(BLOCKS)))
    for block in model:
        fully_shard(block, mesh=mesh, **how)
    if with_model:
        fully_shard(model, mesh=mesh, **how)
    loss = model(torch.ones(4, WIDTH)).sum()
    whole = sum(not isinstance(weight, DTensor) for weight in model.parameters())
    loss.backward()
    return whole


distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
found = [count_whole(True), count_whole(False), count_whole(False, reshard_after_forward=True)]
if distributed.get_rank() == 0:
    names = "blocks and model", "blocks alone", "blocks alone, reshard_after_forward=True"
    for name, whole in zip(names, found, strict=True):
        print(f"{name:42} {whole} of {BLOCKS} blocks whole after the forward")
distributed.barrier()
distributed.destroy_process_group()
sys.exit(found != [0, BLOCKS, 0])
PYTHON
OMP_NUM_THREADS=1 "$folder/venv/bin/torchrun" --standalone --nproc-per-node 2 "$folder/forward.py"

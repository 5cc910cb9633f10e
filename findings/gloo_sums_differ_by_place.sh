#!/usr/bin/env bash
# An all-reduce of tensors with equal elements gives a tensor with unequal elements.
#
# That floating-point sums depend on the order of the ranks is known. But where each rank gives a tensor of one value,
# all elements are the same sum of the same numbers: one would expect one result, rounded somehow. A ring cuts the
# tensor into parts and begins the sum of each part at another rank, so the order depends on the place within the
# tensor. Two parameters with the same gradients on every rank get different averages if they lie at different places
# of a bucket, and another bucket size changes the bits of a run. Copies of a weight that are reduced apart drift
# apart. Two processes do not show it, for a sum of two does not depend on the order.
#
# Guessed: one value. Versions: torch 2.13.0 (CPU, gloo, two and four processes), Python 3.11. Seen with 16777216, 1,
# 1, 1:
#     4 processes: 500 elements are 16777216, 500 are 16777220 (16777219 is exact); 2 processes: all alike
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'numpy==2.4.6'
cat >"$folder/sums.py" <<'PYTHON'
import sys

import torch
from torch import distributed

distributed.init_process_group("gloo")
rank, size = distributed.get_rank(), distributed.get_world_size()
tensor = torch.full((1000,), 2.0**24 if rank == 0 else 1.0)
distributed.all_reduce(tensor)
values, counts = tensor.unique(return_counts=True)
if rank == 0:
    told = ", ".join(f"{count} elements are {value:.0f}" for value, count in zip(values.tolist(), counts.tolist()))
    print(f"{size} processes: {told}")
distributed.barrier()
distributed.destroy_process_group()
sys.exit((len(values) > 1) != (size > 2))
PYTHON
export TMPDIR="$folder" OMP_NUM_THREADS=1
"$folder/venv/bin/torchrun" --standalone --nproc-per-node 2 "$folder/sums.py"
"$folder/venv/bin/torchrun" --standalone --nproc-per-node 4 "$folder/sums.py"

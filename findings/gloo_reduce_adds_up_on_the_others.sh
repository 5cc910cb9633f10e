#!/usr/bin/env bash
# gloo's reduce leaves the ranks that receive nothing with a tensor that is added up in part.
#
# The documentation of `reduce` says that only one rank receives the final result, and that the operation is in place.
# With NCCL the others keep what they had, so a gradient can be reduced to the stage that owns a shared weight and stay
# as it is elsewhere. gloo adds up in place on the way, and gives each rank another part of the tensor to add. A rank
# that receives nothing then has its own numbers in some elements, partial sums in others and the whole sum in a few.
# What reads that tensor later, or reduces it a second time, is wrong in these elements only.
#
# Guessed: unchanged on the others. Versions: torch 2.13.0 (CPU, gloo, four processes), Python 3.11. Seen for 8 elements
# of 1, 10, 100 and 1000, reduced to rank 0, as the values on rank 0 and on rank 1:
#     1111 in all elements; 1110 in two, 1111 in two, 10 in two, 110 in two
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'numpy==2.4.6'
cat >"$folder/reduce.py" <<'PYTHON'
import sys

import torch
from torch import distributed

distributed.init_process_group("gloo")
RANK, SIZE = distributed.get_rank(), distributed.get_world_size()
tensor = torch.full((8,), 10.0**RANK)
distributed.reduce(tensor, dst=0)
every = [None] * SIZE
distributed.all_gather_object(every, [int(value) for value in tensor.tolist()])
if RANK == 0:
    for rank, values in enumerate(every):
        print(f"rank {rank}, which gave {10**rank}: {values}")
distributed.barrier()
distributed.destroy_process_group()
is_sum = set(every[0]) == {1111}
are_changed = [set(values) != {10**rank} for rank, values in enumerate(every)][1:]
sys.exit(not (is_sum and any(are_changed)))
PYTHON
TMPDIR="$folder" OMP_NUM_THREADS=1 "$folder/venv/bin/torchrun" --standalone --nproc-per-node 4 "$folder/reduce.py"

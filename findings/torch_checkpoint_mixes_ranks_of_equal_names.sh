#!/usr/bin/env bash
# A distributed checkpoint of parameters that have equal names on several ranks is a mixture of them.
#
# `torch.distributed.checkpoint` shards what is a DTensor and stores the rest once. Pipeline stages are not sharded:
# every rank has other parameters, and a stage that is a Sequential calls its first layer "0" on each rank. One expects
# an error, one copy per rank, or at worst the copy of the coordinator. But equal names are taken for copies of one
# tensor, values are not compared, and to level the files each name is written by the rank that writes least so far. The
# checkpoint holds one rank's weight beside another rank's bias, and every rank loads that. Saving and loading succeed,
# shapes agree as the stages of a model do. Random states and data loaders' positions under one name share this fate.
#
# Guessed: an error. Versions: torch 2.13.0 (CPU, gloo, two processes), Python 3.11. Seen on both ranks, where rank 0
# has saved 1 and rank 1 has saved 2 everywhere:
#     equal names: 0.weight 1, 0.bias 2, 1.weight 2, 1.bias 1; rank in the name: what was saved
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'numpy==2.4.6'
cat >"$folder/stages.py" <<'PYTHON'
import sys

import torch
from torch import distributed, nn
from torch.distributed import checkpoint

distributed.init_process_group("gloo")
RANK = distributed.get_rank()


def save_and_load(key):
    """Of both ranks: the value that each parameter of its stage has after it was saved, zeroed and loaded."""
    stage = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for parameter in stage.parameters():
        nn.init.constant_(parameter, RANK + 1)
    checkpoint.save({key: stage.state_dict()}, checkpoint_id=sys.argv[1] + key.removesuffix(str(RANK)))
    for parameter in stage.parameters():
        nn.init.zeros_(parameter)
    checkpoint.load({key: stage.state_dict()}, checkpoint_id=sys.argv[1] + key.removesuffix(str(RANK)))
    both = [None, None]
    distributed.all_gather_object(
        both, {name: int(parameter.unique().item()) for name, parameter in stage.named_parameters()}
    )
    return both


equal = save_and_load("stage")
own = save_and_load(f"stage of rank {RANK}")
if RANK == 0:
    for name, both in {"equal names": equal, "rank in the name": own}.items():
        print(f"{name:17} rank 0 has {both[0]}, rank 1 has {both[1]}")
distributed.barrier()
distributed.destroy_process_group()
is_mixture = equal[0] == equal[1] and set(equal[0].values()) == {1, 2}
sys.exit(not (is_mixture and [set(each.values()) for each in own] == [{1}, {2}]))
PYTHON
TMPDIR="$folder" OMP_NUM_THREADS=1 "$folder/venv/bin/torchrun" --standalone --nproc-per-node 2 "$folder/stages.py" \
    "$folder/checkpoint "

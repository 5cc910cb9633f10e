#!/usr/bin/env bash
# On a host FSDP2 computes nothing beside its messages, whether it prefetches or not.
#
# `set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch` let a layer's gather begin while another
# layer computes. That is done with streams of an accelerator: gathers and reduce-scatters are asked for without
# async_op, and NCCL's calls return at once. Over gloo such a call comes back when the message has ended. So prefetching
# only changes the order, and an iteration takes the sum of what it computes and what it sends, for every layer, even
# where the processes have idle cores. DistributedDataParallel's reductions do run beside the backward over gloo.
#
# Counted here: messages that each library asks for in an iteration, and those of them that had ended when the call
# returned to it. Guessed: with prefetching, most gathers are still on their way. Versions: torch 2.13.0 (CPU), numpy
# 2.4.6, Python 3.11. Seen:
#     FSDP2                  9 messages, 9 ended within the call
#     FSDP2, prefetching     9 messages, 9 ended within the call
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'numpy==2.4.6'
cd "$folder"
cat > rank.py <<'PYTHON'
import sys

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[1]), world_size=2)
seen = []


def watching(real):
    def call(*given, **named):
        work = real(*given, **named)
        seen.append(work is None or work.is_completed())
        return work

    return call


for name in ("all_gather_single", "reduce_scatter_single"):
    setattr(distributed, name, watching(getattr(distributed, name)))


def count(prefetching):
    layers = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(3)))
    mesh = distributed.init_device_mesh("cpu", (2,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(layers, mesh=mesh)
    for layer, other in zip(layers[:-1], layers[1:], strict=True) if prefetching else ():
        layer.set_modules_to_forward_prefetch([other])
        other.set_modules_to_backward_prefetch([layer])
    for _ in range(2):
        seen.clear()
        layers(torch.ones(256, 1024)).sum().backward()
    return len(seen), sum(seen)


found = {name: count(name != "FSDP2") for name in ("FSDP2", "FSDP2, prefetching")}
if distributed.get_rank() == 0:
    for name, (asked, ended) in found.items():
        print(f"{name:22} {asked} messages, {ended} ended within the call")
distributed.barrier()
distributed.destroy_process_group()
sys.exit(any(asked != ended or not asked for asked, ended in found.values()))
PYTHON
export OMP_NUM_THREADS=1
"$folder/venv/bin/python" rank.py 1 "$folder/meeting" &
"$folder/venv/bin/python" rank.py 0 "$folder/meeting"
wait $!

#!/usr/bin/env bash
# On gloo a reduce-scatter sends as many bytes as an all-reduce.
#
# A ring's all-reduce is a reduce-scatter and then an all-gather, each of half its bytes: (n - 1) / n of the tensor from
# every process. Who prices ZeRO or FSDP counts a reduce-scatter as half an all-reduce. Torch's gloo sends the whole of
# one, and keeps a part of the result. So sharded training between hosts' processors sends half as much again as it
# has to (and as DistributedDataParallel does). The gather does take its half.
#
# Guessed: 0.50 of the tensor for scatter and gather on two processes, 0.75 on four. Versions: torch 2.13.0 (CPU),
# Python 3.11, Linux. Seen, as written by each process in parts of a tensor of 4 MiB:
#     2 processes: all-reduce 1.00, reduce-scatter 1.00, all-gather 0.50
#     4 processes: all-reduce 1.50, reduce-scatter 1.50, all-gather 0.75
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'numpy==2.4.6'
cd "$folder"
cat > sent.py <<'PYTHON'
import sys

import torch
from torch import distributed, multiprocessing

SIZE, REPETITIONS = 1 << 22, 10


def written():
    with open("/proc/self/io", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("wchar"))


def measure(rank, count, place, told):
    distributed.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=count)
    whole = torch.ones(SIZE // 4)
    part = torch.zeros(SIZE // 4 // count)
    calls = {
        "all-reduce": lambda: distributed.all_reduce(whole),
        "reduce-scatter": lambda: distributed.reduce_scatter_tensor(part, whole),
        "all-gather": lambda: distributed.all_gather_into_tensor(whole, part),
    }
    found = {}
    for name, call in calls.items():
        call()
        distributed.barrier()
        before = written()
        for _ in range(REPETITIONS):
            call()
        found[name] = round((written() - before) / REPETITIONS / SIZE, 2)
    distributed.barrier()
    if rank == 0:
        told.put(found)
    distributed.destroy_process_group()


if __name__ == "__main__":
    context, expected = multiprocessing.get_context("spawn"), {2: (1.0, 1.0, 0.5), 4: (1.5, 1.5, 0.75)}
    same = True
    for count, wanted in expected.items():
        told = context.SimpleQueue()
        multiprocessing.spawn(measure, args=(count, f"{sys.argv[1]}/meet{count}", told), nprocs=count)
        found = told.get()
        print(f"{count} processes: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()))
        same = same and tuple(found.values()) == wanted
    sys.exit(0 if same else 1)
PYTHON
OMP_NUM_THREADS=1 "$folder/venv/bin/python" sent.py "$folder"

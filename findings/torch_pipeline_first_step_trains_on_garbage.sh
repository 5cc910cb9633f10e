#!/usr/bin/env bash
# Before its first step, torch's pipeline runs every stage once more, all but the first on uninitialised memory.
#
# A `PipelineStage` without example inputs infers shapes from the first microbatch, says its documentation. One expects
# a run on the meta device, which leaves no trace. But it is a real forward of the real module in training mode. The
# first stage gets the first microbatch, the others whatever new memory holds. A BatchNorm takes that into its running
# statistics. Training looks right, for there the batch's own statistics count. Evaluation is off for many steps, or
# for good once a variance is infinite. `use_deterministic_algorithms`, meant to make runs alike, fills new memory with
# NaN: with it the statistics are NaN in every run. Dropout draws its numbers once more as well, so a seeded run differs
# from the same run with example inputs.
#
# Guessed: as many forwards as microbatches. Versions: torch 2.13.0 (CPU), Python 3.11. Seen in the BatchNorm of the
# second stage after a step of 4 microbatches, deterministic:
#     shapes found by the pipeline: 5 batches, running mean nan; example inputs given: 4 batches, a number; equal losses
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'numpy==2.4.6'
cd "$folder"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import math
import sys

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

MICROBATCHES, SIZE, WIDTH = 4, 8, 3


def after_a_step(with_examples):
    """Batches that the second stage's BatchNorm has seen, its running mean, and the losses of the step."""
    torch.manual_seed(0)
    modules = [nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))]
    examples = [torch.zeros(SIZE, WIDTH, requires_grad=number > 0) for number in range(2)]
    stages = [
        PipelineStage(module, number, 2, torch.device("cpu"), examples[number], examples[1])
        if with_examples
        else PipelineStage(module, number, 2, torch.device("cpu"))
        for number, module in enumerate(modules)
    ]
    schedule = ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    batch, losses = torch.randn(SIZE * MICROBATCHES, WIDTH), []
    schedule.step(batch, target=batch, losses=losses)
    norm = modules[1][0]
    return norm.num_batches_tracked.item(), norm.running_mean[0].item(), [loss.item() for loss in losses]


torch.use_deterministic_algorithms(True)
distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
found = after_a_step(with_examples=False)
given = after_a_step(with_examples=True)
distributed.destroy_process_group()
for name, (batches, mean, losses) in {"shapes found by the pipeline": found, "example inputs given": given}.items():
    print(f"{name:29} {batches} batches seen, running mean {mean:.3f}, last loss {losses[-1]:.6f}")
is_as_described = (found[0], given[0]) == (MICROBATCHES + 1, MICROBATCHES) and found[2] == given[2]
sys.exit(not (is_as_described and math.isnan(found[1]) and not math.isnan(given[1])))
PYTHON

#!/usr/bin/env bash
# torch's interleaved 1F1B holds more activations with 15 microbatches than with 16.
#
# More microbatches in a step fill the pipeline better, and 1F1B promises that the memory does not grow with them. So
# fewer microbatches should hold no more. But the schedule deals the microbatches out in rounds, of which there are
# `microbatches // ranks`, and a rank goes through a whole round with one stage before it takes the next. Between one
# and two times the ranks there is one round, as long as the step: the first rank runs every forward before its first
# backward, as GPipe does. The documentation says only that the paper's rule for the number of microbatches is relaxed.
# The bubble is the same, so nothing is bought with the memory. Taking a microbatch away can end a run that fitted.
#
# Guessed: 15 hold at most what 16 hold. Versions: torch 2.13.0 (CPU), Python 3.11. Seen on the first of 8 ranks with
# two stages each, in microbatches of a stage:
#     8: 16 of 16; 12: 24 of 24; 15: 30 of 30; 16: 23 of 32; 24: 23 of 48; 32: 23 of 64
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'numpy==2.4.6'
cd "$folder"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from torch.testing._internal.distributed.fake_pg import FakeStore

RANKS, STAGES = 8, 16


def most_held(microbatches):
    """Forwards of the first rank whose backward has not run, at most."""
    stages = [PipelineStage(nn.Linear(1, 1), number, STAGES, torch.device("cpu")) for number in (0, RANKS)]
    schedule = ScheduleInterleaved1F1B(stages, microbatches, loss_fn=nn.functional.mse_loss)
    held = most = 0
    for action in schedule.pipeline_order[0]:
        if action is not None:
            held += {"FORWARD": 1, "FULL_BACKWARD": -1}[action.computation_type.name]
            most = max(most, held)
    return most


distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
found = {microbatches: most_held(microbatches) for microbatches in (8, 12, 15, 16, 24, 32)}
for microbatches, most in found.items():
    print(f"{microbatches} microbatches: {most} of {2 * microbatches} forwards held at once")
distributed.destroy_process_group()
sys.exit(not (found[15] == 30 > found[16] == found[24] == found[32]))
PYTHON

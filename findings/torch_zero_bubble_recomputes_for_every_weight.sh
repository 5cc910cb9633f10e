#!/usr/bin/env bash
# Under torch's zero-bubble schedules a checkpointed block is computed again for every layer that has weights.
#
# Recomputation costs one more forward. A zero-bubble schedule splits the backward in two, so one may fear a second
# one: for the backward for inputs (I) and the one for weights (W). But W is a backward of its own for each group of
# weights that meet at one operation, and what a checkpoint has computed again is kept for one backward only. So a
# block of three layers is computed five times: forward, I, and three times for W. A transformer block with eight
# layers that have weights would take ten. Gradients are right, and nothing is said; the schedule that should have
# filled the bubble is slower than the plain one. torch has `GraphExecGroup` to keep what several backwards need; the
# pipelines do not use it.
#
# Guessed: 2 forwards, or 3. Versions: torch 2.13.0 (CPU), Python 3.11. Seen, as forwards of each microbatch in the
# second of two stages, without and with checkpoints:
#     Interleaved1F1B: 1 and 2; InterleavedZeroBubble: 1 and 5; ZBVZeroBubble: 1 and 5
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'numpy==2.4.6'
cd "$folder"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble
from torch.distributed.pipelining import ScheduleZBVZeroBubble
from torch.utils.checkpoint import checkpoint

MICROBATCHES, WIDTH = 4, 16


class Stage(nn.Module):
    """A residual block of three layers with weights."""

    def __init__(self, is_checkpointed):
        super().__init__()
        self.is_checkpointed, self.forwards = is_checkpointed, 0
        self.block = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)
        )
        self.block[0].register_forward_hook(self.note)

    def note(self, *_):
        self.forwards += 1

    def forward(self, given):
        if self.is_checkpointed:
            return given + checkpoint(self.block, given, use_reentrant=False)
        return given + self.block(given)


def run(schedule_class, is_checkpointed):
    """Forwards of each microbatch in the second stage, and the gradient of its first weight."""
    torch.manual_seed(0)
    modules = [Stage(is_checkpointed) for _ in range(2)]
    stages = [PipelineStage(module, number, 2, torch.device("cpu")) for number, module in enumerate(modules)]
    schedule = schedule_class(stages, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    batch = torch.randn(2 * MICROBATCHES, WIDTH)
    schedule.step(batch, target=batch)  # finds shapes as well
    modules[1].forwards = 0
    schedule.step(batch, target=batch)
    return modules[1].forwards / MICROBATCHES, modules[1].block[0].weight.grad


distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
found = {}
for schedule_class in (ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble):
    name = schedule_class.__name__.removeprefix("Schedule")
    (plain, gradient), (again, other) = (run(schedule_class, is_checkpointed) for is_checkpointed in (False, True))
    assert torch.allclose(gradient, other)
    found[name] = plain, again
    print(f"{name:22} {plain:.0f} forward of a microbatch without checkpoints, {again:.0f} with them")
distributed.destroy_process_group()
sys.exit(list(found.values()) != [(1, 2), (1, 5), (1, 5)])
PYTHON

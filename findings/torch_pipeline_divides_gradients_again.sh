#!/usr/bin/env bash
# torch's pipelines divide a gradient by the number of microbatches as often as they meet it.
#
# A schedule adds up the gradients of its microbatches and divides by their number: `scale_grads`, on by default, is
# described as what a mean loss needs. Gradients add up over two calls of `step` too, as over two backwards, when no
# room is left for more microbatches in one; so the sum of two equal steps should be twice that of one. But all that
# lies in `grad` is divided each time, so of the sum of k steps the first counts 1 / n^(k-1). The same befalls one step
# if two stages of a rank share a weight: first and last stage lie on one rank in every V-shaped schedule, which makes
# tying embedding and head easy there. Each stage divides at its end what the other has added or divided before.
#
# Guessed: 2 for two steps and for the shared weight. Versions: torch 2.13.0 (CPU), Python 3.11. Seen with 4
# microbatches, each with a gradient of 1 for each use of the weight:
#     one step 1; two steps 1.25; two steps, divided by hand at the end 2; weight shared by two stages of a rank 0.6875
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
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, ScheduleZBVZeroBubble

MICROBATCHES, SIZE = 4, 8


def make_layer():
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    return layer


def mean_output(output, _):
    return output.mean()


def gradient(layers, steps, scale_grads=True):
    """Of the first layer's weight after `steps` steps, with each layer as a stage of this one rank."""
    stages = [PipelineStage(layer, number, len(layers), torch.device("cpu")) for number, layer in enumerate(layers)]
    given, kind = (stages, ScheduleZBVZeroBubble) if len(stages) > 1 else (stages[0], ScheduleGPipe)
    schedule = kind(given, MICROBATCHES, loss_fn=mean_output, scale_grads=scale_grads)
    for _ in range(steps):
        schedule.step(torch.ones(SIZE, 1), target=torch.ones(SIZE, 1))
    return layers[0].weight.grad.item()


distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
first, last = make_layer(), make_layer()
last.weight = first.weight
once = gradient([make_layer()], steps=1)
twice = gradient([make_layer()], steps=2)
by_hand = gradient([make_layer()], steps=2, scale_grads=False) / MICROBATCHES
shared = gradient([first, last], steps=1)
distributed.destroy_process_group()
print(f"one step {once}; two steps {twice}; two steps, divided by hand at the end {by_hand}; shared weight {shared}")
sys.exit((once, twice, by_hand, shared) != (1, 1.25, 2, 0.6875))
PYTHON

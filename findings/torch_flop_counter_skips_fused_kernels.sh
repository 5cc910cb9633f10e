#!/usr/bin/env bash
# torch's FlopCounterMode counts nothing of a fused operation that it has no formula for, and says nothing.
#
# The counter is the usual way to get a layer's cost without a device, and takes composite operations apart until it
# knows them. So a model should count the same on the meta device, on a CPU, in training and in evaluation. But a kernel
# of its own is not composite, and one without a formula counts 0, where a warning or an error would be expected.
# Attention on a CPU is such a kernel; the same call on the meta device is counted. A TransformerEncoderLayer in
# evaluation without gradients is one kernel as a whole, so a layer of cost 0. So are an LSTM, and the grouped product
# of a mixture of experts. Costs that were counted like this cut a pipeline as if long sequences or experts were free.
#
# Guessed: 1.0 in every row. Versions: torch 2.13.0 (CPU), Python 3.11. Seen, as a share of the multiplications and
# additions that are computed:
#     attention: meta device 1.0, CPU 0.0; encoder layer: training 1.0, evaluation 0.0; LSTM 0.0; experts 0.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'numpy==2.4.6'
cd "$folder"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

BATCH, HEADS, LENGTH, SIZE = 2, 4, 16, 8
WIDTH, EXPERTS = HEADS * SIZE, 4
TOKENS = BATCH * LENGTH
ATTENTION = 2 * 2 * BATCH * HEADS * LENGTH * LENGTH * SIZE


def share(work, run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops() / work


def attend(device):
    query = torch.randn(BATCH, HEADS, LENGTH, SIZE, device=device)
    return nn.functional.scaled_dot_product_attention(query, query, query)


def evaluate(layer):
    with torch.no_grad():
        return layer.eval()(given)


def compute_experts():
    ends = torch.arange(1, EXPERTS + 1, dtype=torch.int32) * (TOKENS // EXPERTS)
    weights = torch.randn(EXPERTS, WIDTH, WIDTH, dtype=torch.bfloat16)
    return nn.functional.grouped_mm(given.reshape(-1, WIDTH).bfloat16(), weights, offs=ends)


given = torch.randn(BATCH, LENGTH, WIDTH)
layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True)
lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
of_layer = ATTENTION + 2 * TOKENS * WIDTH * WIDTH * (4 + 8)
found = {
    "attention, meta device": share(ATTENTION, lambda: attend("meta")),
    "attention, CPU": share(ATTENTION, lambda: attend("cpu")),
    "encoder layer, training": share(of_layer, lambda: layer(given)),
    "encoder layer, evaluation": share(of_layer, lambda: evaluate(layer)),
    "LSTM": share(2 * TOKENS * WIDTH * 4 * WIDTH * 2, lambda: lstm(given)),
    "experts": share(2 * TOKENS * WIDTH * WIDTH, compute_experts),
}
for name, counted in found.items():
    print(f"{name:26} {counted:.1f} of the work counted")
sys.exit(list(found.values()) != [1, 0, 1, 0, 0, 0])
PYTHON

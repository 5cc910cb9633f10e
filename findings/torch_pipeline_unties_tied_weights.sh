#!/usr/bin/env bash
# torch's `pipeline()` silently unties a weight that two stages share, and leaves a third copy on the first.
#
# A language model's embedding and head often share one weight, and are the first and last layer. `pipeline()` cuts a
# traced model into stages. Where both users are within a stage, the weight stays one. Where they are not, one expects
# a refusal, or gradients that are added up between the stages: the result lists the pair in `replicated_params`, and
# the source says that an all-reduce has to follow. No schedule does it. The first loss is right; each copy then gets
# its own user's part of the gradient, and from the first step they differ. The first stage also keeps the head's
# weight as a parameter that nothing uses, so the embedding, the largest weight of small models, lies there twice.
#
# Guessed: refused, or kept alike. Versions: torch 2.13.0 (CPU), Python 3.11. Seen after one step of SGD:
#     cut behind both users: 1 parameter, difference 0
#     cut between them: 3 parameters (embedding and head on stage 0, head on stage 1), difference above 0
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
from torch.distributed.pipelining import SplitPoint, pipeline


class Tied(nn.Module):
    """The head has the embedding's weight."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
        self.body, self.last = nn.Linear(8, 8), nn.Linear(10, 10)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.last(self.head(self.body(self.embedding(tokens))))


def train(cut_before):
    """Where the shared weight lies, and how far its used copies are apart after a step."""
    torch.manual_seed(0)
    output = torch.arange(6).reshape(2, 3)
    cut = pipeline(Tied(), (output,), split_spec={cut_before: SplitPoint.BEGINNING})
    stages = [cut.get_stage_module(number) for number in range(cut.num_stages)]
    shared = {
        f"{name} on stage {number}": weight
        for number, stage in enumerate(stages)
        for name, weight in stage.named_parameters()
        if name in ("embedding.weight", "head.weight")
    }
    optimizer = torch.optim.SGD([weight for stage in stages for weight in stage.parameters()], lr=0.01)
    for stage in stages:
        output = stage(output)
    output.square().mean().backward()
    optimizer.step()
    used = [weight.detach() for weight in shared.values() if weight.grad is not None]
    unused = [name for name, weight in shared.items() if weight.grad is None]
    return list(shared), (used[0] - used[-1]).abs().max().item(), unused


found = {"cut behind both users": train("last"), "cut between them": train("body")}
for name, (places, difference, unused) in found.items():
    print(f"{name}: {', '.join(places)}; difference after a step {difference:.1g}; unused: {unused}")
behind, between = found.values()
is_as_described = len(behind[0]) == 1 and len(between[0]) == 3 and between[1] > 0 and len(between[2]) == 1
sys.exit(not is_as_described)
PYTHON

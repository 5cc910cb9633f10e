#!/usr/bin/env bash
# load_state_dict(assign=True) makes two parameters of one tied weight: SGD trains on as before, AdamW does not.
#
# A large model is built on the meta device and gets its weights by load_state_dict(assign=True), from a file that is
# mapped. On the meta device its tied weights are one parameter. Afterwards they are two parameters over one storage:
# a check of storages finds them tied, and each name shows the values of the other. But model.parameters() lists both,
# each has a gradient of its own, and an optimizer steps the storage twice. The two steps of SGD add up to the one that
# is right. The two of AdamW do not: each is scaled by its own gradient, and weights decay twice.
#
# Guessed: one parameter, as before the load; or two whose values part, as after to_empty. Versions: torch 2.13.0 (CPU),
# Python 3.11, Linux. Seen after five steps of an embedding that is tied to the head:
#     on meta: 1 parameter; after assign=True: 2 over 1 storage; after to_empty: 2 over 2 storages
#     losses differ from those of the tied model by: SGD 0.0000, AdamW 0.6095
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'numpy==2.4.6'
cd "$folder"
cat > tied.py <<'PYTHON'
import copy
import sys

import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 4), nn.Linear(4, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def count(model):
    """Parameters, and storages below them."""
    found = list(model.parameters())
    return len(found), len({each.data_ptr() for each in found})


def last_loss(model, kind):
    tokens, optimizer = torch.arange(11), kind(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), tokens.roll(-1))
        loss.backward()
        optimizer.step()
    return loss.item()


torch.manual_seed(0)
whole = Tied()
with torch.device("meta"):
    empty = Tied()


def loaded():
    model = copy.deepcopy(empty)
    model.load_state_dict(copy.deepcopy(whole).state_dict(), assign=True)
    return model


made = copy.deepcopy(empty).to_empty(device="cpu")
print(f"on meta: {len(list(empty.parameters()))} parameter; after assign=True: {count(loaded())[0]} over", end=" ")
print(f"{count(loaded())[1]} storage; after to_empty: {count(made)[0]} over {count(made)[1]} storages")
apart = {
    kind.__name__: abs(last_loss(copy.deepcopy(whole), kind) - last_loss(loaded(), kind))
    for kind in (torch.optim.SGD, torch.optim.AdamW)
}
print("losses differ from those of the tied model by:", ", ".join(f"{name} {by:.4f}" for name, by in apart.items()))
as_seen = len(list(empty.parameters())) == 1 and count(loaded()) == (2, 1) and count(made) == (2, 2)
sys.exit(0 if as_seen and apart["SGD"] < 1e-5 and apart["AdamW"] > 0.1 else 1)
PYTHON
"$folder/venv/bin/python" tied.py

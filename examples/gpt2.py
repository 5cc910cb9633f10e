"""GPT-2 as transformers makes it, small and untrained; weights of your own: `planner.execute --weights FOLDER`.

`pipeplan profile examples.gpt2:make_training -m 8 --devices 2 -o workload.json`, `pipeplan plan workload.json -o
plan.json`, `torchrun --nproc-per-node 2 -m planner.execute plan.json --model examples.gpt2:make_training --steps 100`.
"""

from functools import partial
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from planner.execute.training import Training

TEXT = torch.tensor(list(Path(__file__).with_name("text.txt").read_bytes()))
SAMPLES, LENGTH = 32, 64


def make_batch(step: int) -> dict[str, torch.Tensor]:
    """Bytes as tokens, as the model's forward calls them; the same in every process that asks."""
    starts = torch.randint(len(TEXT) - LENGTH, (SAMPLES, 1), generator=torch.Generator().manual_seed(step))
    tokens = TEXT[starts + torch.arange(LENGTH)]
    return {"input_ids": tokens, "labels": tokens}


def make_training() -> Training:
    """The model computes its own loss; what it draws (dropout) depends on the sample, not on the plan."""
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=128, n_head=4, n_layer=6, **ends)
    return Training.from_module(
        GPT2LMHeadModel(config), batch=make_batch, optimizer=partial(torch.optim.AdamW, lr=1e-3)
    )

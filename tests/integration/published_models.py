"""A model of transformers whose files have other names than its state dictionary, for `--weights`."""

from functools import partial

import torch
from transformers import MixtralConfig, MixtralForCausalLM

from planner.execute.training import Training

TOKENS = torch.arange(32).reshape(2, 16)


def mixtral(seed: int = 0) -> MixtralForCausalLM:
    """Two blocks with four experts each."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "vocab_size": 32}
    counts = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4}
    return MixtralForCausalLM(MixtralConfig(**sizes, **counts))


def train() -> Training:
    """From other weights than those that are published."""
    batch = {"input_ids": TOKENS, "labels": TOKENS}
    return Training.from_module(mixtral(1), batch=lambda _: batch, optimizer=partial(torch.optim.SGD, lr=1.0))

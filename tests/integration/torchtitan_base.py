"""The configuration that the recipe starts from in its test: torchtitan's own small Llama 3, noise for text.

Imported by torchtitan in a process of its own. Its attention is torchtitan's module around torch's function for
processors: flex attention, its default, has no backward pass there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader  # type: ignore[import-not-found]
from torchtitan.components.loss import CrossEntropyLoss  # type: ignore[import-not-found]
from torchtitan.components.metrics import MetricsProcessor  # type: ignore[import-not-found]
from torchtitan.components.optimizer import default_adamw  # type: ignore[import-not-found]
from torchtitan.components.tokenizer import BaseTokenizer  # type: ignore[import-not-found]
from torchtitan.config import ParallelismConfig, TrainingConfig  # type: ignore[import-not-found]
from torchtitan.models.common.attention import ScaledDotProductAttention  # type: ignore[import-not-found]
from torchtitan.models.llama3 import model_registry  # type: ignore[import-not-found]
from torchtitan.trainer import Trainer  # type: ignore[import-not-found]

SEQUENCE, STEPS, WORDS = 16, 3, 2048


class NoTokens(BaseTokenizer):  # type: ignore[misc]
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__()

    def encode(self, *_: Any, **__: Any) -> list[int]:
        return []

    def decode(self, *_: Any, **__: Any) -> str:
        return ""

    def get_vocab_size(self) -> int:
        return WORDS


def microbatches(size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens and the tokens after them, the same wherever they are asked for."""
    noise = torch.Generator().manual_seed(0)
    while True:
        tokens = torch.randint(WORDS, (size, SEQUENCE + 1), generator=noise)
        yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


class Noise(BaseDataLoader):  # type: ignore[misc]
    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Any, *, local_batch_size: int, dp_world_size: int, dp_rank: int, **_: Any) -> None:
        self.size, self.copies, self.copy = local_batch_size, dp_world_size, dp_rank

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for tokens, target in microbatches(self.size * self.copies):
            own = slice(self.copy * self.size, (self.copy + 1) * self.size)
            yield {"input": tokens[own].contiguous()}, target[own].contiguous()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


def tiny() -> Any:
    """Six blocks of 256 channels, in float32."""
    model = model_registry("debugmodel")
    for layer in model.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return Trainer.Config(
        model_spec=model,
        loss=CrossEntropyLoss.Config(global_vocab_size=WORDS),
        tokenizer=NoTokens.Config(),
        dataloader=Noise.Config(),
        optimizer=default_adamw(lr=1e-3),
        training=TrainingConfig(seq_len=SEQUENCE, steps=STEPS, max_norm=1e9, mixed_precision_param="float32"),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),  # its default needs torch 2.14 to shard
        metrics=MetricsProcessor.Config(log_freq=1),
        activation_checkpoint=None,
    )

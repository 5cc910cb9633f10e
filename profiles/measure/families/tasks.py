"""What the families share: their data, their losses, their optimizer."""

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional

from profiles.measure.model import Model

Batch = Callable[[int], tuple[torch.Tensor, torch.Tensor]]


def make_model(
    layers: Mapping[str, Callable[[], nn.Module]], *, batch: Batch, loss: Callable[..., torch.Tensor]
) -> Model:
    """A model that AdamW trains."""
    return Model(layers=layers, batch=batch, loss=loss, optimizer=adamw)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Two moments per weight."""
    return torch.optim.AdamW(parameters, lr=1e-4)


def random_text(vocabulary: int, sequence: int, *, samples: int) -> Batch:
    """Tokens and the tokens after them."""

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.Generator().manual_seed(number)
        text = torch.randint(vocabulary, (samples, sequence + 1), generator=noise)
        return text[:, :-1], text[:, 1:]

    return batch


def random_images(side: int, classes: int, *, samples: int) -> Batch:
    """Pictures and their classes."""

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.Generator().manual_seed(number)
        return (
            torch.randn((samples, 3, side, side), generator=noise),
            torch.randint(classes, (samples,), generator=noise),
        )

    return batch


def token_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of logits (n, t, vocabulary) and tokens (n, t)."""
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())

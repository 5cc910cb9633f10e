"""Small models with uneven layers that train on processors: what the tables of real runs run."""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from planner.execute.training import Training, load_training

WIDTH, HEADS, TOKENS, VOCABULARY = 256, 4, 64, 4096
"""Of the small GPT."""


class Block(nn.Module):
    """Attention and a perceptron, both behind a normalisation."""

    def __init__(self, *, inner: int = 4) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, inner * WIDTH), nn.Linear(inner * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.mixed(self.before(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).unbind(-3)
        q, k, v = (part.transpose(1, 2) for part in parts)  # [samples, heads, tokens, width / heads]
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Embedding(nn.Module):
    """Tokens and their places."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))


class Head(nn.Module):
    """The scores of all words."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(self.norm(x)).flatten(0, 1)


def make_gpt(num_blocks: int, *, num_microbatches: int, samples: int = 4) -> Training:
    """Embedding, blocks and a head that weighs as much as a block and a half."""

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.Generator().manual_seed(step)
        tokens = torch.randint(VOCABULARY, (samples * num_microbatches, TOKENS + 1), generator=noise)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    blocks: dict[str, Callable[[], nn.Module]] = {f"block{number}": Block for number in range(num_blocks)}
    return _training({"embedding": Embedding, **blocks, "head": Head}, batch, is_text=True)


def make_uneven_gpt(num_blocks: int, *, num_microbatches: int, samples: int = 4) -> Training:
    """The same, with perceptrons that grow from 2 to 8 times the width."""
    even = make_gpt(num_blocks, num_microbatches=num_microbatches, samples=samples)
    last = max(1, num_blocks - 1)
    grown = {f"block{n}": partial(Block, inner=2 + 6 * n // last) for n in range(num_blocks)}
    return _training({**even.layers, **grown}, even.batch, is_text=True)


FEATURES, CLASSES = 512, 64


def make_perceptron(num_layers: int, *, num_microbatches: int, samples: int = 192) -> Training:
    """Layers of widths that go up and down."""

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.Generator().manual_seed(step)
        count = samples * num_microbatches
        return torch.randn(count, FEATURES, generator=noise), torch.randint(CLASSES, (count,), generator=noise)

    widths = [FEATURES, *(512 + 512 * (number % 3) for number in range(num_layers - 1)), CLASSES]
    layers: dict[str, Callable[[], nn.Module]] = {
        f"layer{number}": partial(_make_dense, widths[number], widths[number + 1], is_last=number == num_layers - 1)
        for number in range(num_layers)
    }
    return _training(layers, batch)


def _make_dense(before: int, after: int, *, is_last: bool) -> nn.Module:
    inner = nn.Sequential(nn.Linear(before, 1024), nn.GELU(), nn.Linear(1024, after))
    return inner if is_last else nn.Sequential(inner, nn.GELU(), nn.LayerNorm(after))


def make_convolutions(num_layers: int, *, num_microbatches: int, samples: int = 8) -> Training:
    """Images of 32 x 32 that get smaller and deeper, as in VGG."""

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.Generator().manual_seed(step)
        count = samples * num_microbatches
        return torch.randn(count, 3, 32, 32, generator=noise), torch.randint(CLASSES, (count,), generator=noise)

    depth, layers = 3, dict[str, Callable[[], nn.Module]]()
    for number in range(num_layers - 1):
        after = min(256, 32 * 2 ** (2 * number // max(1, num_layers - 2)))
        layers[f"convolution{number}"] = partial(_make_convolution, depth, after, halves=number % 3 == 2)
        depth = after
    layers["classes"] = partial(_make_classes, depth)
    return _training(layers, batch)


def _make_convolution(before: int, after: int, *, halves: bool) -> nn.Module:
    inner = [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.Conv2d(after, after, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*inner, *([nn.MaxPool2d(2)] if halves else []))


def _make_classes(depth: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * depth, CLASSES))


class _Sleep(torch.autograd.Function):
    """An accelerator that is busy while its host is not: sleeps forward, and twice as long backward."""

    @staticmethod
    def forward(context: object, x: torch.Tensor, milliseconds: float) -> torch.Tensor:
        context.milliseconds = milliseconds  # type: ignore[attr-defined]
        _sleep(milliseconds)
        return x.clone()

    @staticmethod
    def backward(context: object, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        _sleep(2 * context.milliseconds)  # type: ignore[attr-defined]
        return grads[0], None


def _sleep(milliseconds: float) -> None:
    time.sleep(milliseconds / 1000)


class Sleeper(nn.Module):
    """A layer of an emulated accelerator."""

    def __init__(self, milliseconds: float, *, samples: int | None = None) -> None:
        """`samples`: how many take that long, fewer take less; None: any number does."""
        super().__init__()
        self.milliseconds, self.samples, self.weight = milliseconds, samples, nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.weight(x)
        milliseconds = self.milliseconds * (x.shape[0] / self.samples if self.samples else 1)
        return y if y.is_meta else _Sleep.apply(y, milliseconds)  # type: ignore[no-any-return, no-untyped-call]


def make_sleepers(num_layers: int, *, num_microbatches: int, samples: int = 16, is_scaled: bool = False) -> Training:
    """Emulated devices, for more processes than cores: uneven layers of 6 to 14 ms; `is_scaled`: for all samples."""

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.Generator().manual_seed(step)
        count = samples * num_microbatches
        return torch.randn(count, 64, generator=noise), torch.randint(64, (count,), generator=noise)

    layers: dict[str, Callable[[], nn.Module]] = {
        f"layer{number}": partial(Sleeper, 6.0 + 2 * (number * 3 % 5), samples=samples if is_scaled else None)
        for number in range(num_layers)
    }
    return _training(layers, batch)


def _training(
    layers: dict[str, Callable[[], nn.Module]], batch: Callable[..., object], *, is_text: bool = False
) -> Training:
    return Training(
        layers=layers,
        loss=_text_loss if is_text else functional.cross_entropy,
        batch=batch,  # type: ignore[arg-type]
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    )


def _text_loss(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores, tokens.flatten())


MODELS: dict[str, Callable[..., Training]] = {
    "gpt": make_gpt,
    "uneven-gpt": make_uneven_gpt,
    "perceptron": make_perceptron,
    "convolutions": make_convolutions,
    "sleepers": make_sleepers,
}
"""By name; each takes its number of layers (blocks), and the number of microbatches."""


def make_model(name: str, *, num_microbatches: int) -> Training:
    """`gpt:6`: a model of `MODELS`, and how many layers (blocks) it has; or `module:factory`."""
    kind, _, size = name.partition(":")
    if kind not in MODELS:
        return load_training(name)
    return MODELS[kind](int(size), num_microbatches=num_microbatches)

"""GPT, Llama-style, ViT and mixture of experts. Shapes: n samples, t tokens, h features."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from profiles.measure.families.tasks import Batch, make_model, random_images, random_text, token_loss
from profiles.measure.model import Model


def _require_divides(family: str, **named: int) -> None:
    """Raise ValueError unless the first of two named numbers is a multiple of the second."""
    (whole, total), (part, count) = named.items()
    if total % count:
        raise ValueError(f"{family}: {whole} = {total} is not a multiple of {part} = {count}; change one of them")


class Attention(nn.Module):
    """Self-attention with as many or fewer heads for keys and values."""

    def __init__(self, width: int, heads: int, *, groups: int = 0, causal: bool, rotates: bool = False) -> None:
        super().__init__()
        self.heads, self.groups, self.causal, self.rotates = heads, groups or heads, causal, rotates
        size, has_bias = width // heads, not rotates
        self.query = nn.Linear(width, width, bias=has_bias)
        self.memory = nn.Linear(width, 2 * self.groups * size, bias=has_bias)
        self.out = nn.Linear(width, width, bias=has_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, t, h) -> (n, t, h)."""
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (n, heads, t, size)
        k, v = (part.unflatten(-1, (self.groups, -1)).transpose(1, 2) for part in self.memory(x).chunk(2, -1))
        if self.rotates:
            q, k = rotate(q), rotate(k)
        if self.groups != self.heads:
            k, v = (part.repeat_interleave(self.heads // self.groups, dim=1) for part in (k, v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(attended.transpose(1, 2).flatten(2))


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions: (n, heads, t, size) to the same."""
    half = x.shape[-1] // 2
    speed = torch.pow(10_000.0, -torch.arange(half, device=x.device) / half)
    angle = torch.outer(torch.arange(x.shape[-2], device=x.device).float(), speed)
    sine, cosine = angle.sin().to(x.dtype), angle.cos().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


class _FeedForward(nn.Module):
    """Two matrices and a GELU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, t, h) -> (n, t, h)."""
        return self.down(functional.gelu(self.up(x)))


class _GatedFeedForward(nn.Module):
    """Three matrices and a SiLU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., h) -> (..., h)."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Every expert takes the tokens that score best with it, so that all shapes are fixed (expert choice)."""

    def __init__(self, width: int, inner: int, *, experts: int, per_token: int) -> None:
        super().__init__()
        self.per_token = per_token
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(_GatedFeedForward(width, inner) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, t, h) -> (n, t, h)."""
        tokens = x.flatten(0, 1)
        scores = self.router(tokens).softmax(-1)  # (n t, experts)
        share = max(1, tokens.shape[0] * self.per_token // len(self.experts))
        weights, chosen = scores.topk(min(share, tokens.shape[0]), dim=0)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows = chosen[:, number]
            result = result.index_add(0, rows, expert(tokens[rows]) * weights[:, number, None])
        return result.view_as(x)


class Block(nn.Module):
    """Attention and a feed-forward part, each behind a normalisation and beside a shortcut."""

    def __init__(self, attention: Attention, inner: nn.Module, *, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.attention, self.inner = attention, inner
        self.first, self.second = norm(), norm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, t, h) -> (n, t, h)."""
        x = x + self.attention(self.first(x))
        return x + self.inner(self.second(x))


class Embedding(nn.Module):
    """Tokens, and their positions unless attention rotates."""

    def __init__(self, vocabulary: int, width: int, *, sequence: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(sequence, width) if sequence else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(n, t) -> (n, t, h)."""
        x = self.token(tokens)
        if self.position is not None:
            x = x + self.position(torch.arange(x.shape[1], device=x.device))
        return x


class Patches(nn.Module):
    """Squares of a picture as tokens, with positions: (n, 3, s, s) -> (n, t, h)."""

    def __init__(self, width: int, *, image: int, patch: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, width, patch, stride=patch)
        self.position = nn.Parameter(torch.zeros((image // patch) ** 2, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 3, s, s) -> (n, t, h)."""
        return self.project(x).flatten(2).transpose(1, 2) + self.position


class Head(nn.Module):
    """Normalisation and logits; of the mean over tokens where there is one class per sample."""

    def __init__(self, norm: Callable[[], nn.Module], *, width: int, classes: int, pools: bool) -> None:
        super().__init__()
        self.norm, self.pools = norm(), pools
        self.logits = nn.Linear(width, classes, bias=pools)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, t, h) -> (n, t, classes), or (n, classes)."""
        x = self.norm(x)
        return self.logits(x.mean(1) if self.pools else x)


def _make_decoder(
    block: Callable[[], nn.Module], layers: int, *, norm: Callable[[], nn.Module], width: int, vocabulary: int,
    text: Batch, positions: int = 0,
) -> Model:  # fmt: skip
    """Equal blocks between an embedding and a head that does not share its weight."""
    return make_model(
        {
            "embedding": lambda: Embedding(vocabulary, width, sequence=positions),
            **{f"block{number}": block for number in range(layers)},
            "head": lambda: Head(norm, width=width, classes=vocabulary, pools=False),
        },
        batch=text,
        loss=token_loss,
    )


def make_gpt(
    *, layers: int = 12, width: int = 768, heads: int = 12, sequence: int = 1024, vocabulary: int = 50257,
    batch: int = 8,
) -> Model:  # fmt: skip
    """GPT-2: the defaults are its smallest; XL is layers=48,width=1600,heads=25."""
    _require_divides("gpt", width=width, heads=heads)
    norm = partial(nn.LayerNorm, width)

    def block() -> nn.Module:
        return Block(Attention(width, heads, causal=True), _FeedForward(width, 4 * width), norm=norm)

    text = random_text(vocabulary, sequence, samples=batch)
    return _make_decoder(block, layers, norm=norm, width=width, vocabulary=vocabulary, text=text, positions=sequence)


def make_llama(
    *, layers: int = 32, width: int = 4096, heads: int = 32, groups: int = 8, inner: int = 14336,
    sequence: int = 4096, vocabulary: int = 128256, batch: int = 8,
) -> Model:  # fmt: skip
    """Llama 3: the defaults are 8B; 70B is layers=80,width=8192,heads=64,inner=28672."""
    _require_divides("llama", width=width, heads=heads)
    _require_divides("llama", heads=heads, groups=groups)
    norm = partial(nn.RMSNorm, width)

    def block() -> nn.Module:
        attention = Attention(width, heads, groups=groups, causal=True, rotates=True)
        return Block(attention, _GatedFeedForward(width, inner), norm=norm)

    text = random_text(vocabulary, sequence, samples=batch)
    return _make_decoder(block, layers, norm=norm, width=width, vocabulary=vocabulary, text=text)


def make_vit(
    *, layers: int = 12, width: int = 768, heads: int = 12, image: int = 224, patch: int = 16, classes: int = 1000,
    batch: int = 8,
) -> Model:  # fmt: skip
    """A vision transformer: the defaults are B/16; L/16 is layers=24,width=1024,heads=16."""
    _require_divides("vit", width=width, heads=heads)
    _require_divides("vit", image=image, patch=patch)
    norm = partial(nn.LayerNorm, width)

    def block() -> nn.Module:
        return Block(Attention(width, heads, causal=False), _FeedForward(width, 4 * width), norm=norm)

    return make_model(
        {
            "patches": lambda: Patches(width, image=image, patch=patch),
            **{f"block{number}": block for number in range(layers)},
            "head": lambda: Head(norm, width=width, classes=classes, pools=True),
        },
        batch=random_images(image, classes, samples=batch),
        loss=functional.cross_entropy,
    )


def make_mixture(
    *, layers: int = 12, width: int = 2048, heads: int = 16, inner: int = 1408, experts: int = 64, per_token: int = 6,
    sequence: int = 1024, vocabulary: int = 50257, batch: int = 8,
) -> Model:  # fmt: skip
    """Llama-like blocks with a mixture of experts (expert choice, hence static shapes)."""
    _require_divides("mixture", width=width, heads=heads)
    norm = partial(nn.RMSNorm, width)

    def block() -> nn.Module:
        attention = Attention(width, heads, causal=True, rotates=True)
        return Block(attention, Experts(width, inner, experts=experts, per_token=per_token), norm=norm)

    text = random_text(vocabulary, sequence, samples=batch)
    return _make_decoder(block, layers, norm=norm, width=width, vocabulary=vocabulary, text=text)

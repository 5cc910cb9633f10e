"""Small models written as people write them: lists of blocks, masks, tuples, shared weights, caches, statistics."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from planner.execute.model.deferred_init import deferred_init
from planner.execute.training import Training

WIDTH, LENGTH, WORDS, SAMPLES = 8, 6, 11, 12
LONGEST = 32


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        q, k, v = self.qkv(x).view(x.shape[0], -1, 3, WIDTH).unbind(2)
        scores = q @ k.transpose(1, 2) + mask
        return self.out((scores if bias is None else scores + bias).softmax(-1) @ v)


class SplitAttention(Attention):
    """Shows three matrices for the one that it has, as torchtitan's does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_state_dict_post_hook(self.show)
        self.register_load_state_dict_pre_hook(self.put_together)

    @staticmethod
    def show(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
        for kind in ("weight", "bias"):
            for name, part in zip("qkv", state.pop(f"{prefix}qkv.{kind}").chunk(3), strict=True):
                state[f"{prefix}{name}.{kind}"] = part.clone()

    @staticmethod
    def put_together(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
        for kind in ("weight", "bias"):
            state[f"{prefix}qkv.{kind}"] = torch.cat([state.pop(f"{prefix}{name}.{kind}") for name in "qkv"])


class Block(nn.Module):
    """Gives a tuple; the first one makes a bias that the others take."""

    def __init__(self, *, is_first: bool, attention: type[Attention] = Attention) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), attention()
        self.bias = nn.Embedding(2 * LONGEST, 1) if is_first else None

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor, *, bias: torch.Tensor | None = None, use_cache: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.bias is not None:
            places = torch.arange(x.shape[1], device=x.device)
            bias = self.bias(places[:, None] - places + LONGEST).squeeze(-1)[None]
        return x + self.attention(self.norm(x), mask=mask, bias=bias), bias


class Angles(nn.Module):
    """Without weights, and the same for every batch; its buffer is in float32 already, so `float` gives it as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("speed", torch.arange(1.0, WIDTH + 1), persistent=False)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return (places[..., None] * self.speed.float().to(x.dtype)).sin()


@dataclass
class Cache:
    held: list[Any]


class Decoder(nn.Module):
    """Names, a mask, a shared table of words, and a loss of its own."""

    def __init__(self, *, has_cache: bool = False, has_names: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.angles = Angles()
        self.start = nn.Parameter(torch.ones(WIDTH))
        attention = SplitAttention if has_names else Attention
        blocks = [Block(is_first=not number, attention=attention) for number in range(3)]
        self.blocks: Any = nn.ModuleList(blocks)
        if has_names:  # as torchtitan's models
            self.blocks = nn.ModuleDict({str(number): block for number, block in enumerate(blocks)})
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.has_cache = has_cache

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor | None = None, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        count, length = tokens.shape
        places = torch.arange(length, device=tokens.device).expand(count, length)
        x = functional.dropout(self.words(tokens) * self.start, 0.5, training=self.training)
        hidden = torch.full((length, length), -1e9, device=x.device).triu(1)
        hidden = hidden.expand(count, length, length).clone()
        if mask is not None:
            hidden[:, :, 0] += (mask[:, :1] - 1) * 1.0
        angles, bias = self.angles(x, places), None
        for block in self.blocks.children():
            given = {"use_cache": False} if not self.has_cache else {"use_cache": Cache(held=[])}
            x, bias = block(x + angles, hidden, bias=bias, **given)
        scores = self.head(self.norm(x)).view(count, length, WORDS)
        if labels is None:
            return {"scores": scores, "last": x}
        return {"loss": functional.cross_entropy(scores.flatten(0, 1), labels.flatten()), "scores": scores}


class Convolutions(nn.Module):
    """Statistics, changes in place, a skip over the list, stages of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.stages = nn.Sequential(
            nn.Sequential(Residual(), Residual()), nn.Sequential(Residual(), Residual(), Residual())
        )
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stem(x)).relu_()
        y = self.stages(x)
        y += x
        return self.head(self.drop(torch.flatten(functional.relu(y, inplace=True).mean((2, 3)), 1)))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Deciding(nn.Module):
    """Leaves out its mask where it would do nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if not torch.jit.is_tracing() and (x > -100).all():
            return self.second(y)
        return self.second(y.masked_fill(x <= -100, 0))


class Experts(nn.Module):
    """Each sample goes where the router says: without data nobody knows how many go where."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.up = nn.Linear(WIDTH, 2), nn.Parameter(torch.randn(2, WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            (rows,) = torch.where(chosen == expert)
            y = y.index_add(0, rows, functional.linear(x[rows], self.up[expert]) * weights[rows, None])
        return x + y


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Experts() for _ in range(3))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def words(number: int) -> dict[str, torch.Tensor]:
    noise = torch.Generator().manual_seed(number)
    tokens = torch.randint(WORDS, (SAMPLES, LENGTH), generator=noise)
    mask = torch.randint(2, (SAMPLES, LENGTH), generator=noise)
    return {"tokens": tokens, "mask": mask, "labels": tokens.roll(-1, 1)}


def pictures(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(number)
    return torch.randn(SAMPLES, 3, 4, 4, generator=noise), torch.randint(3, (SAMPLES,), generator=noise)


def vectors(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(number)
    return torch.randn(SAMPLES, WIDTH, generator=noise), torch.randint(WIDTH, (SAMPLES,), generator=noise)


def sgd(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def decoder(**more: Any) -> Training:
    return Training.from_module(Decoder(**more), batch=words, optimizer=sgd)


def score_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output["scores"].flatten(0, 1), target.flatten())


def named(number: int) -> Any:
    batch = words(number)
    return {"tokens": batch["tokens"], "mask": batch["mask"]}, batch["labels"]


def draw_texts(number: int) -> list[dict[str, torch.Tensor]]:
    """Three microbatches of other numbers of samples and of other lengths, other ones in every iteration."""
    noise = torch.Generator().manual_seed(number)
    sizes = [(3, 7 + number), (1, 5), (2, 9 + 2 * number)]
    texts = [torch.randint(WORDS, size, generator=noise) for size in sizes]
    return [{"tokens": text, "mask": text % 3, "labels": text.roll(-1, 1)} for text in texts]


def uneven_decoder() -> Training:
    return Training.from_module(Decoder(), batch=draw_texts, optimizer=sgd)


def late_decoder() -> Training:
    """Without weights, until a process makes its layers."""
    with deferred_init():
        model = Decoder()
    return Training.from_module(model, batch=named, loss=score_loss, optimizer=sgd)


def named_decoder() -> Training:
    """Of inputs by name, and blocks by name."""
    return Training.from_module(Decoder(has_names=True), batch=named, loss=score_loss, optimizer=sgd)


def convolutions() -> Training:
    return Training.from_module(Convolutions(), batch=pictures, loss=functional.cross_entropy, optimizer=sgd)


def deciding() -> Training:
    return Training.from_module(Deciding(), batch=vectors, loss=functional.cross_entropy, optimizer=sgd)


def mixture() -> Training:
    return Training.from_module(Mixture(), batch=vectors, loss=functional.cross_entropy, optimizer=sgd)

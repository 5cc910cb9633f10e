"""Models that do not use every weight in every iteration; imported by processes that have torch only."""

from collections import defaultdict
from functools import partial
from typing import Any

import execute_models as models
import torch
from torch import nn
from torch.nn import functional

from planner.execute.training import LossScale, Training

NUM_EXPERTS = 6
"""Used always, in the first iteration, in odd ones, by the first replica alone, never, by the second in even ones."""


class Expert(nn.Module):
    """A gradient that may wait for W, one that does not, and a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(models.WIDTH, models.WIDTH)
        self.scale, self.single = nn.Parameter(torch.ones(models.WIDTH)), nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.single * torch.tanh(self.linear(x)) * self.scale


class Sparse(nn.Module):
    """Rows of a table, picked by the code: a sparse gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(NUM_EXPERTS, models.WIDTH, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x[:, 0].abs().long().clamp(max=NUM_EXPERTS - 1))


class Choosing(nn.Module):
    """Each sample goes through the expert that its first feature names; experts that nobody names are not called."""

    def __init__(self, expert: Any = Expert) -> None:
        super().__init__()
        self.experts = nn.ModuleList(expert() for _ in range(NUM_EXPERTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        is_free = torch.arange(models.WIDTH, device=x.device) > 0  # the first feature stays what it is
        for number, expert in enumerate(self.experts):
            is_named = x[:, :1] == number
            if x.is_meta or bool(is_named.any()):
                x = x + torch.where(is_named & is_free, expert(x), 0.0)
        return x


def codes(number: int, *, count: int) -> torch.Tensor:
    """Of the samples of `count` microbatches, of which the first replica has the first half or more."""
    middle = [0, 1 if number == 0 else 0, 2 if number % 2 else 0]
    row = [3, *middle, *[0] * (models.SAMPLES - 5), 5 if number % 2 == 0 else 0]
    return torch.tensor(row * count, dtype=torch.float64)


def choosing(kinds: str, *, num_microbatches: int, expert: Any = Expert, **more: Any) -> Training:
    plain = models.vectors(kinds, num_microbatches=num_microbatches)

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = plain.batch(number)
        x[:, 0] = codes(number, count=num_microbatches)
        return x, y

    layers = {name: lambda: Choosing(expert).double() for name in plain.layers}
    given = {"layers": layers, "batch": batch, "optimizer": adamw}
    return Training(**(vars(plain) | given | more))


class RecordingAdamW(torch.optim.AdamW):
    """It remembers every gradient it was given."""

    def __init__(self, parameters: list[Any], **more: Any) -> None:
        super().__init__(parameters, lr=0.05, weight_decay=0.1, **more)
        self.seen = defaultdict[int, list[torch.Tensor | None]](list)

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.seen[id(parameter)].append(None if parameter.grad is None else parameter.grad.clone())
        super().step(closure)


adamw = RecordingAdamW


def foreach(kinds: str, *, num_microbatches: int) -> Training:
    return choosing(kinds, num_microbatches=num_microbatches, optimizer=partial(RecordingAdamW, foreach=True))


def fused(kinds: str, *, num_microbatches: int) -> Training:
    return choosing(kinds, num_microbatches=num_microbatches, optimizer=partial(RecordingAdamW, fused=True))


def momentum(kinds: str, *, num_microbatches: int) -> Training:
    def make(parameters: list[Any]) -> torch.optim.Optimizer:
        made = models.Recording(parameters)
        for group in made.param_groups:
            group["weight_decay"] = 0.1
        return made

    return choosing(kinds, num_microbatches=num_microbatches, optimizer=make)


def accumulated(kinds: str, *, num_microbatches: int) -> Training:
    """The first iteration's expert is used in the first of two iterations only."""
    return choosing(kinds, num_microbatches=num_microbatches, accumulate=2, max_norm=0.01)


def scaled(kinds: str, *, num_microbatches: int) -> Training:
    return choosing(kinds, num_microbatches=num_microbatches, loss_scale=LossScale(initial=64.0, interval=2))


def tied_experts(kinds: str, *, num_microbatches: int) -> Training:
    """Of the first and the last layer."""
    last = len(kinds) - 1
    tied = tuple(
        (f"l0:experts.{number}.linear.weight", f"l{last}:experts.{number}.linear.weight")
        for number in range(NUM_EXPERTS)
    )
    return choosing(kinds, num_microbatches=num_microbatches, tied=tied, max_norm=0.01)


def sparse(kinds: str, *, num_microbatches: int) -> Training:
    def make(parameters: list[Any]) -> torch.optim.Optimizer:
        made = models.Recording(parameters)
        for group in made.param_groups:
            group["momentum"] = 0.0
        return made

    return choosing(kinds, num_microbatches=num_microbatches, expert=Sparse, optimizer=make)


class Passing(models.Block):
    """The first feature stays what it is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:, :1], super().forward(x)[:, 1:]], 1)


class Leaving(Passing):
    """Early exit, where the first feature is 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        is_out = not x.is_meta and bool((x[:, 0] == 1).any())
        return x.clone() if is_out else super().forward(x)


def leaving(kinds: str, *, num_microbatches: int) -> Training:
    """Every layer but the last is left out in iterations whose samples say so."""
    training = choosing(kinds, num_microbatches=num_microbatches)

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = training.batch(number)
        x[:, 0] = float(number % 3 > 0)
        return x, y

    names = list(training.layers)
    layers = dict.fromkeys(names[:-1], lambda: Leaving().double()) | {names[-1]: lambda: models.Block().double()}
    return Training(**(vars(training) | {"layers": layers, "batch": batch}))


def leaving_wide(kinds: str, *, num_microbatches: int) -> Training:
    training = leaving(kinds, num_microbatches=num_microbatches)
    return Training(**(vars(training) | {"parallelize": models.in_two}))


def frozen_first(kinds: str, *, num_microbatches: int) -> Training:
    """A layer that lets no gradient into its own weights until the third iteration."""

    class Late(models.Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.is_meta or bool((x[:, 0] < 2).all()):
                weights = {name: value.detach() for name, value in self.named_parameters()}
                if x.is_meta:
                    return super().forward(x)
                hidden = functional.linear(x, weights["inner.weight"], weights["inner.bias"])
                return x + functional.linear(torch.tanh(hidden), weights["outer.weight"], weights["outer.bias"])
            return super().forward(x)

    training = choosing(kinds, num_microbatches=num_microbatches)

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = training.batch(number)
        x[:, 0] = float(number)
        return x, y

    layers = dict.fromkeys(training.layers, lambda: models.Block().double()) | {"l0": lambda: Late().double()}
    return Training(**(vars(training) | {"layers": layers, "batch": batch}))


class Ignoring(models.Block):
    """What it is given counts in even iterations only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        is_ignored = not x.is_meta and bool((x[:, 0] == 1).any())
        return super().forward(torch.ones_like(x) if is_ignored else x)


def ignoring(kinds: str, *, num_microbatches: int) -> Training:
    """The last layer leaves all others without a gradient in odd iterations."""
    training = choosing(kinds, num_microbatches=num_microbatches)

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = training.batch(number)
        x[:, 0] = float(number % 2)
        return x, y

    names = list(training.layers)
    layers = dict.fromkeys(names[:-1], lambda: Passing().double()) | {names[-1]: lambda: Ignoring().double()}
    return Training(**(vars(training) | {"layers": layers, "batch": batch}))


class Sided(nn.Module):
    """Hands on a second tensor, of weights of its own, to which each adds."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.side = models.Block(), models.Block()

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.block(x), self.side(rest[0] if rest else x)


class OneSided(models.Block):
    """Takes two, and makes use of the first."""

    def forward(self, x: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def sided(kinds: str, *, num_microbatches: int) -> Training:
    """The last layer leaves the second tensor alone."""
    plain = models.vectors(kinds, num_microbatches=num_microbatches)
    names = list(plain.layers)
    layers = dict.fromkeys(names[:-1], lambda: Sided().double()) | {names[-1]: lambda: OneSided().double()}
    return Training(**(vars(plain) | {"layers": layers, "optimizer": adamw}))


def sided_to_the_end(kinds: str, *, num_microbatches: int) -> Training:
    """The loss does."""
    plain = models.vectors(kinds, num_microbatches=num_microbatches)
    more = {"loss": lambda output, target: functional.mse_loss(output[0], target), "optimizer": adamw}
    return Training(**(vars(plain) | {"layers": dict.fromkeys(plain.layers, lambda: Sided().double())} | more))

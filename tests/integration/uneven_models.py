"""Models for the executor's tests whose microbatches differ in size; imported by processes that have torch only."""

import random
from collections.abc import Sequence
from typing import Any

import execute_models as models
import torch
from torch.nn import functional

from planner.dealing import StageTimes, deal
from planner.execute.training import Batch, Training

TIMES = StageTimes(lengths=(1, 30), forward_ns=(10, 300), backward_ns=(20, 600))
"""Of every stage, by tokens."""


def draw_texts(number: int, *, count: int) -> list[Batch]:
    """One to three sequences of one to nine tokens in each, others in every iteration."""
    rng, noise = random.Random(number), torch.Generator().manual_seed(number)
    shapes = [(rng.randint(1, 3), rng.randint(2, 10)) for _ in range(count)]
    texts = [torch.randint(models.VOCABULARY, shape, generator=noise) for shape in shapes]
    return [(text[:, :-1], text[:, 1:]) for text in texts]


def lengths(kinds: str, *, num_microbatches: int, **more: Any) -> Training:
    """A GPT."""
    training = models.gpt(kinds, num_microbatches=num_microbatches)
    return changed(training, **({"batch": lambda number: draw_texts(number, count=num_microbatches)} | more))


def changed(training: Training, **more: Any) -> Training:
    return Training(**(vars(training) | more))


def deal_by_tokens(shapes: Sequence[torch.Size], pipelines: int) -> Any:
    return deal([shape[0] * shape[1] for shape in shapes], pipelines, stages=[TIMES] * 2).pipelines


def dealt(kinds: str, *, num_microbatches: int, **more: Any) -> Training:
    """Dealt anew in every iteration, of which each has another number of microbatches."""

    def batch(number: int) -> list[Batch]:
        return draw_texts(number, count=2 + (num_microbatches + number) % 5)

    return lengths(kinds, num_microbatches=num_microbatches, **({"deal": deal_by_tokens, "batch": batch} | more))


def dealt_accumulating(kinds: str, *, num_microbatches: int) -> Training:
    return dealt(kinds, num_microbatches=num_microbatches, accumulate=2, max_norm=0.01)


def lengths_tied(kinds: str, *, num_microbatches: int) -> Training:
    tied = (("l0:weight", f"l{len(kinds) - 1}:weight"),)
    return lengths(kinds, num_microbatches=num_microbatches, tied=tied, max_norm=0.01)


def sum_of_tokens(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Those of the first class do not count."""
    kept = target.flatten() > 0
    return functional.cross_entropy(output.flatten(0, 1)[kept], target.flatten()[kept], reduction="sum")


def num_counting(target: torch.Tensor) -> torch.Tensor:
    return (target > 0).sum()


def lengths_counted(kinds: str, *, num_microbatches: int) -> Training:
    more: dict[str, Any] = {"loss": sum_of_tokens, "loss_is_sum": True, "num_tokens": num_counting}
    return lengths(kinds, num_microbatches=num_microbatches, **more)


def dealt_counted(kinds: str, *, num_microbatches: int) -> Training:
    return changed(lengths_counted(kinds, num_microbatches=num_microbatches), deal=deal_by_tokens, accumulate=2)


def lengths_summed(kinds: str, *, num_microbatches: int) -> Training:
    return lengths(kinds, num_microbatches=num_microbatches, loss=sum_of_tokens, loss_is_sum=True)


def skipping_sizes(kinds: str, *, num_microbatches: int) -> Training:
    """One to five samples, and edges that skip stages."""

    def batch(number: int) -> list[Batch]:
        rng, noise = random.Random(number), torch.Generator().manual_seed(number)
        sizes = [(2, rng.randint(1, 5), models.WIDTH) for _ in range(num_microbatches)]
        pairs = [torch.randn(size, generator=noise, dtype=torch.float64) for size in sizes]
        return [(x, y) for x, y in pairs]

    return changed(models.skipping(kinds, num_microbatches=num_microbatches), batch=batch)


def wide_sizes(kinds: str, *, num_microbatches: int) -> Training:
    """Blocks that a group cuts, and one to five samples."""
    chain = skipping_sizes(kinds + "ww", num_microbatches=num_microbatches)
    return changed(models.wide(kinds, num_microbatches=num_microbatches), batch=chain.batch)


SIZES = (2, 9, 4, 1, 6, 3)
"""Samples of the microbatches that a plan is made for."""


def of_planned_sizes(kinds: str, *, num_microbatches: int) -> Training:
    """As many samples in each as the plan states."""
    training = models.vectors(kinds, num_microbatches=num_microbatches)

    def batch(number: int) -> list[Batch]:
        inputs, target = (each[: sum(SIZES)].split(SIZES) for each in training.batch(number))
        return list(zip(inputs, target, strict=True))

    return changed(training, batch=batch)


def late_list(kinds: str, *, num_microbatches: int) -> Training:
    """One batch at first, a list later."""
    training = models.vectors(kinds, num_microbatches=num_microbatches)

    def batch(number: int) -> Any:
        inputs, target = training.batch(number)
        return [(inputs, target)] if number else (inputs, target)

    return changed(training, batch=batch)


def too_few(kinds: str, *, num_microbatches: int) -> Training:
    """One less than the plan orders, in the second iteration."""

    def batch(number: int) -> list[Batch]:
        return draw_texts(number, count=num_microbatches - number)

    return lengths(kinds, num_microbatches=num_microbatches, batch=batch)


def wrong_type(kinds: str, *, num_microbatches: int) -> Training:
    """A shape that the model cannot take."""

    def batch(number: int) -> list[Batch]:
        found = draw_texts(number, count=num_microbatches)
        return [(x.float() if number else x, y) for x, y in found]

    return lengths(kinds, num_microbatches=num_microbatches, batch=batch)


def dealt_apart(kinds: str, *, num_microbatches: int) -> Training:
    """Every process deals in another way."""

    def deal_otherwise(shapes: Sequence[torch.Size], pipelines: int) -> Any:
        own = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        order = list(range(len(shapes)))
        return [order[own + 1 :], order[: own + 1]]

    return dealt(kinds, num_microbatches=num_microbatches, deal=deal_otherwise)


def dealt_to_one(kinds: str, *, num_microbatches: int) -> Training:
    return dealt(kinds, num_microbatches=num_microbatches, deal=lambda shapes, _: [range(len(shapes)), []])


def other_targets_of_texts(kinds: str, *, num_microbatches: int) -> Training:
    """Rank 1 has other texts of the same shapes."""

    def batch(number: int) -> list[Batch]:
        own = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        return [(x, (y + own) % models.VOCABULARY) for x, y in draw_texts(number, count=num_microbatches)]

    return lengths(kinds, num_microbatches=num_microbatches, batch=batch)


def other_shapes(kinds: str, *, num_microbatches: int) -> Training:
    def batch(number: int) -> list[Batch]:
        own = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        return draw_texts(number + own * number, count=num_microbatches)

    return lengths(kinds, num_microbatches=num_microbatches, batch=batch)

"""Losses of one process's microbatches as those of the whole iteration."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import distributed

from planner.execute.model.user_code import calling
from planner.execute.training import Training


class LossTotals:
    """Adds up losses and tokens over the replicas of the last stage."""

    def __init__(self, training: Training, *, weight: float, group: Any, device: torch.device) -> None:
        """`weight`: what part of its microbatches' samples the last stage has here; `group`: of the processes that hold
        it, None for one.
        """
        self.training, self.weight, self.group, self.device = training, weight, group, device

    def count_tokens(self, targets: Mapping[int, torch.Tensor] | None) -> dict[int, float]:
        """Per microbatch, of the samples here."""
        if self.training.num_tokens is None or targets is None:
            return {}
        with calling("`num_tokens`"):
            return {number: float(self.training.num_tokens(target)) for number, target in targets.items()}

    def add_up_tokens(self, tokens: Mapping[int, float]) -> float:
        """Of all microbatches and replicas; a collective call of the last stage's replicas, if there are tokens."""
        total = torch.tensor(sum(tokens.values()), dtype=torch.float64, device=self.device)
        if tokens and self.group:
            distributed.all_reduce(total, group=self.group)
        return float(total)

    def start(self, losses: Mapping[int, torch.Tensor], tokens: Mapping[int, float], *, count: int) -> "LossSums":
        """Begin to add losses up over all replicas; a collective call of the last stage's replicas.

        `count`: how many microbatches there are; those that are dealt to other pipelines are not among `losses`.
        """
        if not losses:
            return LossSums(values=None, counts=None, works=())
        found = torch.stack(list(losses.values())).detach()
        values = found.new_zeros(count).index_put_((torch.tensor(list(losses), device=found.device),), found)
        counts = torch.zeros(count, dtype=torch.float64, device=self.device)
        for number, value in tokens.items():
            counts[number] = value
        works = []
        if self.group:
            values = values if self.training.loss_is_sum else values * self.weight
            sums = (values, counts) if tokens else (values,)
            works = [distributed.all_reduce(each, group=self.group, async_op=True) for each in sums]
        return LossSums(values=values, counts=counts if tokens else None, works=works)

    def tell(self, sums: "LossSums") -> tuple[tuple[float, ...], float | None]:
        """The losses over all replicas, per microbatch and of all."""
        for work in sums.works:
            work.wait()
        if sums.values is None:
            return (), None
        told = tuple(sums.values.tolist())
        if sums.counts is not None:
            pairs = zip(told, sums.counts.tolist(), strict=True)
            return tuple(value / n if n else 0.0 for value, n in pairs), sum(told) / max(float(sums.counts.sum()), 1.0)
        return told, sum(told) if self.training.loss_is_sum else sum(told) / len(told)


class LossSums(NamedTuple):
    """Losses, and tokens if they count, on their way to be added up."""

    values: torch.Tensor | None
    """Per microbatch; None where the last stage is not."""
    counts: torch.Tensor | None
    """Tokens per microbatch."""
    works: Sequence[Any]
    """What is to be waited for."""

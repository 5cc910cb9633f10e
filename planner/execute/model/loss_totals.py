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
        if not tokens or not self.group:
            return float(sum(tokens.values()))
        total = torch.tensor(sum(tokens.values()), dtype=torch.float64, device=self.device)
        distributed.all_reduce(total, group=self.group)
        return float(total)

    def start(self, losses: Mapping[int, torch.Tensor], tokens: Mapping[int, float], *, count: int) -> "LossSums":
        """Begin to add losses up over all replicas; a collective call of the last stage's replicas.

        `count`: how many microbatches there are; those that are dealt to other pipelines are not among `losses`.
        """
        if not losses:
            return LossSums(values=None, counts=None, works=())
        values, counts = self.weighted(losses, count=count), None
        if tokens:
            counts = torch.zeros(count, dtype=torch.float64, device=self.device)
            for number, value in tokens.items():
                counts[number] = value
        works = []
        if self.group:
            sums = (values,) if counts is None else (values, counts)
            works = [distributed.all_reduce(each, group=self.group, async_op=True) for each in sums]
        return LossSums(values=values, counts=counts, works=works)

    def weighted(self, losses: Mapping[int, torch.Tensor], *, count: int) -> torch.Tensor:
        """Per microbatch what is to be added up over the replicas; zeros for those that are not among `losses`."""
        held = list(losses.values())
        values = held[0].detach().reshape(1) if len(held) == 1 else torch.stack(held).detach()
        if len(losses) < count:
            values = values.new_zeros(count).index_put_((torch.tensor(list(losses), device=values.device),), values)
        return values * self.weight if self.group and not self.training.loss_is_sum else values

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
    """Per microbatch, or the only one's; None where the last stage is not."""
    counts: torch.Tensor | None
    """Tokens per microbatch."""
    works: Sequence[Any]
    """What is to be waited for."""

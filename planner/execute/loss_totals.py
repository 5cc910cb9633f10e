"""Losses of one process's microbatches as those of the whole iteration."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import distributed

from planner.execute.training import Training
from planner.execute.user_code import calling


class LossTotals:
    """Adds up losses and tokens over the replicas of the last stage."""

    def __init__(self, training: Training, *, weight: float, group: Any, device: torch.device) -> None:
        """`weight`: what part of a microbatch's samples the last stage has here; `group`: of the processes that hold
        it, None for one.
        """
        self.training, self.weight, self.group, self.device = training, weight, group, device

    def count_tokens(self, target: torch.Tensor | None) -> list[float]:
        """Per microbatch, of this replica; `target`: as (microbatch, sample, ...)."""
        if self.training.num_tokens is None or target is None:
            return []
        with calling("`num_tokens`"):
            return [float(self.training.num_tokens(each)) for each in target]

    def add_up_tokens(self, tokens: Sequence[float]) -> float:
        """Of all microbatches and replicas; a collective call of the last stage's replicas, if there are tokens."""
        total = torch.tensor(sum(tokens), dtype=torch.float64, device=self.device)
        if tokens and self.group:
            distributed.all_reduce(total, group=self.group)
        return float(total)

    def tell(
        self, losses: Mapping[int, torch.Tensor], tokens: Sequence[float]
    ) -> tuple[tuple[float, ...], float | None]:
        """The losses over all replicas, per microbatch and of all; a collective call of the last stage's replicas."""
        if not losses:
            return (), None
        values = torch.stack(list(losses.values())).detach()
        counts = torch.tensor(tokens, dtype=torch.float64, device=self.device)
        if self.group:
            values = values if self.training.loss_is_sum else values * self.weight
            distributed.all_reduce(values, group=self.group)
            if tokens:
                distributed.all_reduce(counts, group=self.group)
        told = tuple(values.tolist())
        if tokens:
            per_token = [value / count if count else 0.0 for value, count in zip(told, counts.tolist(), strict=True)]
            return tuple(per_token), sum(told) / max(float(counts.sum()), 1.0)
        return told, sum(told) if self.training.loss_is_sum else sum(told) / len(told)

"""Losses of one process's microbatches as those of the whole iteration."""

from collections.abc import Mapping
from typing import Any

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

    def tell(
        self, losses: Mapping[int, torch.Tensor], tokens: Mapping[int, float], *, count: int
    ) -> tuple[tuple[float, ...], float | None]:
        """The losses over all replicas, per microbatch and of all; a collective call of the last stage's replicas.

        `count`: how many microbatches there are; those that are dealt to other pipelines are not among `losses`.
        """
        if not losses:
            return (), None
        here = list(losses)
        found = torch.stack(list(losses.values())).detach()
        values = found.new_zeros(count).index_put_((torch.tensor(here, device=found.device),), found)
        counts = torch.zeros(count, dtype=torch.float64, device=self.device)
        for number, value in tokens.items():
            counts[number] = value
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

"""Whether the loss of a microbatch is put together from those of its parts, of which replicas have one each."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from planner.errors import ExecutionError
from planner.execute.model.layer_run import describe_difference, draw_state, samples_of
from planner.execute.training import Tensors, as_tuple

_MOST = 8
"""Samples that it is tried on."""
_LEFT_OUT = -100
"""Targets that do not count; their numbers are compared between replicas in every check."""


class TriedLoss:
    """A loss that is held against those of parts of its first microbatch."""

    def __init__(self, loss: Callable[..., torch.Tensor], *, dims: Sequence[int | None], is_sum: bool) -> None:
        """`dims`: where samples lie in each of its outputs; `is_sum`: it adds up its samples."""
        self.loss, self.dims, self.is_sum, self.is_tried = loss, dims, is_sum, False

    def __call__(self, output: torch.Tensor | Tensors, target: torch.Tensor) -> torch.Tensor:
        """The loss; the first time it raises ExecutionError where parts come to another one."""
        if not self.is_tried and torch.is_grad_enabled():
            self.is_tried = True
            self._try(as_tuple(output), target)
        return self.loss(output, target)

    @torch.no_grad()
    def _try(self, outputs: Tensors, target: torch.Tensor) -> None:
        count = len(target) if target.dim() else 1
        few, found = min(_MOST, count), list[tuple[torch.Tensor, torch.Tensor]]()
        is_whole = None in self.dims and (self.is_sum or set(self.dims) == {None})  # a model's own loss, say
        if is_whole or (not target.is_floating_point() and bool((target == _LEFT_OUT).any())):
            return
        with suppress(RuntimeError, ValueError, IndexError, TypeError), torch.random.fork_rng(_devices(target)):

            def take(start: int, length: int) -> Any:
                own = [
                    samples_of(each, k, start=start, length=length, count=count)
                    for each, k in zip(outputs, self.dims, strict=True)
                ]
                return self.loss(own[0] if len(own) == 1 else tuple(own), target[start : start + length])

            before, whole = draw_state(target.device), take(0, few)
            if not torch.equal(before, draw_state(target.device)):
                return
            for part in range(1, few):
                one, other = take(0, part), take(part, few - part)
                found.append((whole, one + other if self.is_sum else (part * one + (few - part) * other) / few))
        for whole, joined in found:
            if describe_difference(whole, joined, has_other_samples=True):
                raise ExecutionError(
                    f"the loss of {few} samples is {float(whole):.6g}, but by their parts {float(joined):.6g}, and "
                    "each replica of the last stage has a part of a microbatch; sum it over samples (loss_is_sum = "
                    "True, with num_tokens where they count unequally), or plan without replicas (--max-replicas 1)"
                )


def _devices(tensor: torch.Tensor) -> list[torch.device]:
    return [tensor.device] if tensor.is_cuda else []

"""Whether the loss of samples is put together from those of their parts, as replicas or microbatches have them."""

import sys
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
_MOST_NUMBERS = 1 << 24
"""Of the outputs of a microbatch that are kept until the next one."""


class ComparedLoss:
    """A loss that is taken of samples of two microbatches together, too; it tells where theirs come to another one.

    One process that adds up gradients trains the same, so nothing is refused.
    """

    def __init__(self, loss: Callable[..., torch.Tensor], *, count: int, is_sum: bool) -> None:
        """`count`: microbatches of an iteration; `is_sum`: it adds up its samples."""
        self.loss, self.count, self.is_sum, self.is_compared = loss, count, is_sum, False
        self._first: Tensors = ()

    def __call__(self, output: torch.Tensor | Tensors, target: torch.Tensor) -> torch.Tensor:
        """The loss, of the first two microbatches with a comparison."""
        if not self.is_compared and torch.is_grad_enabled():
            with suppress(RuntimeError, ValueError, IndexError, TypeError):
                self._compare((*as_tuple(output), target))
        return self.loss(output, target)

    @torch.no_grad()
    def _compare(self, given: Tensors) -> None:
        first, target = self._first, given[-1]
        self._first, self.is_compared = (), True
        each = sum(tensor[0].numel() for tensor in given)
        few = min(_MOST // 2, len(target), _MOST_NUMBERS // max(1, each), len(first[-1]) if first else _MOST)
        is_left_out = not target.is_floating_point() and bool((target == _LEFT_OUT).any())
        if not few or is_left_out or any(len(tensor) != len(target) for tensor in given):
            return
        if not first:
            self._first, self.is_compared = tuple(tensor[:few].clone() for tensor in given), False
            return
        pairs = [(one[:few], other[:few].clone()) for one, other in zip(first, given, strict=True)]
        with torch.random.fork_rng(_devices(target)):
            before = draw_state(target.device)
            one, other, whole = (
                self.loss(outputs[0] if len(outputs) == 1 else tuple(outputs), chosen)
                for *outputs, chosen in (*zip(*pairs, strict=True), [torch.cat(pair) for pair in pairs])
            )
            is_random = not torch.equal(before, draw_state(target.device))
        joined = one + other if self.is_sum else (one + other) / 2
        if not is_random and describe_difference(whole, joined, has_other_samples=True):
            sys.stderr.write(
                f"planner.execute: the loss of {2 * few} samples is {float(whole):.6g}, but by halves "
                f"{float(joined):.6g}: {self.count} microbatches do not train as their batch would, but as one process "
                "that adds up their gradients; plan one microbatch (-m 1), or sum the loss over samples (loss_is_sum = "
                "True, with num_tokens where they count unequally)\n"
            )


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

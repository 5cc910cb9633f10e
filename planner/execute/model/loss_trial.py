"""Whether the loss of samples is put together from those of their parts, as replicas or microbatches have them."""

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

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


class _LossTrial:
    """A loss that is tried while it is taken."""

    def __init__(self, loss: Callable[..., torch.Tensor], *, is_sum: bool) -> None:
        """`is_sum`: it adds up its samples."""
        self.loss, self.is_sum, self.is_tried = loss, is_sum, False

    def __call__(self, output: torch.Tensor | Tensors, target: torch.Tensor) -> torch.Tensor:
        """The loss of a microbatch; the first time it is tried."""
        if not self.is_tried and torch.is_grad_enabled():
            self.is_tried = True
            self._try(as_tuple(output), target)
        return self.loss(output, target)

    def _try(self, outputs: Tensors, target: torch.Tensor) -> None:
        raise NotImplementedError

    @torch.no_grad()
    def _find_gap(
        self, outputs: Tensors, target: torch.Tensor, *, dims: Sequence[int | None], cuts: Iterable[int]
    ) -> Tensors:
        """The loss of some samples, and what those of two parts come to, cut at the first that gives another one.

        Nothing where none does, or nothing can be said: it draws, or takes no other number.
        """
        count = len(target) if target.dim() else 1

        def take(start: int, length: int) -> torch.Tensor:
            places = {"start": start, "length": length, "count": count}
            own = tuple(samples_of(each, k, **places).clone() for each, k in zip(outputs, dims, strict=True))
            return self.loss(own[0] if len(own) == 1 else own, target[start : start + length].clone())

        devices = [target.device] if target.is_cuda else []
        with suppress(RuntimeError, ValueError, IndexError, TypeError), torch.random.fork_rng(devices):
            before, whole = draw_state(target.device), take(0, count)
            for part in cuts if torch.equal(before, draw_state(target.device)) else ():
                one, other = take(0, part), take(part, count - part)
                joined = one + other if self.is_sum else (part * one + (count - part) * other) / count
                if describe_difference(whole, joined, has_other_samples=True):
                    return whole, joined
        return ()


class ComparedLoss(_LossTrial):
    """A loss that is taken of samples of two microbatches together, too; it tells where theirs come to another one.

    One process that adds up gradients trains the same, so nothing is refused.
    """

    def __init__(self, loss: Callable[..., torch.Tensor], *, count: int, is_sum: bool) -> None:
        """`count`: microbatches of an iteration; `is_sum`: it adds up its samples."""
        super().__init__(loss, is_sum=is_sum)
        self.count = count
        self._first: Tensors = ()

    def _try(self, outputs: Tensors, target: torch.Tensor) -> None:
        given, first = (*outputs, target), self._first
        if not target.dim() or any(tensor.shape[:1] != target.shape[:1] for tensor in given):
            return
        most = min(_MOST // 2, len(first[-1]) if first else _MOST)
        few = min(most, len(target), _MOST_NUMBERS // max(1, sum(tensor[:1].numel() for tensor in given)))
        self._first, self.is_tried = tuple(each[:few].detach().clone() for each in given), bool(first) or not few
        if not (first and few) or [each.shape[1:] for each in first] != [each.shape[1:] for each in given]:
            return
        *joint, wanted = (torch.cat([a[:few], b[:few].detach()]) for a, b in zip(first, given, strict=True))
        self._first = ()
        if gap := self._find_gap(tuple(joint), wanted, dims=(0,) * len(joint), cuts=(few,)):
            whole, joined = map(float, gap)
            sys.stderr.write(
                f"planner.execute: the loss of {2 * few} samples is {whole:.6g}, but by halves {joined:.6g}: "
                f"{self.count} microbatches do not train as their batch would, but as one process that adds up their "
                "gradients; plan one microbatch (-m 1), or sum the loss over samples (loss_is_sum = True, with "
                "num_tokens where they count unequally)\n"
            )


class TriedLoss(_LossTrial):
    """A loss that is held against those of parts of its first microbatch, and of that and the next one together."""

    def __init__(self, loss: Callable[..., torch.Tensor], *, dims: Sequence[int | None], is_sum: bool) -> None:
        """`dims`: where samples lie in each of its outputs; `is_sum`: it adds up its samples."""
        super().__init__(loss, is_sum=is_sum)
        self.dims = dims
        self._first: Tensors = ()

    def _try(self, outputs: Tensors, target: torch.Tensor) -> None:
        if None in self.dims and (self.is_sum or set(self.dims) == {None}):  # a model's own loss, say
            return
        if not target.is_floating_point() and bool((target == _LEFT_OUT).any()):
            return
        count = len(target) if target.dim() else 1
        few = min(_MOST, count)
        parts = zip(outputs, self.dims, strict=True)
        first = tuple(samples_of(each, k, start=0, length=few, count=count) for each, k in parts)
        *own, wanted = first = (*first, target[:few] if target.dim() else target)
        cuts: Iterable[int] = range(1, few)
        if [each.shape for each in self._first] == [each.shape for each in first]:
            pairs = zip(self._first, first, (*self.dims, 0), strict=True)
            *own, wanted = (torch.cat([a, b.detach()], k or 0) for a, b, k in pairs)
            cuts = (few,)
        elif self._may_keep(first):
            self._first, self.is_tried = tuple(each.detach().clone() for each in first), False
        if gap := self._find_gap(tuple(own), wanted, dims=self.dims, cuts=cuts):
            whole, joined = map(float, gap)
            raise ExecutionError(
                f"the loss of {len(wanted)} samples is {whole:.6g}, but by their parts {joined:.6g}, and each replica "
                "of the last stage has a part of a microbatch; sum it over samples (loss_is_sum = True, with "
                "num_tokens where they count unequally), or plan without replicas (--max-replicas 1)"
            )

    def _may_keep(self, given: Tensors) -> bool:
        is_small = sum(tensor.numel() for tensor in given) <= _MOST_NUMBERS
        return is_small and not self._first and None not in self.dims and given[-1].dim() > 0

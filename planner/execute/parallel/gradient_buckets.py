"""Gradients side by side in buckets: what was used of them, and when each bucket may be sent."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from planner.errors import ExecutionError

FIRST_BYTES = 2**20
"""The first bucket has no more where the whole model is in one stage, as DistributedDataParallel has it."""

LARGE_BYTES = 2**16
"""A gradient of so many is worth a hook: copied to its place as it is complete, rather than added to zeros there."""


class GradientBucket:
    """Gradients of parameters of one type, side by side in one tensor; behind them, for each, whether it was used.

    Autograd adds to them in place. So what no backward came to is what still has the version that it began with, which
    takes no hook, nor a look at a value.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, num_carried: int = 0, is_copying: bool = False) -> None:
        """`parameters`: all with gradients of one type, on one device; `num_carried`: values beside them.

        `is_copying`: large gradients that are gone stay so until a backward comes to them; for backwards of autograd.
        """
        self.parameters = parameters
        sizes = [parameter.numel() for parameter in parameters]
        lengths, kind, device = [sum(sizes), len(sizes), num_carried], kind_of(parameters[0]), parameters[0].device
        self.message = torch.zeros(sum(lengths), dtype=kind, device=device)
        self.flat, self._flags, self.carried = torch.split(self.message, lengths)
        parts = zip(torch.split(self.flat, sizes), parameters, strict=True)
        self._places = [_like(part, parameter).data for part, parameter in parts]  # `data`: each counts for itself
        self._versions = self.versions()
        large = [number for number, size in enumerate(sizes) if is_copying and size * kind.itemsize >= LARGE_BYTES]
        self._small = [number for number in range(len(sizes)) if number not in set(large)]
        """Numbers of those that begin as zeros."""
        for number in large:
            parameters[number].register_post_accumulate_grad_hook(partial(_put, self._places[number]))  # type: ignore[no-untyped-call]
        self._untouched: list[int] = []
        """Numbers of the parameters that this process did not use."""

    def take_in(self) -> None:
        """Let every gradient be its part of the tensor: with what it was, or zeros where there was none."""
        for number, (parameter, place) in enumerate(zip(self.parameters, self._places, strict=True)):
            grad = parameter.grad
            if grad is place:
                continue
            if grad is None:
                place.zero_()
                self._versions[number] = place._version
                parameter.grad = place
            else:
                _put(place, parameter)

    def prepare(self) -> None:
        """The same before the first backward, which copies what is large and gone."""
        if any(parameter.grad is not None for parameter in self.parameters):
            self.take_in()
            return
        if len(self._small) == len(self.parameters):
            self.flat.zero_()  # one call for all is what an iteration needs
        elif self._small:
            torch._foreach_zero_([self._places[number] for number in self._small])
        self._versions = self.versions()
        for number in self._small:
            self.parameters[number].grad = self._places[number]

    def versions(self) -> list[int]:
        """How often each gradient was changed."""
        return [place._version for place in self._places]

    def flag_used(self) -> None:
        """To be called before it is added up."""
        pairs = zip(self._places, self._versions, strict=True)
        self._untouched = [number for number, (place, version) in enumerate(pairs) if place._version == version]
        self._flags.fill_(1)
        if self._untouched:
            self._flags[self._untouched] = 0

    def drop_unused(self) -> None:
        """To be called once it is added up; looks at the sum only where a parameter was not used here."""
        if not self._untouched:
            return
        counts = self._flags.tolist()
        for number in self._untouched:
            if not counts[number]:
                self.parameters[number].grad = None


class EarlySending:
    """Sends a stage's buckets during a backward, in one order on all replicas, each once all its gradients are there.

    A backward inside a backward (reentrant checkpoints) may come to a parameter twice. The first iteration looks for
    that, and nothing is sent early if it does; where it does so later, that is found before its sums are used.
    """

    def __init__(self, buckets: Sequence[GradientBucket], send: Callable[[GradientBucket], None]) -> None:
        """`buckets`: yet to be filled; `send`: sends one of them."""
        self._buckets, self._send = buckets, send
        self._hooks: list[Any] = []
        self._counts: list[dict[int, int]] = []
        """Per bucket how often this backward came to each parameter."""
        self._sent: list[list[int]] = []
        """The versions of the gradients of each bucket that was sent."""
        self._is_running = self._is_known = self._is_refused = False

    def begin(self) -> None:
        """The last backward comes next."""
        if self._is_refused:
            return
        if not self._hooks:
            places: list[tuple[int, Any]] = [(k, each) for k, b in enumerate(self._buckets) for each in b.parameters]
            self._hooks = [each.register_post_accumulate_grad_hook(partial(self._note, k)) for k, each in places]
        self._counts, self._sent = [{} for _ in self._buckets], []
        self._is_running = True

    def _note(self, number: int, parameter: torch.Tensor) -> None:
        if not self._is_running:
            return
        counts = self._counts[number]
        counts[id(parameter)] = counts.get(id(parameter), 0) + 1
        while self._is_known and len(self._sent) < len(self._buckets) and self._is_complete(len(self._sent)):
            self._send(self._buckets[len(self._sent)])
            self._sent.append(self._buckets[len(self._sent)].versions())

    def _is_complete(self, number: int) -> bool:
        return len(self._counts[number]) == len(self._buckets[number].parameters)

    def end(self) -> None:
        """The backward is over. Raises ExecutionError if it came to a gradient after that was sent."""
        if not self._is_running:
            return
        self._is_running = False
        if any(bucket.versions() != sent for bucket, sent in zip(self._buckets, self._sent, strict=False)):
            raise ExecutionError(
                "a backward came twice to one parameter, which it did not in the first iteration: its gradient was "
                "added up too early; use checkpoint(use_reentrant=False) in every iteration"
            )
        if not self._is_known:
            self._is_known = True
            self._is_refused = any(count > 1 for counts in self._counts for count in counts.values())
        if self._is_refused:
            for hook in self._hooks:
                hook.remove()


def _put(place: torch.Tensor, parameter: torch.Tensor) -> None:
    """Let the gradient be what lies there, with its value."""
    grad = parameter.grad
    if grad is None or grad is place:
        return
    if grad.is_sparse:
        place.zero_().add_(grad.detach())
    else:
        place.copy_(grad.detach())
    parameter.grad = place


def kind_of(parameter: nn.Parameter) -> torch.dtype:
    """The type of its gradient."""
    return parameter.grad_dtype or parameter.dtype


def _like(part: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """Numbers in a row, as a tensor that lies as the parameter does."""
    if parameter.is_contiguous():
        return part.view_as(parameter)
    last = sum((size - 1) * step for size, step in zip(parameter.shape, parameter.stride(), strict=True))
    if last + 1 != parameter.numel():  # a part of something larger
        return part.view(parameter.shape)
    return part.as_strided(parameter.shape, parameter.stride(), part.storage_offset())


def in_buckets(
    parameters: Sequence[nn.Parameter], *, bucket_bytes: int, first_bytes: int | None = None
) -> list[list[nn.Parameter]]:
    """Parameters of one type, together of `bucket_bytes` at most; one that is larger is by itself.

    `first_bytes`: the same of the first bucket of a type, if it is smaller: so sending begins early.
    """
    kinds = defaultdict[torch.dtype, list[list[nn.Parameter]]](list)
    room = defaultdict[torch.dtype, int](int)
    for parameter in parameters:
        kind = kind_of(parameter)
        size = parameter.numel() * kind.itemsize
        if size > room[kind]:
            room[kind] = bucket_bytes if kinds[kind] else min(bucket_bytes, first_bytes or bucket_bytes)
            kinds[kind].append([])
        kinds[kind][-1].append(parameter)
        room[kind] -= size
    return [bucket for buckets in kinds.values() for bucket in buckets]

"""Gradients of one stage, or of tied parameters, put together from several processes."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed, nn

from planner.execute.group_parts import GroupPart
from planner.plan import Plan

BUCKET_BYTES = 2**25
"""Gradients are copied together to be reduced; so much at once is held twice, where the plan says nothing else."""


def bucket_bytes_of(plan: Plan) -> int:
    """What the plan counts on being held twice, or what is usual here if its profile did not say."""
    stated = None if plan.evidence is None else plan.evidence.bucket_bytes
    return stated or BUCKET_BYTES


class StageReduction:
    """The gradients of a stage: added up over its replicas while other stages go on computing, and scaled."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        group: Any,
        parts: Sequence[GroupPart] = (),
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """`group`: the processes that hold the same, None if there is only one; `parts`: of those parameters that are
        parts, held by a group together; `bucket_bytes`: most held twice.
        """
        self.parts = [part for part in parts if part.parameter.requires_grad]
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.bucket_bytes = bucket_bytes
        self.group, self.is_due = group, True
        """Whether this iteration's gradients are used; otherwise those of the next one are added to them."""
        self._running: list[Any] = []

    @torch.no_grad()
    def start(self) -> None:
        """To be called once per iteration, after the last weight gradient."""
        if not self.is_due:
            return
        for part in self.parts:
            part.take_grad()
        if self.group is None:
            return
        for parameters in _buckets(self.parameters, bucket_bytes=self.bucket_bytes):
            flat = _pack(parameters)
            self._running.append(distributed.all_reduce(flat, group=self.group, async_op=True))

    @torch.no_grad()
    def finish(self, divisor: float) -> None:
        """Wait for what `start` began, and divide."""
        for work in self._running:
            work.wait()
        self._running.clear()
        for part in self.parts:
            part.add_up()
        if divisor != 1:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(divisor)

    def hand_over(self) -> None:
        """To be called when ties are added up, before the optimizers' step: whose gradient is whose."""

    def share(self) -> None:
        """To be called after a step that was taken: what the replicas have to tell each other."""


class Tie:
    """One tied parameter: its copies on this process, and the processes that have others."""

    def __init__(
        self, copies: Sequence[nn.Parameter], *, counted: Sequence[nn.Parameter], group: Any, source: int
    ) -> None:
        """`counted`: those of the copies whose gradients are added up, one of a stage's replicas; `group`: the
        processes that hold copies, None if only this one does; `source`: whose value all start with.
        """
        self.copies, self.counted, self.group, self.source = copies, counted, group, source

    @torch.no_grad()
    def share_value(self) -> None:
        """Give every copy the value of the first."""
        value = self.copies[0].detach().clone()
        if self.group is not None:
            distributed.broadcast(value, src=self.source, group=self.group)
        for copy in self.copies:
            copy.copy_(value)

    @torch.no_grad()
    def share_grad(self) -> None:
        """Give every copy the sum of all their gradients."""
        total = torch.zeros_like(gradient_of(self.copies[0]))
        for copy in self.counted:
            total += gradient_of(copy)
        if self.group is not None:
            distributed.all_reduce(total, group=self.group)
        for copy in self.copies:
            copy.grad = total.clone()


@torch.no_grad()
def clip_gradients(
    parameters: Sequence[nn.Parameter], *, counted: Sequence[nn.Parameter], max_norm: float, device: torch.device
) -> float:
    """Scale the gradients of all processes so that their norm is `max_norm` at most; a collective call of all.

    `counted`: those of the parameters here that are counted here, so that each of the model's counts once. Returns
    the norm before.
    """
    grads = [parameter.grad for parameter in counted if parameter.grad is not None]
    squares = [torch.linalg.vector_norm(grad, dtype=torch.float64) ** 2 for grad in grads]
    total = torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64, device=device)
    distributed.all_reduce(total)
    norm = float(total.sqrt())
    scale = max_norm / (norm + 1e-6)  # as torch.nn.utils.clip_grad_norm_ has it
    for parameter in parameters:
        if parameter.grad is not None and scale < 1:
            parameter.grad.mul_(scale)
    return norm


def gradient_of(parameter: nn.Parameter) -> torch.Tensor:
    """Zeros where a replica's samples did not touch a parameter: the others' may have."""
    zeros_dtype = parameter.grad_dtype or parameter.dtype
    return torch.zeros_like(parameter, dtype=zeros_dtype) if parameter.grad is None else parameter.grad


def _buckets(parameters: Sequence[nn.Parameter], *, bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Parameters of one type, together of `bucket_bytes` at most; one that is larger is by itself."""
    kinds = defaultdict[torch.dtype, list[list[nn.Parameter]]](list)
    room = defaultdict[torch.dtype, int](int)
    for parameter in parameters:
        kind = parameter.grad_dtype or parameter.dtype
        size = parameter.numel() * kind.itemsize
        if size > room[kind]:
            kinds[kind].append([])
            room[kind] = bucket_bytes
        kinds[kind][-1].append(parameter)
        room[kind] -= size
    return [bucket for buckets in kinds.values() for bucket in buckets]


def _pack(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """The gradients of a bucket as one tensor, whose parts they are from then on.

    A single one stays where it is, so that one larger than a bucket is not held twice.
    """
    first = gradient_of(parameters[0])
    if len(parameters) == 1 and first.is_contiguous():
        parameters[0].grad = first
        return first.view(-1)
    flat = torch.cat([gradient_of(parameter).reshape(-1) for parameter in parameters])
    _unpack(flat, parameters)
    return flat


def _unpack(flat: torch.Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """From here on the gradients are parts of `flat`; those from before are let go."""
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part in zip(parameters, torch.split(flat, sizes), strict=True):
        parameter.grad = part.view_as(parameter)

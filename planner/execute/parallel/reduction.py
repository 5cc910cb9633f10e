"""Gradients of one stage, or of tied parameters, put together from several processes."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import distributed, nn

from planner.execute.parallel.group_parts import GroupPart
from planner.plan import Plan

BUCKET_BYTES = 2**25
"""So much is reduced at once, where the plan says nothing else."""


def bucket_bytes_of(plan: Plan) -> int:
    """What the plan counts on for a reduction, or what is usual here if its profile did not say."""
    stated = None if plan.evidence is None else plan.evidence.bucket_bytes
    return stated or BUCKET_BYTES


class StageReduction:
    """The gradients of a stage: added up over its replicas while other stages go on computing, and scaled.

    Where there is somebody to add to, gradients lie side by side in buckets from their first microbatch on, so that
    nothing is copied to be sent, and nothing is held twice. A parameter that no replica used ends without a gradient,
    as in one process: optimizers pass over it.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        group: Any,
        parts: Sequence[GroupPart] = (),
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """`group`: the processes that hold the same, None if there is only one; `parts`: of those parameters that are
        parts, held by a group together; `bucket_bytes`: most in a message.
        """
        self.parts = [part for part in parts if part.parameter.requires_grad]
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.bucket_bytes = bucket_bytes
        self.group, self.is_due = group, True
        """Whether this iteration's gradients are used; otherwise those of the next one are added to them."""
        self._buckets: list[GradientBucket] = []
        self._running: list[tuple[GradientBucket, Any]] = []

    @torch.no_grad()
    def prepare(self) -> None:
        """To be called before an iteration's first backward pass: gradients that are gone begin as zeros.

        Members of a group hand theirs over when they are complete: these have no buckets before.
        """
        if self.group is None or self.parts:
            return
        self._buckets = self._buckets or list(self._make_buckets())
        for bucket in self._buckets:
            bucket.take_in()

    @torch.no_grad()
    def start(self) -> None:
        """To be called once per iteration, after the last weight gradient."""
        if not self.is_due:
            return
        for part in self.parts:
            part.take_grad()
        if self.group is None:
            return
        for bucket in self._buckets or self._make_buckets():
            bucket.take_in()
            bucket.flag_used()
            self._running.append((bucket, distributed.all_reduce(bucket.message, group=self.group, async_op=True)))

    def _make_buckets(self) -> Iterator["GradientBucket"]:
        return (GradientBucket(each) for each in _in_buckets(self.parameters, bucket_bytes=self.bucket_bytes))

    @torch.no_grad()
    def finish(self, divisor: float) -> None:
        """Wait for what `start` began, and divide."""
        for bucket, work in self._running:
            work.wait()
            bucket.drop_unused()
        for part in self.parts:
            part.add_up()
        grads = [bucket.flat for bucket, _ in self._running] or [
            parameter.grad for parameter in self.parameters if parameter.grad is not None
        ]
        self._running.clear()
        for grad in grads if divisor != 1 else ():
            grad.div_(divisor)

    def finish_buckets(self) -> None:
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
        """Give every copy the sum of all their gradients; none where nobody used any of them."""
        first = self.copies[0]
        sent = torch.zeros(first.numel() + 1, dtype=_kind_of(first), device=first.device)
        total = sent[:-1].view(first.shape)
        for copy in self.counted:
            if copy.grad is not None:
                total += copy.grad
                sent[-1] = 1
        if self.group is not None:
            distributed.all_reduce(sent, group=self.group)
        is_used = any(copy.grad is not None for copy in self.copies) or bool(sent[-1])
        for copy in self.copies:
            copy.grad = total.clone() if is_used else None


@torch.no_grad()
def clip_gradients(
    parameters: Sequence[nn.Parameter], *, counted: Sequence[nn.Parameter], max_norm: float, device: torch.device
) -> float:
    """Scale the gradients of all processes so that their norm is `max_norm` at most; a collective call of all.

    `counted`: those of the parameters here that are counted here, so that each of the model's counts once. Returns
    the norm before.
    """
    grads = gradients_of(counted)
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


def gradients_of(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    """Of those that have one and are not empty; of a table whose gradient is sparse the rows that it has."""
    grads = [each.grad for each in parameters if each.grad is not None and each.grad.numel()]
    return [grad.coalesce().values() if grad.is_sparse else grad for grad in grads]


class GradientBucket:
    """Gradients of parameters of one type, side by side in one tensor; behind them, for each, whether it was used.

    Autograd adds to them in place. So what no backward came to is what still has the version that it began with, which
    takes no hook, nor a look at a value.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        """`parameters`: all with gradients of one type, on one device."""
        self.parameters = parameters
        sizes = [parameter.numel() for parameter in parameters]
        count, kind, device = sum(sizes), _kind_of(parameters[0]), parameters[0].device
        self.message = torch.zeros(count + len(sizes), dtype=kind, device=device)
        self.flat, self._flags = self.message[:count], self.message[count:]
        parts = zip(torch.split(self.flat, sizes), parameters, strict=True)
        self._places = [_like(part, parameter).data for part, parameter in parts]  # `data`: each counts for itself
        self._versions = [place._version for place in self._places]
        self._untouched: list[int] = []
        """Numbers of the parameters that this process did not use."""

    def take_in(self) -> None:
        """Let every gradient be its part of the tensor: with what it was, or zeros where there was none."""
        if all(parameter.grad is None for parameter in self.parameters):  # one call for all is what an iteration needs
            self.flat.zero_()
            self._versions = [place._version for place in self._places]
            for parameter, place in zip(self.parameters, self._places, strict=True):
                parameter.grad = place
            return
        for number, (parameter, place) in enumerate(zip(self.parameters, self._places, strict=True)):
            grad = parameter.grad
            if grad is place:
                continue
            if grad is None:
                place.zero_()
                self._versions[number] = place._version
            else:
                place.copy_(grad)
            parameter.grad = place

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


def _kind_of(parameter: nn.Parameter) -> torch.dtype:
    return parameter.grad_dtype or parameter.dtype


def _like(part: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """Numbers in a row, as a tensor that lies as the parameter does."""
    if parameter.is_contiguous():
        return part.view_as(parameter)
    last = sum((size - 1) * step for size, step in zip(parameter.shape, parameter.stride(), strict=True))
    if last + 1 != parameter.numel():  # a part of something larger
        return part.view(parameter.shape)
    return part.as_strided(parameter.shape, parameter.stride(), part.storage_offset())


def _in_buckets(parameters: Sequence[nn.Parameter], *, bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Parameters of one type, together of `bucket_bytes` at most; one that is larger is by itself."""
    kinds = defaultdict[torch.dtype, list[list[nn.Parameter]]](list)
    room = defaultdict[torch.dtype, int](int)
    for parameter in parameters:
        kind = _kind_of(parameter)
        size = parameter.numel() * kind.itemsize
        if size > room[kind]:
            kinds[kind].append([])
            room[kind] = bucket_bytes
        kinds[kind][-1].append(parameter)
        room[kind] -= size
    return [bucket for buckets in kinds.values() for bucket in buckets]

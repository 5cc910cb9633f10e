"""Gradients of one stage, or of tied parameters, put together from several processes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import distributed, nn

from planner.execute.parallel.gradient_buckets import FIRST_BYTES, EarlySending, GradientBucket, in_buckets, kind_of
from planner.execute.parallel.group_parts import GroupPart
from planner.plan import Plan

BUCKET_BYTES = 2**25
"""So much is reduced at once, where the plan says nothing else."""


def bucket_bytes_of(plan: Plan) -> int:
    """What the plan counts on for a reduction, or what is usual here if its profile did not say."""
    stated = None if plan.evidence is None else plan.evidence.bucket_bytes
    return stated or BUCKET_BYTES


class StageReduction:
    """The gradients of a stage: added up over its replicas while other stages continue computing, and scaled.

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
        self.num_carried = 0
        """Values that may travel with the gradients."""
        self.is_direct = False
        """Whether autograd runs all backwards of the whole model, as beneath DistributedDataParallel."""
        self.flats: list[torch.Tensor] = []
        """All gradients of the present iteration, where they lie in buckets that were added up."""
        self._buckets: list[GradientBucket] = []
        self._running: list[tuple[GradientBucket, Any]] = []
        self._early = EarlySending(self._buckets, self._send)

    def prepare(self) -> None:
        """To be called before an iteration's first backward pass: gradients that are gone begin as zeros.

        Members of a group hand theirs over when they are complete: these have no buckets before.
        """
        if self.group is None or self.parts:
            return
        with torch.no_grad():
            if not self._buckets:
                self._buckets += self._make_buckets()
            for bucket in self._buckets:
                bucket.prepare()

    @property
    def is_alone(self) -> bool:
        """Whether nobody has other gradients of its weights, or a part of one."""
        return self.group is None and not self.parts

    @property
    def carries(self) -> bool:
        """Whether something travels in this iteration."""
        return self.is_due and bool(self._buckets)

    def carry(self, values: torch.Tensor) -> torch.Tensor | None:
        """Take values along that are to be added up as gradients are; gives where their sums will be after `finish`.

        None where they travel in no type that holds them: then they want a message of their own. To be called between
        `prepare` and the iteration's last backward, if it `carries`.
        """
        place = self._buckets[-1].carried
        kind = torch.promote_types(values.dtype, place.dtype)
        if len(values) != len(place) or kind != place.dtype or kind.is_complex:
            return None
        place.copy_(values)
        return place

    def expect_last(self) -> None:
        """To be called before the last backward of an iteration, if that adds up all weight gradients in one go: each
        bucket is sent once it is complete, while earlier layers still compute.
        """
        if self.is_due and len(self._buckets) > 1:
            self._early.begin()

    def start(self) -> None:
        """To be called once per iteration, after the last weight gradient; raises ExecutionError as `EarlySending`."""
        if not self.is_due:
            return
        for part in self.parts:
            part.take_grad()
        if self.group is None:
            return
        self._early.end()
        for bucket in (self._buckets or list(self._make_buckets()))[len(self._running) :]:
            self._send(bucket)

    @torch.no_grad()
    def _send(self, bucket: GradientBucket) -> None:
        bucket.take_in()
        bucket.flag_used()
        self._running.append(
            (bucket, self.group.allreduce([bucket.message]))
        )  # `distributed.all_reduce` logs each call

    def _make_buckets(self) -> Iterator[GradientBucket]:
        """The last layers' first, as a backward completes them; the last one carries what else is added up."""
        first = FIRST_BYTES if self.is_direct else None
        held = in_buckets(self.parameters[::-1], bucket_bytes=self.bucket_bytes, first_bytes=first)
        for number, each in enumerate(held):
            is_copying = self.is_direct and not self.parts and each[0].device.type == "cpu"
            carried = self.num_carried if number == len(held) - 1 else 0
            yield GradientBucket(each, num_carried=carried, is_copying=is_copying)

    def finish(self, divisor: float) -> None:
        """Wait for what `start` began, and divide."""
        if divisor == 1 and not (self._running or self.parts):
            return
        with torch.no_grad():
            for bucket, work in self._running:
                work.wait()
                bucket.drop_unused()
            for part in self.parts:
                part.add_up()
            self.flats = [bucket.flat for bucket, _ in self._running]
            self._running.clear()
            if divisor == 1:
                return
            _change(self.flats or [each.grad for each in self.parameters if each.grad is not None], divisor, kind="div")

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
        sent = torch.zeros(first.numel() + 1, dtype=kind_of(first), device=first.device)
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
    if grads and are_plain(grads):
        norms = list(torch._foreach_norm(grads, 2, torch.float64))
    else:
        norms = [
            torch.linalg.vector_norm(grad.abs() if grad.is_complex() else grad, dtype=torch.float64) for grad in grads
        ]
    total = torch.stack(norms or [torch.zeros((), dtype=torch.float64, device=device)]).square().sum()
    distributed.all_reduce(total)
    norm = float(total.sqrt())
    scale = max_norm / (norm + 1e-6)  # as torch.nn.utils.clip_grad_norm_ has it
    if scale < 1:
        held = [each.grad for each in parameters if each.grad is not None]
        _change(held, scale, kind="mul", is_together=device.type != "cpu")  # a host rounds short types otherwise so
    return norm


def gradient_of(parameter: nn.Parameter) -> torch.Tensor:
    """Zeros where a replica's samples did not touch a parameter: the others' may have."""
    return torch.zeros_like(parameter, dtype=kind_of(parameter)) if parameter.grad is None else parameter.grad


def _change(grads: list[torch.Tensor], number: float, *, kind: str, is_together: bool = True) -> None:
    """All at once where that is known to work: a call each takes the host of a card longer than the card."""
    if is_together and grads and are_plain(grads):
        getattr(torch, f"_foreach_{kind}_")(grads, number)
        return
    for grad in grads:
        getattr(grad, f"{kind}_")(number)


def are_plain(grads: Sequence[torch.Tensor]) -> bool:
    """Whether all are dense floats and nobody's subclass."""
    return all(type(grad) is torch.Tensor and not grad.is_sparse and grad.is_floating_point() for grad in grads)


def gradients_of(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    """Of those that have one and are not empty; of a table whose gradient is sparse the rows that it has."""
    return gradients_in([grad for each in parameters if (grad := each.grad) is not None])


def gradients_in(grads: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those that are not empty; of one that is sparse the rows that it has."""
    return [grad.coalesce().values() if grad.is_sparse else grad for grad in grads if grad.numel()]

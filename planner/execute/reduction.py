"""Gradients of one stage, or of tied parameters, put together from several processes."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed, nn


class StageReduction:
    """The gradients of a stage: scaled, and added up over its replicas while other stages go on computing."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, group: Any, divisor: int) -> None:
        """`group`: the processes that hold the stage, None if there is only one; `divisor`: for the mean."""
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.group, self.divisor = group, divisor
        self._running: list[tuple[Any, torch.Tensor, list[nn.Parameter]]] = []

    @torch.no_grad()
    def start(self) -> None:
        """To be called once per iteration, after the last weight gradient."""
        if self.group is None:
            self._scale()
            return
        for parameters in _by_type(self.parameters):
            flat = torch.cat([_grad(parameter).reshape(-1) for parameter in parameters])
            work = distributed.all_reduce(flat, group=self.group, async_op=True)
            self._running.append((work, flat, parameters))

    @torch.no_grad()
    def finish(self) -> None:
        """Wait for what `start` began."""
        for work, flat, parameters in self._running:
            work.wait()
            _unpack(flat, parameters)
        if self._running:
            self._scale()
        self._running.clear()

    def _scale(self) -> None:
        if self.divisor != 1:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self.divisor)


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
        total = torch.zeros_like(self.copies[0])
        for copy in self.counted:
            total += _grad(copy)
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


def _grad(parameter: nn.Parameter) -> torch.Tensor:
    """Zeros where a replica's samples did not touch a parameter: the others' may have."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _by_type(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    kinds = defaultdict(list)
    for parameter in parameters:
        kinds[parameter.dtype].append(parameter)
    return list(kinds.values())


def _unpack(flat: torch.Tensor, parameters: Sequence[nn.Parameter]) -> None:
    for parameter, part in zip(
        parameters, torch.split(flat, [parameter.numel() for parameter in parameters]), strict=True
    ):
        parameter.grad = part.view_as(parameter).clone()

"""What the devices of a group tell each other inside a layer, for parts of layers that torch's own styles do not know.

In a backward pass each of them sends what the others' forward needs of it, and the other way round.
"""

from typing import Any, cast

import torch
from torch import distributed


def sum_over(tensor: torch.Tensor, *, group: Any) -> torch.Tensor:
    """The sum of what every member has, as a tensor of its own."""
    total = tensor.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total, group=group)
    return total


def take_whole(tensor: torch.Tensor, *, group: Any) -> torch.Tensor:
    """What every member has alike, and uses for a part of the work: its gradient is the sum of theirs."""
    return cast(torch.Tensor, _Taken.apply(tensor, group))  # type: ignore[no-untyped-call]


def add_up(tensor: torch.Tensor, *, group: Any) -> torch.Tensor:
    """The sum of what members computed in parts; each has the gradient of the sum."""
    return cast(torch.Tensor, _AddedUp.apply(tensor, group))  # type: ignore[no-untyped-call]


def own_part(tensor: torch.Tensor, *, dim: int, group: Any) -> torch.Tensor:
    """This member's part of what every member has alike; the gradient is put together of all parts."""
    return cast(torch.Tensor, _OwnPart.apply(tensor, dim, group))  # type: ignore[no-untyped-call]


class _Taken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *rest: Any) -> torch.Tensor:
        (ctx.group,) = rest
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return sum_over(grad, group=ctx.group), None


class _AddedUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *rest: Any) -> torch.Tensor:  # noqa: ARG004
        (group,) = rest
        return sum_over(tensor, group=group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ARG004
        return grad, None


class _OwnPart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *rest: Any) -> torch.Tensor:
        ctx.dim, ctx.group = rest
        ctx.width = distributed.get_world_size(ctx.group)
        parts = tensor.chunk(ctx.width, ctx.dim)
        return parts[distributed.get_rank(ctx.group)].clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        parts = [torch.empty_like(grad, memory_format=torch.contiguous_format) for _ in range(ctx.width)]
        distributed.all_gather(parts, grad.contiguous(), group=ctx.group)
        return torch.cat(parts, ctx.dim), None, None

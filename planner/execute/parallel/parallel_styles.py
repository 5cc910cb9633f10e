"""Styles for `parallelize_module` beside torch's own, for what transformers' models have.

The private parts of torch's styles are used; the executor is pinned to one version of torch. What torch's styles do
not know, members of a group tell each other: in a backward pass each sends what the others' forward needs of it.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from planner.execute.model.deferred import is_conv1d

NUM_FUSED = "num_fused"
"""Attribute of a parameter that is several matrices beside each other: how many."""
WHOLE = "whole"
"""Attribute of a plain parameter that is a member's part: the DTensor over the group, in the same memory."""


class FusedColwiseParallel(ColwiseParallel):
    """Column-wise, for a `Linear` or `Conv1D` whose output is `num_fused` results beside each other (queries, keys and
    values): every member gets its columns of each of them.
    """

    def __init__(self, *, num_fused: int = 1, **more: Any) -> None:
        """`more`: as for `ColwiseParallel`."""
        super().__init__(**more)
        self.num_fused = num_fused

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def partition(_: str, part: nn.Module, mesh: DeviceMesh) -> None:
            dims = {"weight": 1 if is_conv1d(type(part)) else 0, "bias": 0}
            for name, parameter in list(part.named_parameters(recurse=False)):
                whole = interleave(parameter, dim=dims[name], num_fused=self.num_fused, width=mesh.size())
                _put(part, name, tensor=whole, placement=Shard(dims[name]), mesh=mesh)
                setattr(part.get_parameter(name), NUM_FUSED, self.num_fused)

        take = partial(self._prepare_input_fn, self.input_layouts, self.desired_input_layouts)
        give = partial(self._prepare_output_fn, self.output_layouts, self.use_local_output)
        return distribute_module(module, device_mesh, partition, take, give)


class SummedGradients(ParallelStyle):
    """A part that every member has whole and applies to its heads alone: its gradient is the sum over the group."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group = device_mesh.get_group()
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_hook(partial(_sum_over, group=group))  # type: ignore[no-untyped-call]
        return module


class Conv1DRowwiseParallel(RowwiseParallel):
    """Row-wise, for transformers' `Conv1D`, whose weight lies the other way round."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        placements: Mapping[str, Any] = {"weight": Shard(0), "bias": Replicate()}

        def partition(_: str, part: nn.Module, mesh: DeviceMesh) -> None:
            for name, parameter in list(part.named_parameters(recurse=False)):
                _put(part, name, tensor=parameter, placement=placements[name], mesh=mesh)

        self.desired_input_layouts = (Shard(-1),)
        take = partial(self._prepare_input_fn, self.input_layouts, self.desired_input_layouts)
        give = partial(self._prepare_output_fn, self.output_layouts, self.use_local_output)
        return distribute_module(module, device_mesh, partition, take, give)


class OwnHeadsOfBias(ParallelStyle):
    """T5's attention, whose bias of positions is handed from block to block: it is taken and given for all heads, and
    every member adds that of its own.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.forward = _BiasOfAllHeads(module, group=device_mesh.get_group(), width=device_mesh.size())
        return module


class _BiasOfAllHeads:
    """The forward of an attention that counts its own heads only."""

    def __init__(self, module: Any, *, group: distributed.ProcessGroup, width: int) -> None:
        self.forward, self.compute, self.group, self.width = module.forward, module.compute_bias, group, width
        self.made: torch.Tensor | None = None
        """Bias over all heads, computed by this rank; None before the first call."""
        module.compute_bias = self.compute_bias

    def compute_bias(self, *args: Any, **named: Any) -> torch.Tensor:
        """That of this member's heads; all of them are kept to be given."""
        self.made = self.compute(*args, **named)
        return _own_part(self.made, dim=1, group=self.group)

    def __call__(self, *args: Any, position_bias: torch.Tensor | None = None, **named: Any) -> tuple[Any, ...]:
        """What the attention gives, with the bias of all heads."""
        mine = None if position_bias is None else _own_part(position_bias, dim=1, group=self.group)
        try:
            output, used, *rest = self.forward(*args, position_bias=mine, **named)
        finally:  # a recomputation may leave it as soon as it has what it wants
            made, self.made = self.made, None
        whole = position_bias if made is None else made
        if whole is None:  # zeros, which are made where there is no bias
            whole = used.repeat(1, self.width, 1, 1)
        return output, whole, *rest


class ExpertsParallel(ParallelStyle):
    """Experts whose weights are tensors of three dimensions: every member has its hidden units of every expert.

    The module computes with plain parameters of the member's own size, so whatever function it hands them to (one
    product per expert, or a grouped one) stays as it is, and their gradients may wait.
    """

    CUTS: Mapping[str, tuple[int, int]] = MappingProxyType({"gate_up_proj": (1, 2), "down_proj": (2, 1)})
    """By parameter: along which dimension, and how many matrices lie beside each other there."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, (dim, num_fused) in self.CUTS.items():
            parameter = module.get_parameter(name)
            turned = interleave(parameter.detach(), dim=dim, num_fused=num_fused, width=device_mesh.size())
            given = distribute_tensor(turned, device_mesh, [Shard(dim)], src_data_rank=None)
            whole = nn.Parameter(given, requires_grad=parameter.requires_grad)
            mine = nn.Parameter(given.to_local().detach(), requires_grad=parameter.requires_grad)
            setattr(whole, NUM_FUSED, num_fused)
            setattr(mine, WHOLE, whole)
            module.register_parameter(name, mine)
        group = device_mesh.get_group()
        module.register_forward_pre_hook(partial(_take_floats, group=group))
        module.register_forward_hook(partial(_add_up_output, group=group))
        return module


def _take_floats(_: nn.Module, arguments: tuple[Any, ...], *, group: distributed.ProcessGroup) -> tuple[Any, ...]:
    """Tokens and weights of experts, but not which experts they are.

    Routers take weights in float32: where tokens are longer, members' gradients are added up before they are rounded.
    """
    least = arguments[0].dtype
    return tuple(
        _take_whole(each.to(torch.promote_types(each.dtype, least)), group=group) if each.is_floating_point() else each
        for each in arguments
    )


def _add_up_output(_: nn.Module, *given: Any, group: distributed.ProcessGroup) -> torch.Tensor:
    """`given`: the arguments, then what the module made of them."""
    return _add_up(given[-1], group=group)


def interleave(tensor: torch.Tensor, *, dim: int, num_fused: int, width: int) -> torch.Tensor:
    """The same columns in such an order that cutting them into `width` equal parts cuts each of the fused matrices."""
    if num_fused == 1:
        return tensor
    with torch.no_grad():
        blocks = [block.chunk(width, dim) for block in tensor.chunk(num_fused, dim)]
        return torch.cat([block[member] for member in range(width) for block in blocks], dim)


def _put(module: nn.Module, name: str, *, tensor: torch.Tensor, placement: Any, mesh: DeviceMesh) -> None:
    needs_grad = module.get_parameter(name).requires_grad
    given = distribute_tensor(tensor.detach(), mesh, [placement], src_data_rank=None)
    module.register_parameter(name, nn.Parameter(given, requires_grad=needs_grad))


def _sum_over(tensor: torch.Tensor, *, group: Any) -> torch.Tensor:
    """The sum of what every member has, as a tensor of its own."""
    total = tensor.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total, group=group)
    return total


def _take_whole(tensor: torch.Tensor, *, group: Any) -> torch.Tensor:
    """What every member has alike, and uses for a part of the work: its gradient is the sum of theirs."""
    return cast(torch.Tensor, _Taken.apply(tensor, group))  # type: ignore[no-untyped-call]


def _add_up(tensor: torch.Tensor, *, group: Any) -> torch.Tensor:
    """The sum of what members computed in parts; each has the gradient of the sum."""
    return cast(torch.Tensor, _AddedUp.apply(tensor, group))  # type: ignore[no-untyped-call]


def _own_part(tensor: torch.Tensor, *, dim: int, group: Any) -> torch.Tensor:
    """This member's part of what every member has alike; the gradient is put together of all parts."""
    return cast(torch.Tensor, _OwnPart.apply(tensor, dim, group))  # type: ignore[no-untyped-call]


class _Taken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *rest: Any) -> torch.Tensor:
        (ctx.group,) = rest
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _sum_over(grad, group=ctx.group), None


class _AddedUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *rest: Any) -> torch.Tensor:  # noqa: ARG004
        (group,) = rest
        return _sum_over(tensor, group=group)

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

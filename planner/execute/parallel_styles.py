"""Styles for `parallelize_module` beside torch's own: several matrices in one, transformers' `Conv1D`, shared norms.

The private parts of torch's styles are used; the executor is pinned to one version of torch.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from planner.execute.deferred import is_conv1d

NUM_FUSED = "num_fused"
"""Attribute of a parameter that is several matrices beside each other: how many."""


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


def _sum_over(gradient: torch.Tensor, *, group: distributed.ProcessGroup) -> torch.Tensor:
    total = gradient.clone()
    distributed.all_reduce(total, group=group)
    return total


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

"""What a member of a group holds of each parameter: optimizers, reductions and files know these parts, not DTensors.

The layer computes with DTensors, as `parallelize_module` made them. Beside each stands a plain parameter that lies in
the same memory and takes over its gradient: so optimizers step single tensors of one kind, replicas reduce them as any
other, and replicas may shard the state of parts once more.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor, Shard

from planner.execute.parallel.parallel_styles import NUM_FUSED, WHOLE


class GroupPart:
    """The part of one parameter on this member."""

    is_over_replicas = False
    """Whether the members are replicas, each with its own samples, and not devices that run the layer together."""

    def __init__(self, whole: nn.Parameter, *, group: Any, own: nn.Parameter | None = None) -> None:
        """`whole`: a DTensor over the group; `own`: what the layer computes with in its place."""
        assert isinstance(whole, DTensor)
        (placement,) = whole.placements
        self.whole, self.group = whole, group
        self.width, self.member = distributed.get_world_size(group), distributed.get_rank(group)
        self.dim = placement.dim if isinstance(placement, Shard) else None
        """Along which it is cut; None: every member has all of it."""
        self.num_fused = getattr(whole, NUM_FUSED, 1)
        self.parameter = _in_same_memory(whole) if own is None else own
        """In the same memory."""
        self.is_partial = False
        """Whether the gradient taken over is still to be added up over the group."""

    @property
    def shape(self) -> torch.Size:
        """Of the whole parameter."""
        return self.whole.shape

    def take_grad(self) -> None:
        """From here on the part has the gradient, and the DTensor none."""
        grad, self.whole.grad = self.whole.grad, None
        if grad is None:
            return
        assert isinstance(grad, DTensor)
        self.is_partial = grad.placements[0].is_partial()
        with torch.no_grad():
            self.parameter.grad = grad.to_local().detach()

    def add_up(self) -> None:
        """A gradient of which every member has a summand; a collective call of the group where it is one."""
        if self.is_partial and self.parameter.grad is not None:
            distributed.all_reduce(self.parameter.grad, group=self.group)
        self.is_partial = False

    def cut(self, tensor: torch.Tensor) -> torch.Tensor:
        """What of a tensor of the whole shape belongs here."""
        if self.dim is None:
            return tensor
        blocks = [block.chunk(self.width, self.dim)[self.member] for block in tensor.chunk(self.num_fused, self.dim)]
        return torch.cat(blocks, self.dim) if len(blocks) > 1 else blocks[0].contiguous()

    @torch.no_grad()
    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The whole of a tensor of which every member has its part; a collective call of the group."""
        if self.dim is None:
            return tensor
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.width)]
        distributed.all_gather(parts, tensor.contiguous(), group=self.group)
        blocks = zip(*(part.chunk(self.num_fused, self.dim) for part in parts), strict=True)
        return torch.cat([piece for block in blocks for piece in block], self.dim)


@torch.no_grad()
def _in_same_memory(whole: DTensor) -> nn.Parameter:
    return nn.Parameter(whole.to_local().detach(), whole.requires_grad)


class GroupParts:
    """Those of all layers on this process."""

    def __init__(self) -> None:
        self.of_layer: dict[str, dict[str, GroupPart]] = {}
        """By layer and path."""
        self._by_parameter: dict[int, GroupPart] = {}

    def add(self, name: str, parts: Mapping[str, GroupPart]) -> None:
        """Register the parts of one layer."""
        self.of_layer[name] = dict(parts)
        self._by_parameter |= {id(part.parameter): part for part in parts.values()}

    def of(self, tensor: torch.Tensor) -> GroupPart | None:
        """Whose part a parameter is; None if it is no part."""
        return self._by_parameter.get(id(tensor))

    def is_cut(self, tensor: torch.Tensor) -> bool:
        """Whether other members of the group hold other elements."""
        part = self.of(tensor)
        return part is not None and part.dim is not None

    def is_over_replicas(self, tensor: torch.Tensor) -> bool:
        """Whether replicas of the stage hold other elements."""
        part = self.of(tensor)
        return part is not None and part.is_over_replicas

    def shape(self, tensor: torch.Tensor) -> torch.Size:
        """Of the whole, if it is a part."""
        part = self.of(tensor)
        return tensor.shape if part is None else part.shape

    @property
    def wholes(self) -> dict[int, nn.Parameter]:
        """The DTensors, by the identity of the part of each."""
        return {key: part.whole for key, part in self._by_parameter.items()}

    def plain(self, name: str, named: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Tensors of a layer by their paths, with the parts in the place of DTensors."""
        parts = self.of_layer.get(name, {})
        return [(path, parts[path].parameter if path in parts else tensor) for path, tensor in named]


def parts_of(layer: nn.Module, *, group: Any) -> dict[str, GroupPart]:
    """The parts of all parameters that are DTensors, or lie in the memory of one, by their paths."""
    found = {}
    for path, parameter in layer.named_parameters():
        if isinstance(parameter, DTensor):
            found[path] = GroupPart(parameter, group=group)
        elif (whole := getattr(parameter, WHOLE, None)) is not None:
            found[path] = GroupPart(whole, group=group, own=parameter)
    return found

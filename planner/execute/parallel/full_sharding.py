"""Stages of which every replica holds a part of weights, gradients and optimizer state (torch's `fully_shard`, FSDP2).

Each layer gathers its weights in F and again in B or I, and frees them after each. Gradients are added up over the
replicas in every B or W, so that no replica holds those of more than a layer whole. What torch keeps here of a
parameter, rows of it, stands beside a plain parameter in the same memory, as parts of groups do (`group_parts.py`):
optimizers and files know that one. Tied parameters and single numbers stay whole.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import distributed, nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import DeviceMesh

from planner.execute.parallel.active_weights import ActiveLayers
from planner.execute.parallel.group_parts import GroupPart
from planner.execute.parallel.reduction import BUCKET_BYTES
from planner.execute.parallel.sharding import ShardedReduction, is_single
from planner.execute.torch_versions.collectives import all_gather_single
from planner.execute.torch_versions.sharded_gradients import make_ready, reduce_now, watch_used


class _ReplicaPart(GroupPart):
    """The rows of one parameter on this replica: as many on each, fewer or none on the last."""

    is_over_replicas, is_used = True, False
    """Whether this replica used it since the last step."""

    @property
    def _num_rows(self) -> int:
        return -(-self.shape[0] // self.width)

    def cut(self, tensor: torch.Tensor) -> torch.Tensor:
        """What of a tensor of the whole shape belongs here."""
        return tensor[self.member * self._num_rows :][: self._num_rows].contiguous()

    @torch.no_grad()
    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The whole of a tensor of which every replica has its rows; a collective call of the replicas."""
        mine = tensor.new_zeros((self._num_rows, *self.shape[1:]))
        mine[: len(tensor)] = tensor
        every = mine.new_empty((self.width * self._num_rows, *self.shape[1:]))
        all_gather_single(every, mine, group=self.group)
        return every[: self.shape[0]]


class LayerSharder:
    """Cuts the layers of one stage, one after the other."""

    def __init__(self, *, group: Any, device: torch.device, tied: Collection[str], keeps_frozen: bool = False) -> None:
        """`group`: the stage's replicas; `tied`: parameters that stay whole, as `layer:path`; `keeps_frozen`: so do
        layers of which nothing is trained.
        """
        self.group, self.tied, self.keeps_frozen = group, frozenset(tied), keeps_frozen
        self.mesh = DeviceMesh.from_group(group, device.type)
        self._cut: dict[str, fsdp.FSDPModule] = {}
        self._trained: list[str] = []
        """Names of the layers with a trained parameter."""

    def cut(self, name: str, layer: nn.Module) -> dict[str, _ReplicaPart]:
        """Leave this replica's rows of a layer; gives its parts by their paths."""
        named = list(layer.named_parameters(remove_duplicate=False))
        whole = {each for path, each in named if f"{name}:{path}" in self.tied or is_single(each)}
        is_frozen = self.keeps_frozen and not any(each.requires_grad for _, each in named)
        if is_frozen or all(each in whole for _, each in named):
            return {}
        cut = fsdp.fully_shard(layer, mesh=self.mesh, reshard_after_forward=True, ignored_params=whole)
        cut.set_gradient_divide_factor(1.0)
        cut.set_force_sum_reduction_for_comms(True)
        cut.set_reduce_scatter_unused_params(True)
        paths = [path for path, each in named if each not in whole]
        held: dict[nn.Parameter, _ReplicaPart] = {}
        for path in paths:
            parameter = layer.get_parameter(path)
            held[parameter] = held.get(parameter) or _ReplicaPart(parameter, group=self.group)
        watch_used(cut, lambda parameter: setattr(held[parameter], "is_used", True))
        self._cut[name] = cut
        if any(parameter.requires_grad for parameter in held):
            self._trained.append(name)
        return {path: held[layer.get_parameter(path)] for path in paths}

    def activate(self) -> ActiveLayers:
        """To be called when all layers are cut: their weights come and go together."""
        fsdp.share_comm_ctx(list(self._cut.values()))
        return ActiveLayers(self._cut)

    def join(self, *, keeps_last: bool = False) -> "ShardedLayers":
        """To be called when all layers are cut: one of them at a time reduces, and each gathers the next one.

        Left to itself torch would gather none ahead in a forward of layers that have no module in common: each waits
        for all that was computed so far. For a backward it would take what ran before in the newest forward, which is
        the last layer where several microbatches are in flight.
        `keeps_last`: whether a backward follows each forward at once, so that the last layer's weights stay.
        """
        fsdp.share_comm_ctx(list(self._cut.values()))
        names = list(self._cut)
        for place, name in enumerate(names):
            make_ready(self._cut[name])
            self._cut[name].set_modules_to_forward_prefetch([self._cut[each] for each in names[place + 1 : place + 2]])
            before = [each for each in names[max(0, place - 1) : place] if each in self._trained]
            ahead = [self._cut[each] for each in before or [name]]  # itself: it is there already
            self._cut[name].set_modules_to_backward_prefetch(ahead)
        if keeps_last and names:
            self._cut[names[-1]].set_reshard_after_forward(False)
        return ShardedLayers({name: self._cut[name] for name in reversed(self._trained)})


class ShardedLayers:
    """Those of a stage's layers whose gradients are added up over the replicas, where that is apart from I."""

    def __init__(self, layers: Mapping[str, fsdp.FSDPModule]) -> None:
        """`layers`: by name, in one order on all replicas."""
        self.layers = layers
        self._reduced = set[str]()

    @contextmanager
    def putting_off(self) -> Iterator[None]:
        """Within I gradients are not added up: most come with W."""
        for layer in self.layers.values():
            layer.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            for layer in self.layers.values():
                layer.set_requires_gradient_sync(True)

    def reduce(self, waiting: Collection[str]) -> None:
        """To be called in W when a layer has all its gradients, given those that have not: reduces in one order, also
        where a replica left a layer out.
        """
        for name, layer in self.layers.items():
            if name in waiting:
                return
            if name not in self._reduced:
                reduce_now(layer)
                self._reduced.add(name)
        if not waiting:  # a tied layer may be the last
            self._reduced.clear()


class FullyShardedReduction(ShardedReduction):
    """Takes over the gradients that torch has added up over the replicas; reduces those of what stays whole."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        group: Any,
        parts: Sequence[_ReplicaPart],
        tied: Sequence[nn.Parameter] = (),
        bucket_bytes: int = BUCKET_BYTES,
        active: ActiveLayers | None = None,
    ) -> None:
        """`parameters`: those that stay whole; `active`: layers whose gradients are whole until `start`."""
        super().__init__(parameters, group=group, tied=tied, bucket_bytes=bucket_bytes)
        self.active = active
        self.held = [part for part in parts if part.parameter.requires_grad]
        self._used, self._telling = torch.zeros(0), cast(Any, None)
        """Per part whether any replica used it, once that is told."""

    def expect_last(self) -> None:
        """Nothing is sent early: the layers' own messages take the same way."""

    def start(self) -> None:
        """What torch has added up is complete with the last B; who used what is told beside it."""
        if self.active is not None:
            self.active.reduce()
        super().start()
        if not self.is_due or not self.held:
            return
        for part in self.held:
            part.take_grad()
        device = self.held[0].parameter.device
        self._used = torch.tensor([part.is_used for part in self.held], dtype=torch.uint8).to(device, non_blocking=True)
        self._telling = distributed.all_reduce(
            self._used, distributed.ReduceOp.MAX, group=self.held[0].group, async_op=True
        )

    def _drop_unused(self) -> None:
        """Torch gave zeros to what no replica used."""
        if self._telling is None:
            return
        self._telling.wait()
        untouched = [number for number, part in enumerate(self.held) if not part.is_used]
        used = self._used.tolist() if untouched else []
        for number in untouched:
            if not used[number]:
                self.held[number].parameter.grad = None
        for part in self.held:
            part.is_used = False
        self._telling = None

    @torch.no_grad()
    def finish(self, divisor: float) -> None:
        """Also the gradients of the parts here are divided."""
        super().finish(divisor)
        self._drop_unused()
        for part in self.held if divisor != 1 else ():
            if part.parameter.grad is not None:
                part.parameter.grad.div_(divisor)


def free_weights(module: nn.Module) -> None:
    """Give back what a forward has gathered that no backward follows."""
    for each in module.modules():
        if isinstance(each, fsdp.FSDPModule):
            each.reshard()


def unique_parts(parts: Mapping[str, GroupPart]) -> list[_ReplicaPart]:
    """Of a layer, once each: a parameter may have several paths."""
    return list({id(part): part for part in parts.values() if isinstance(part, _ReplicaPart)}.values())

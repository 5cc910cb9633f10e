"""What one process takes of an iteration's batch."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch

from planner.execute.data.dealt_rows import BalancedRow
from planner.execute.model.user_code import calling
from planner.execute.stage.batch_copies import ready_to_copy, to_device
from planner.execute.stage.stage_module import StageShape
from planner.execute.table.layout import Layout
from planner.execute.table.wiring import BATCH, StageWiring
from planner.execute.training import Batch, Microbatches, Tensors, as_tuple


class BatchShare(NamedTuple):
    """What this process takes of one iteration's batch."""

    layout: Layout
    """Who takes which microbatches in this iteration."""
    batches: Mapping[int, Mapping[int, Tensors]]
    """Per stage here that takes the batch, and microbatch."""
    targets: Mapping[int, torch.Tensor] | None
    """Per microbatch; None where the last stage is elsewhere."""
    shapes: Mapping[int, Mapping[int, StageShape]] = MappingProxyType({})
    """Per stage and microbatch, where microbatches are given one by one."""
    row: BalancedRow | None = None
    """What this process does in this iteration; None: what it does in all of them."""


class BatchCutter:
    """Cuts out of a batch what the stages of one process take."""

    def __init__(self, layout: Layout, wirings: Sequence[StageWiring], *, rank: int, device: torch.device) -> None:
        self.layout, self.rank, self.device = layout, rank, device
        numbers = layout.stages_of(rank)
        self.is_last = layout.num_stages - 1 in numbers
        """Whether the targets are taken."""
        self.takers = [number for number in numbers if BATCH in wirings[number].arrives]
        """The stages here that are given the batch."""
        self._places = {number: (layout.samples_of(number), layout.replica_at(number, rank)) for number in numbers}
        """How many samples each replica of a stage takes, and which of them is here."""
        self._num_parts = layout.num_microbatches * layout.num_parts

    @property
    def takes_batch(self) -> bool:
        """Whether this process has a use for inputs or targets."""
        return bool(self.takers) or self.is_last

    def given(
        self, batch: int | Batch | Microbatches | None, ask: Callable[[int], Batch | Microbatches]
    ) -> Batch | Microbatches | None:
        """The batch itself, `ask`ed for where a number stands for it; None where it is not taken."""
        if not self.takes_batch:
            return None
        if isinstance(batch, int):
            with calling(f"the batch of iteration {batch}"):
                return ask(batch)
        if batch is None:
            raise ValueError(
                f"rank {self.rank} needs the batch or the target, but got neither; give it the whole iteration"
            )
        return batch

    def cut(self, given: Batch | None) -> BatchShare:
        """Raises ValueError if it cannot be cut for every stage."""
        if given is None:
            return BatchShare(self.layout, {}, None)
        inputs, target = given
        tensors = as_tuple(inputs)
        batches = {number: self._microbatches(tensors, number) for number in self.takers}
        if not self.is_last:
            return BatchShare(self.layout, batches, None)
        targets = self._microbatches((target,), self.layout.num_stages - 1)
        return BatchShare(
            self.layout, batches, {number: to_device(own, device=self.device) for number, (own,) in targets.items()}
        )

    def _microbatches(self, tensors: Tensors, stage: int) -> dict[int, Tensors]:
        """The samples of a stage's replica here, by microbatch."""
        if self.layout.num_microbatches > 1:
            return dict(enumerate(zip(*(self.part(tensor, stage) for tensor in tensors), strict=True)))
        samples, replica = self._places[stage]
        own = []
        for tensor in tensors:  # as `part`, in fewer steps
            _require_parts(tensor, self.layout, parts=self._num_parts)
            if len(samples) > 1:
                share = tensor.shape[0] // sum(samples)
                tensor = tensor.narrow(0, sum(samples[:replica]) * share, samples[replica] * share)
            own.append(ready_to_copy(tensor, device=self.device))
        return {0: tuple(own)}

    def part(self, tensor: torch.Tensor, stage: int) -> torch.Tensor:
        """The samples of a stage's replica here, as (microbatch, sample, ...)."""
        _require_parts(tensor, self.layout, parts=self._num_parts)
        samples, replica = self._places[stage]
        mine = _cut(tensor, self.layout.num_microbatches, samples=samples, replica=replica)
        return ready_to_copy(mine, device=self.device)


def split_batch(tensor: torch.Tensor, layout: Layout, *, samples: Sequence[int], replica: int) -> torch.Tensor:
    """The samples of one replica of several, which take so many each of as many, as (microbatch, sample, ...).

    Raises ValueError if they cannot be cut for every stage.
    """
    _require_parts(tensor, layout, parts=layout.num_microbatches * layout.num_parts)
    return _cut(tensor, layout.num_microbatches, samples=samples, replica=replica)


def _require_parts(tensor: torch.Tensor, layout: Layout, *, parts: int) -> None:
    if tensor.dim() and tensor.shape[0] and not tensor.shape[0] % parts:
        return
    size = "no samples" if tensor.dim() == 0 else f"{tensor.shape[0]} samples"
    shares = f" with shares of {layout.num_parts} samples" if layout.samples else ""
    raise ValueError(
        f"the batch has {size}, which cannot be cut into {layout.num_microbatches} microbatches for "
        f"{' and '.join(map(str, layout.replica_counts))} replicas{shares}; give a positive multiple of {parts}"
    )


def _cut(tensor: torch.Tensor, num_microbatches: int, *, samples: Sequence[int], replica: int) -> torch.Tensor:
    if len(samples) == 1:
        return tensor.reshape(num_microbatches, -1, *tensor.shape[1:])
    cut = tensor.reshape(num_microbatches, sum(samples), -1, *tensor.shape[1:])
    start = sum(samples[:replica])
    return cut[:, start : start + samples[replica]].flatten(1, 2)

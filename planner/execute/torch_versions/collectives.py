"""Collectives by the name of the version: `all_gather_single` since 2.13, before that `all_gather_into_tensor`."""

import torch
from torch import distributed


def all_gather_single(every: torch.Tensor, mine: torch.Tensor, *, group: distributed.ProcessGroup | None) -> None:
    """What every rank of the group has as `mine`, one after the other, in `every`."""
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    gather(every, mine, group=group)

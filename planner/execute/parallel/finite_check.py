"""Whether gradients are finite, asked as each device tells it soonest."""

import math
from collections.abc import Sequence

import torch

from planner.execute.parallel.reduction import are_plain, gradients_in

MANY_BYTES = 2**20
"""Gradients of a host of which reading them takes longer than a call for each."""


def are_finite(grads: list[torch.Tensor], *, found: torch.Tensor, one: torch.Tensor, are_few: bool) -> bool:
    """Whether all numbers of all are: by one call, as torch.amp.GradScaler does it, but where it cannot take them.

    A sum is finite only if all that it adds up is: on a host it takes four fifths of that call, which also writes.
    `found`: a float to write to, on their device, 0 as it is left; `one`: 1 there;
    `are_few`: that they have fewer than `MANY_BYTES`.
    """
    if not are_few and found.device.type == "cpu" and _have_finite_sums(grads):
        return True
    try:
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, one)
    except RuntimeError:
        found.zero_()
        return all(bool(grad.isfinite().all()) for grad in gradients_in(grads))
    if not found.item():
        return True
    found.zero_()
    return False


def queue_finite_check(grads: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Whether all numbers of all are, as a flag on their device that nobody has waited for; None: it takes a loop.

    The greatest magnitude of finite numbers is finite and of others not. torch.amp's own check writes all gradients
    again, and on a card has no kernel for bfloat16 (2.11 to 2.13).
    """
    held = [grad for grad in grads if grad.numel()]
    if not held or not are_plain(held):
        return None
    return torch.stack(torch._foreach_norm(held, math.inf)).isfinite().all()


def _have_finite_sums(grads: list[torch.Tensor]) -> bool:
    """False says nothing: sums of finite numbers may overflow, and other kinds of numbers are not added up."""
    return are_plain(grads) and all(math.isfinite(grad.sum().item()) for grad in grads)

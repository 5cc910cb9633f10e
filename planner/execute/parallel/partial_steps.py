"""An optimizer's step, parameters together or in parts, as it is quickest in the memory there is: the same bit by bit.

The optimizers of torch step all parameters together on an accelerator (`foreach`), with one temporary for each: about
as much memory again as all weights. In parts they do the same in any order, with a part's memory. On a host they step
one after the other, which takes Python longer than few small ones together take as a whole.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn, optim

PARTS = 8
"""So many steps in place of one, or up to twice as many: a call takes the host some 0.2 ms."""

BY_PARAMETER = (
    optim.Adadelta, optim.Adagrad, optim.Adam, optim.AdamW, optim.Adamax, optim.ASGD, optim.NAdam, optim.RAdam,
    optim.RMSprop, optim.Rprop, optim.SGD,
)  # fmt: skip
"""Exactly these: others may count their steps, or look at all parameters."""


_TOGETHER = frozenset(BY_PARAMETER) - {optim.ASGD, optim.NAdam, optim.RAdam}
"""Those that give the same bits together as one after the other, of full floats."""
SMALL_BYTES = 2**22
"""Weights of a host that are stepped together: 53 of 0.9 MiB in all take 0.82 ms instead of 1.12, but 12 MiB twice as
long as one after the other, since temporaries leave the cache before they are used."""


def steps_by_parameter(optimizer: optim.Optimizer) -> bool:
    """Whether torch's own code alone is known to move each weight by itself: a hook may look at all of them."""
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return type(optimizer) in BY_PARAMETER and not hooks


class OptimizerStep:
    """Takes the steps of one optimizer: as it does itself, where somebody could tell the difference."""

    def __init__(self, optimizer: optim.Optimizer, *, is_accelerated: bool) -> None:
        self.optimizer, self.is_accelerated = optimizer, is_accelerated
        self._small: list[bool] = []
        """Per group whether its weights are few."""

    def take(self) -> None:
        """Update all weights from their gradients, as `optimizer.step` does."""
        groups, optimizer = self.optimizer.param_groups, self.optimizer
        if not steps_by_parameter(optimizer):
            with filled_groups(optimizer):
                optimizer.step()
        elif any(_steps_together(group, is_accelerated=self.is_accelerated) for group in groups):
            for part in _parts([each for group in groups for each in group["params"]]):
                with _only(optimizer, part):
                    optimizer.step()
        else:
            if len(self._small) != len(groups):
                self._small = [_is_small(group["params"]) for group in groups]
            small = zip(groups, self._small, strict=True) if type(optimizer) in _TOGETHER else ()
            self._step_together([group for group, is_small in small if is_small and _is_open(group)])

    def _step_together(self, groups: list[dict[str, Any]]) -> None:
        for group in groups:
            group["foreach"] = True
        try:
            self.optimizer.step()
        finally:
            for group in groups:
                group["foreach"] = None


@contextmanager
def filled_groups(optimizer: optim.Optimizer) -> Iterator[None]:
    """Meanwhile the optimizer has no empty groups: those of weights of other processes, which its author never saw."""
    groups = optimizer.param_groups
    whole = list(groups)
    groups[:] = [group for group in whole if group["params"]]
    try:
        yield
    finally:
        groups[:] = whole


def _is_small(parameters: Sequence[nn.Parameter]) -> bool:
    is_plain = all(type(each) is nn.Parameter and each.dtype in (torch.float32, torch.float64) for each in parameters)
    return is_plain and len(parameters) > 1 and sum(each.nbytes for each in parameters) <= SMALL_BYTES


def _is_open(group: dict[str, Any]) -> bool:
    """Whether nobody asked for anything else; a rate that is a tensor is not taken together."""
    is_asked = group.get("foreach", True) is not None or group.get("fused") or group.get("differentiable")
    return not is_asked and not isinstance(group.get("lr"), torch.Tensor)


def _steps_together(group: dict[str, Any], *, is_accelerated: bool) -> bool:
    foreach = group.get("foreach")
    return not group.get("fused") and (is_accelerated if foreach is None else bool(foreach))


def _parts(parameters: Sequence[nn.Parameter]) -> Iterator[set[int]]:
    """Identities of parameters in a row, of each part an eighth of all bytes, or one parameter."""
    sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
    part, held = set[int](), 0
    for parameter, size in zip(parameters, sizes, strict=True):
        if part and (held + size) * PARTS > sum(sizes):
            yield part
            part, held = set[int](), 0
        part.add(id(parameter))
        held += size
    if part:
        yield part


@contextmanager
def _only(optimizer: optim.Optimizer, part: set[int]) -> Iterator[None]:
    """Meanwhile the optimizer has these parameters alone."""
    whole = [group["params"] for group in optimizer.param_groups]
    try:
        for group, parameters in zip(optimizer.param_groups, whole, strict=True):
            group["params"] = [each for each in parameters if id(each) in part]
        yield
    finally:
        for group, parameters in zip(optimizer.param_groups, whole, strict=True):
            group["params"] = parameters

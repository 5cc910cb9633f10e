"""An optimizer's step in parts: torch's own take, on an accelerator, about as much memory again as all weights at once.

The optimizers of torch step all parameters together there (`foreach`), with one temporary for each. Parameter by
parameter they do the same in any order, so that some at a time give the same weights, bit by bit, and a part's memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn, optim

PARTS = 8
"""So many steps in place of one, or up to twice as many: a call takes the host some 0.2 ms."""

_BY_PARAMETER = (
    optim.Adadelta, optim.Adagrad, optim.Adam, optim.AdamW, optim.Adamax, optim.ASGD, optim.NAdam, optim.RAdam,
    optim.RMSprop, optim.Rprop, optim.SGD,
)  # fmt: skip
"""Exactly these: others may count their steps, or look at all parameters."""


def step_in_parts(optimizer: optim.Optimizer, *, is_accelerated: bool) -> None:
    """Take one step of the optimizer, in parts where that spares memory and nothing else tells it from one."""
    if not _is_divisible(optimizer, is_accelerated=is_accelerated):
        optimizer.step()
        return
    for part in _parts([each for group in optimizer.param_groups for each in group["params"]]):
        with _only(optimizer, part):
            optimizer.step()


def _is_divisible(optimizer: optim.Optimizer, *, is_accelerated: bool) -> bool:
    watched = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return (
        type(optimizer) in _BY_PARAMETER
        and not watched
        and any(_steps_together(group, is_accelerated=is_accelerated) for group in optimizer.param_groups)
    )


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

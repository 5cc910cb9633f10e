"""The step of torch's optimizers without what `Optimizer.step` does around it: 27 us of 193 that eight weights take.

Around it are a range for profilers, hooks, and breaks for compilers. Where one of them is in use nothing is left out.
"""

from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

_AROUND = frozenset({"wrapper", "_use_grad"})
"""Names of the functions that torch puts around, in the file of its base class."""


def find_bare_step(kind: type) -> Callable[[Any], Any] | None:
    """The step of a class of torch's optimizers, to be called without recording gradients; None where anything else
    is around it than what is known.
    """
    step: Any = getattr(kind, "step", None)
    while (inner := getattr(step, "__wrapped__", None)) is not None:
        code = step.__code__
        if code.co_name not in _AROUND or Path(code.co_filename) != Path(torch_optimizer.__file__):
            return None
        step = inner
    return step if isinstance(step, FunctionType) else None


def is_step_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether somebody could tell that its step was taken without what is around it: by a hook, a profiler, or a
    function in its place, as schedules put one there.
    """
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
        or "step" in optimizer.__dict__
        or torch._C._autograd._profiler_enabled()
    )

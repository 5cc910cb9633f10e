"""`kernel`, with types for its callers, and without numba the interpreter in its place.

Only searching for plans needs a compiler. A plain installation plays and verifies plans with the same functions,
interpreted: a hundred times slower, which for the 5,000 actions of a usual plan is a tenth of a second.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

if TYPE_CHECKING:
    int64 = int
else:
    int64 = numpy.int64
"""An integer in compiled code, where it has 64 bits; to who reads types it is one like any other."""

_compile: Callable[[Any], Any] | None
try:
    from solver_models.jit import kernel as _compile
except ModuleNotFoundError as missing:
    if missing.name not in ("llvmlite", "numba"):
        raise
    _compile = None


def kernel(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The compiled function (`solver_models.jit`), or the function itself where numba is not installed."""
    if _compile is None:
        return function
    compiled: Callable[Parameters, Result] = _compile(function)
    return compiled

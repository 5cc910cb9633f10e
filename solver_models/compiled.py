"""`kernel`, with types for its callers: numba compiles on the first call, the interpreter stands in where that is dear.

Only searching for plans needs a compiler. A plain installation plays and verifies plans with the same functions,
interpreted: a hundred times slower, which for the 5,000 actions of a usual plan is a tenth of a second. The one that
plays one plan only (`interpreting`) does the same, since numba takes longer to load.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import update_wrapper
from threading import RLock
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import numpy

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

if TYPE_CHECKING:
    int64 = int
else:
    int64 = numpy.int64
"""An integer in compiled code, where it has 64 bits; to who reads types it is one like any other."""

MOST_INTERPRETED = 5_000
"""Steps that a process interprets before it loads the compiler."""

_COMPILER = "solver_models.jit"

_is_interpreting = ContextVar("is_interpreting", default=False)
_lock = RLock()
_interpreted = 0


class _Kernel(Generic[Parameters, Result]):
    """A function, and what numba makes of it once that is asked for."""

    def __init__(self, function: Callable[Parameters, Result]) -> None:
        update_wrapper(self, function)
        self.function = function
        self._compiled: Any = None

    @property
    def dispatcher(self) -> Any:
        """The compiled function (`solver_models.jit`), or the function itself where numba is not installed."""
        if self._compiled is None:
            with _lock:
                self._compiled = self._compiled or _compile(self.function)
        return self._compiled

    @property
    def _numba_type_(self) -> Any:
        """The compiled function, so that other kernels may call this one."""
        return self.dispatcher._numba_type_

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        run: Callable[Parameters, Result] = self.function if _is_interpreting.get() else self.dispatcher
        return run(*args, **kwargs)


def kernel(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function, to be compiled when it is called."""
    return _Kernel(function)


@contextmanager
def interpreting(steps: int) -> Iterator[None]:
    """Interpret the kernels meanwhile, `steps` in all, until the compiler is there or would have been worth it."""
    global _interpreted
    _interpreted += steps
    token = _is_interpreting.set(_interpreted <= MOST_INTERPRETED and _COMPILER not in sys.modules)
    try:
        yield
    finally:
        _is_interpreting.reset(token)


def _compile(function: Callable[..., Any]) -> Any:
    try:
        from solver_models.jit import kernel as compile_kernel
    except ModuleNotFoundError as missing:
        if missing.name not in ("llvmlite", "numba"):
            raise
        return function
    return compile_kernel(function)

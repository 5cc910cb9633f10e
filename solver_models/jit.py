"""The decorator of every compiled function: cached on disk under the content of all sources that went into it.

numba names its caches after the place of the file, and notices when the file of a function changes but not when a
function that it calls does. Here every module has a folder named after its own source and the sources of all modules
of this package that it imports: never stale, and found by every clone.
"""

import hashlib
import importlib.util
import os
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

_CONFIG: Any = numba.config
_CONFIG.LOOP_VECTORIZE = 0
"""Loops of kernels run a few times each: vectorised, plays took two to three times as long."""

_LLVM: Any = llvm
_IMPORT = re.compile(rb"^\s*from (solver_models[.\w]*) import", re.MULTILINE)


@cache
def cache_folder() -> Path:
    """Where compiled functions are kept: in the user's cache folder, or in a temporary one if that is read-only."""
    base = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "pipeplan" / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(tempfile.gettempdir()) / f"pipeplan-{os.getuid()}" / folder.name


@cache
def _source(module: str) -> bytes:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_bytes()


@cache
def module_folder(module: str) -> Path:
    """The folder of one module's compiled functions."""
    reached, ahead = {module}, [module]
    while ahead:
        imported = {name.decode() for name in _IMPORT.findall(_source(ahead.pop()))}
        ahead += imported - reached
        reached |= imported
    target = _CONFIG.CPU_NAME or _LLVM.get_host_cpu_name()
    digest = hashlib.sha256(f"{numba.__version__} {target}".encode())
    for name in (module, *sorted(reached)):
        digest.update(_source(name))
    return cache_folder() / f"{module}-{digest.hexdigest()[:16]}"


class _ContentLocator(_CacheLocator):
    def __init__(self, module: str, line: int) -> None:
        self._module, self._line = module, line

    def get_cache_path(self) -> str:
        return str(module_folder(self._module))

    def get_source_stamp(self) -> str:
        return module_folder(self._module).name

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "_ContentLocator":
        del py_file
        return cls(py_func.__module__, py_func.__code__.co_firstlineno)


class _KernelFiles(CompileResultCacheImpl):
    _locator_classes = [_ContentLocator]  # noqa: RUF012


class _KernelCache(FunctionCache):
    _impl_class = _KernelFiles


def is_compiled() -> bool:
    """Whether kernels are compiled at all: NUMBA_DISABLE_JIT leaves them to the interpreter, for debugging."""
    return not _CONFIG.DISABLE_JIT


def kernel(function: Callable[..., Any]) -> Any:
    """`numba.njit`, cached on disk and without the interpreter lock, so that two searches run on two cores.

    numba compiles a function once more for every literal that a caller passes (`play(net, 0)`); here a literal is a
    value like any other.
    """
    if not is_compiled():
        return function
    make_cache: Any = _KernelCache
    compiled: Any = numba.njit
    as_value: Any = numba.types.unliteral
    dispatcher = compiled(nogil=True, no_cfunc_wrapper=True)(function)
    dispatcher._cache = make_cache(function)
    template = dispatcher.get_call_template

    def of_types(args: Any, keywords: Any) -> Any:
        return template(tuple(as_value(arg) for arg in args), {name: as_value(arg) for name, arg in keywords.items()})

    dispatcher.get_call_template = of_types
    return dispatcher

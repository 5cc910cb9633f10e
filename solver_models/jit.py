"""The decorator of every compiled function: cached on disk under the content of all sources that went into it.

numba names its caches after the place of the file, and notices when the file of a function changes but not when a
function that it calls does. Here every module has a folder named after its own source and the sources of all modules
of this package that it imports: never stale, and found by every clone.

numba copies the code of a function into every other that calls it, and optimises and stores it there once more. Here
that goes for small functions only: a large one is compiled once, and callers are linked to it when they are loaded.
"""

import fcntl
import hashlib
import importlib
import importlib.util
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import llvmlite.binding as llvm
import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.compiler_lock import global_compiler_lock
from numba.core.event import trigger_event
from numba.core.runtime.nrt import rtsys
from numba.extending import register_jitable
from numba.np import arrayobj

_CONFIG: Any = numba.config
_CONFIG.LOOP_VECTORIZE = 0
"""Loops of kernels run a few times each: vectorised, plays took two to three times as long."""

MOST_TAKEN_IN = 400
"""Instructions of the largest function whose code is copied into its callers. All kernels together compile in 140 CPU
seconds, in 238 if every one is copied; at 60 in as many, and plays per second are the same (`benchmarks.plays`)."""

_LLVM: Any = llvm
_NOTHING: Any = _LLVM.parse_assembly("")
_IMPORT = re.compile(rb"^\s*from (solver_models[.\w]*) import", re.MULTILINE)


@register_jitable
def _refuse_shapes(_source: Any, _slice: Any) -> None:
    """What does not fit its slice is refused without its shape: to name that, kernels would have to join strings."""
    raise ValueError("an array does not fit the slice that it is assigned to; report this")


arrayobj.raise_with_shape_context = _refuse_shapes


def _keep_index(context: Any, builder: Any, *given: Any) -> Any:
    kind, index, _ = given
    return context.cast(builder, index, kind, numba.types.intp)


@contextmanager
def _indices_kept() -> Iterator[None]:
    """Kernels count from the front alone: to ask of every index whether it is negative takes a tenth of a play.

    A negative one reads before the array; NUMBA_BOUNDSCHECK=1 refuses it. Whatever is no kernel wraps it as ever.
    """
    before, arrayobj.fix_integer_index = arrayobj.fix_integer_index, _keep_index
    try:
        yield
    finally:
        arrayobj.fix_integer_index = before


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


class _Callee(NamedTuple):
    """A large function, and where its code is on disk."""

    module: str
    name: str
    has_door: bool
    signature: Any

    def load(self, target_context: Any) -> None:
        """Bring its code into this process, if it is there."""
        function = getattr(importlib.import_module(self.module), self.name)
        function = getattr(function, "dispatcher", function)
        cache = function._cache if self.has_door else function.inner._cache
        cache.load_own(self.signature, target_context)


_callees: dict[str, tuple[_Callee, Any]] = {}
"""Large functions of this process by their symbols, each with what keeps its code in memory."""


class _EntryFiles(CompileResultCacheImpl):
    """What goes to disk: a function, and the large ones that have to be in memory before it is."""

    _locator_classes = [_ContentLocator]  # noqa: RUF012

    def reduce(self, cres: Any) -> Any:
        """The function as it is stored: whether it is large, the large ones it calls, what it defines, its code."""
        library = cres.library
        code = library._get_module_for_linking()
        blocks = code.get_function(cres.fndesc.llvm_func_name).blocks
        library.is_large = sum(1 for block in blocks for _ in block.instructions) > MOST_TAKEN_IN
        missing = [each.name for each in code.functions if each.is_declaration]
        called = {name: _callees[name][0] for name in missing if name in _callees}
        defined = {each.name for each in code.functions if not each.is_declaration}
        if library.is_large:  # nobody takes it in: of its code only the machine's is stored
            library._shared_module = _NOTHING
        return library.is_large, called, defined, super().reduce(cres)  # type: ignore[no-untyped-call]

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        """The function from what is stored; None, so that it is compiled again, if one that it calls is missing."""
        is_large, called, defined, reduced = payload
        for symbol, callee in called.items():
            if symbol not in _callees:
                callee.load(target_context)
            if symbol not in _callees:
                return None
        target_context.codegen()._engine._defined_symbols |= defined
        found = super().rebuild(target_context, reduced)  # type: ignore[no-untyped-call]
        found.library.is_large = is_large
        return found


class _InnerFiles(_EntryFiles):
    def get_filename_base(self, fullname: str, abiflags: str) -> str:
        return f"{super().get_filename_base(fullname, abiflags)}.inner"  # type: ignore[no-untyped-call]


class _EntryCache(FunctionCache):
    """Compiled functions on disk; what is missing there is compiled by one process while the others wait for it."""

    _impl_class = _EntryFiles
    _has_door = True
    _lock: IO[str] | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The function from disk; None if this process is to compile it, which then holds its lock."""
        found = self._load(sig, target_context)
        if found is None:
            self._acquire(sig)
            found = self._load(sig, target_context)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what this process has compiled."""
        super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        self._share_if_large(sig, data)

    def load_own(self, sig: Any, target_context: Any) -> Any:
        """The function from these files; None if it is not there."""
        found = None
        # memory that functions allocate; numba would import all that compiling needs first, a quarter of a second
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            found = self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        if found is not None:
            self._share_if_large(sig, found)
        return found

    def _share_if_large(self, sig: Any, compiled: Any) -> None:
        """Callers from now on leave the code of a large function where it is."""
        library = compiled.library
        if library.is_large:
            callee = _Callee(self._py_func.__module__, self._py_func.__qualname__, self._has_door, sig)
            _callees[compiled.fndesc.llvm_func_name] = callee, library

    def _load(self, sig: Any, target_context: Any) -> Any:
        return self.load_own(sig, target_context)

    def _acquire(self, sig: Any) -> None:
        folder = Path(self.cache_path)
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / f"{self._py_func.__qualname__}.lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with trigger_event("numba:compile", data={"waits_for": sig}):
                fcntl.flock(self._lock, fcntl.LOCK_EX)

    def release(self) -> None:
        """Let others compile the function, or find what was compiled."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class _InnerCache(_EntryCache):
    """Functions without a door for Python; those that have one serve as well."""

    _impl_class = _InnerFiles
    _has_door = False

    def __init__(self, function: Callable[..., Any], entries: _EntryCache) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._entries = entries

    def _load(self, sig: Any, target_context: Any) -> Any:
        return self._entries.load_own(sig, target_context) or self.load_own(sig, target_context)


def is_compiled() -> bool:
    """Whether kernels are compiled at all: NUMBA_DISABLE_JIT leaves them to the interpreter, for debugging."""
    return not _CONFIG.DISABLE_JIT


def kernel(function: Callable[..., Any]) -> Any:
    """`numba.njit`, cached on disk and without the interpreter lock, so that two searches run on two cores.

    What only other kernels call gets no door for Python, which takes longer to compile than many a kernel. numba
    compiles a function once more for every literal that a caller passes (`play(net, 0)`); here a literal is a value
    like any other.
    """
    if not is_compiled():
        return function
    entry_cache = _EntryCache(function)  # type: ignore[no-untyped-call]
    entry = _dispatcher(function, entry_cache)
    inner = _dispatcher(function, _InnerCache(function, entry_cache), no_cpython_wrapper=True)
    template_of, inner_template_of, overload_of = entry.get_call_template, inner.get_call_template, entry.get_overload
    as_value: Any = numba.types.unliteral

    def call_template(args: Any, keywords: Any) -> Any:
        values = tuple(as_value(arg) for arg in args)
        make = template_of if values in entry.overloads else inner_template_of
        return make(values, {name: as_value(arg) for name, arg in keywords.items()})

    def overload(args: Any) -> Any:
        return overload_of(args) if tuple(args) in entry.overloads else inner.get_overload(args)

    entry.get_call_template, entry.get_overload, entry.inner = call_template, overload, inner
    return entry


def _dispatcher(function: Callable[..., Any], cache: _EntryCache, **options: bool) -> Any:
    """What compiles a function, one process at a time."""
    compiled: Any = numba.njit
    dispatcher = compiled(nogil=True, no_cfunc_wrapper=True, **options)(function)
    dispatcher._cache = cache
    compile_one = dispatcher.compile

    def compile_once(sig: Any) -> Any:
        with global_compiler_lock:  # first of all: who holds a lock of a function must not wait for another thread
            try:
                with _indices_kept():
                    return compile_one(sig)
            finally:
                cache.release()

    dispatcher.compile = compile_once
    return dispatcher

"""What a command's exit code means, and which one a failure leads to: the only table of either."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

from planner.errors import ContradictionError, InfeasibleProblemError, NoPlanFoundError, PlanError


class Exit(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    """A verified plan, or whatever else was asked for."""
    INTERNAL = 1
    """Something broke that should not."""
    USAGE = 2
    """Bad usage or bad input."""
    INFEASIBLE = 3
    """Proved: no plan satisfies the limits."""
    GAP_MISSED = 4
    """The plan is written, but misses the gap that was asked for."""
    NOT_FOUND = 5
    """No plan was found within the limits, or the solver that was asked for failed."""
    REJECTED = 6
    """The verifier rejected a plan."""
    SERVER = 7
    """The service refused, failed or could not be reached."""
    INTERRUPTED = 130
    """Aborted by the second Ctrl+C, or before there was anything to save."""


class InputError(Exception):
    """The command was asked for something impossible; the message says what and how to mend it."""


@contextmanager
def as_input_errors() -> Iterator[None]:
    """What cannot be done for what was given is the user's to mend."""
    try:
        yield
    except ValueError as refusal:
        raise InputError(str(refusal)) from refusal


_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room there"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "check the path and its rights"),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST), "choose another path"),
}
"""By what a machine says of a place that takes no file, whatever wanted to write there."""


def render_os_error(error: OSError) -> str:
    """The file, the cause and what to do."""
    remedy = _REMEDIES.get(error.errno or 0, "check the path and its rights")
    return f"{error.filename or 'input'}: {error.strerror or error}; {remedy}"


class BrokenOffError(Exception):
    """A plan was delivered, but the search for it broke off; the message says why."""

    def __init__(self, text: str, *, code: Exit) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Exit code and message of a failed command."""

    code: Exit
    message: str
    """What the user reads, after `error: `."""


_EXTRAS = {
    "workers": ("dask", "distributed"),
    "solve": ("numba", "llvmlite", "ortools", "pulp", "highspy"),
    "torch": ("torch",),
    "mcp": ("mcp", "mcp_types", "httpx2"),
    "serve": ("fastapi", "uvicorn", "starlette", "prometheus_client"),
    "postgres": ("procrastinate", "psycopg"),
    "oidc": ("jwt",),
}
"""What may be left out of an installation, and the packages that are missing then."""


def _missing_extra(error: BaseException) -> str | None:
    """The extra whose packages a failed import was looking for, if it is one of ours."""
    root = (error.name or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return next((extra for extra, packages in _EXTRAS.items() if root in packages), None)


def describe_failure(error: BaseException) -> Failure:
    """Exit code and message of an exception that reached the command line."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, InputError | ContradictionError):
        return Failure(code=Exit.USAGE, message=text)
    if isinstance(error, BrokenOffError):
        return Failure(code=error.code, message=text)
    if type(error).__name__ == "ServerError":  # its module is not loaded for local commands
        is_input = getattr(error, "status", 0) in (400, 413, 422)
        return Failure(code=Exit.USAGE if is_input else Exit.SERVER, message=f"the server: {text}")
    if isinstance(error, InfeasibleProblemError):
        return Failure(code=Exit.INFEASIBLE, message=f"no plan can exist: {text}")
    if isinstance(error, NoPlanFoundError):
        return Failure(code=Exit.NOT_FOUND, message=f"no plan found: {text}")
    if isinstance(error, PlanError):
        return Failure(code=Exit.REJECTED, message=f"our own verifier rejected the plan: {text}; please report this")
    if extra := _missing_extra(error):
        message = f"{text}; this needs the extra {extra!r}: pip install 'pipeline-planner[{extra}]'"
        return Failure(code=Exit.USAGE, message=message)
    if isinstance(error, KeyboardInterrupt):
        return Failure(code=Exit.INTERRUPTED, message="interrupted")
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        return Failure(code=Exit.USAGE, message=render_os_error(error))
    if type(error).__name__ == "OperationalError" and ("unable to open" in text or "readonly" in text):  # SQLite's
        return Failure(code=Exit.USAGE, message=f"the store: {text}; check its folder (--data) and its rights")
    if isinstance(error, MemoryError):
        return Failure(code=Exit.INTERNAL, message="out of memory; use fewer microbatches, or merge layers")
    return Failure(
        code=Exit.INTERNAL,
        message=(
            f"internal error, not your fault: {type(error).__name__}: {text[:300]}; please report it with the command, "
            "its input and what `pipeplan --debug ...` prints"
        ),
    )

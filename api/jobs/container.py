"""How much memory this machine or container has, and who gets it: solvers, helpers, and the service itself."""

import os
from dataclasses import dataclass
from pathlib import Path

GIB = 2**30

SERVICE_BYTES = GIB // 2
"""What the service itself takes."""

MOST_BYTES = 4 * GIB
"""What a solver process gets where there is enough."""

LEAST_BYTES = GIB
"""With less a process cannot load what it needs and work."""

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Who gets how much, so that all together stay below the limit."""

    solver_bytes: int
    """Each solver process."""
    helper_bytes: int
    """Each process for checks and drawings."""
    num_helpers: int
    """How many of those there may be."""


def available_bytes(limits: tuple[str, ...] = _LIMITS) -> int:
    """The container's limit, or the machine's memory where that is less or there is none."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in limits:
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            found.append(int(text))
    return min(found)


def share_out(total_bytes: int, *, asked_bytes: int | None, num_solvers: int, num_helpers: int) -> Shares:
    """Solvers get what is asked for, or as much as there is up to `MOST_BYTES`; helpers share the rest.

    `num_helpers` is how many are wanted; none means a worker without doors. Raises ValueError if what is asked for
    does not fit.
    """
    reserved = SERVICE_BYTES + (LEAST_BYTES if num_helpers else 0)
    room = (total_bytes - reserved) // max(1, num_solvers)
    solver = min(MOST_BYTES, max(LEAST_BYTES, room)) if asked_bytes is None else asked_bytes
    if asked_bytes is not None and num_solvers * asked_bytes > total_bytes:
        raise ValueError(
            f"{num_solvers} solver processes of {asked_bytes / GIB:g} GiB do not fit into the "
            f"{total_bytes / GIB:.1f} GiB of this machine or container; give less, or fewer --workers"
        )
    rest = max(LEAST_BYTES, total_bytes - SERVICE_BYTES - num_solvers * solver)
    fitting = max(1, min(num_helpers, rest // LEAST_BYTES))
    return Shares(solver_bytes=solver, helper_bytes=min(MOST_BYTES, rest // fitting), num_helpers=fitting)

"""How much memory this machine or container has, and who gets it: solvers, helpers, and the service itself."""

import os
from dataclasses import dataclass
from pathlib import Path

GIB = 2**30

_SERVICE_BYTES = GIB // 2
"""Resident memory of the service without solver processes."""

MOST_BYTES = 4 * GIB
"""What a solver process gets where there is enough."""

LEAST_BYTES = GIB
"""With less a process cannot load what it needs and work: the least of a solver and of a helper."""

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

    `num_helpers` is how many are wanted; none means a worker without doors. Raises ValueError if service, solvers and
    one helper do not fit together.
    """
    reserved = _SERVICE_BYTES + (LEAST_BYTES if num_helpers else 0)
    room = max(0, total_bytes - reserved)
    share = room // max(1, num_solvers)
    solver = min(MOST_BYTES, max(LEAST_BYTES, share)) if asked_bytes is None else asked_bytes
    if reserved + num_solvers * solver > total_bytes:
        raise ValueError(_too_much(total_bytes, solver_bytes=solver, num_solvers=num_solvers, reserved_bytes=reserved))
    rest = max(LEAST_BYTES, total_bytes - _SERVICE_BYTES - num_solvers * solver)
    fitting = max(1, min(num_helpers, rest // LEAST_BYTES))
    return Shares(solver_bytes=solver, helper_bytes=min(MOST_BYTES, rest // fitting), num_helpers=fitting)


def _too_much(total_bytes: int, *, solver_bytes: int, num_solvers: int, reserved_bytes: int) -> str:
    """What is asked for, what there is, and what would fit."""
    room = total_bytes - reserved_bytes
    asked = f"{num_solvers} solver processes of {solver_bytes / GIB:g} GiB and " if num_solvers else ""
    own = f"{reserved_bytes / GIB:g} GiB for the service" + (" and a helper" if reserved_bytes > _SERVICE_BYTES else "")
    least = f"the container at least {(reserved_bytes + num_solvers * LEAST_BYTES) / GIB:g} GiB"
    if num_solvers and room // num_solvers >= LEAST_BYTES:
        remedy = f"give solvers at most {room // num_solvers * 100 // GIB / 100:g} GiB, or fewer --workers"
    elif room >= LEAST_BYTES:
        remedy = f"give at most {room // LEAST_BYTES} --workers, or {least}"
    else:
        remedy = f"give {least}"
    return f"{asked}{own} do not fit into the {total_bytes / GIB:.1f} GiB of this machine or container; {remedy}"

"""What a process that computes on a host does first: cores of its own, and a malloc that keeps what is freed."""

import os
from collections.abc import Mapping, Sequence

import torch

from planner.execute.run.core_groups import pin
from planner.execute.run.kept_memory import keep_freed_memory, release_freed_memory


def settle_on_host(*, pins: bool = True, keeps: bool = True) -> None:
    """To be called before torch computes; `pins`: whether it takes an equal part of the cores; `keeps`: whether freed
    memory stays with it, or large blocks go back to the host.
    """
    (keep_freed_memory if keeps else release_freed_memory)()
    if pins and hasattr(os, "sched_setaffinity"):
        usable = sorted(os.sched_getaffinity(0))
        if cores := own_cores(os.environ, usable=usable, num_threads=torch.get_num_threads()):
            pin(cores)


def own_cores(environment: Mapping[str, str], *, usable: Sequence[int], num_threads: int) -> tuple[int, ...]:
    """An equal part of the cores that all processes of a host may use, by what torchrun tells each of them.

    None where torchrun started nobody, or no other, and where a part would have fewer cores than a process has threads.
    Without it the kernel wakes a process that waited for a message on the core of the message's sender, behind whatever
    computes there: a Llama's middle stage began half of its actions 3 to 5 ms late, one round of the scheduler.
    """
    rank, count = environment.get("LOCAL_RANK", ""), environment.get("LOCAL_WORLD_SIZE", "")
    if not (rank.isdecimal() and count.isdecimal() and int(rank) < int(count) > 1):
        return ()
    size = len(usable) // int(count)
    return tuple(usable[int(rank) * size : (int(rank) + 1) * size]) if size >= num_threads else ()

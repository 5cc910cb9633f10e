"""Every partition and mapping that may still hold a plan below a threshold: the enumerated master."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from solver_models.instance import Integers
from solver_models.joint.tree import Space, find_cases
from solver_models.search import Searcher
from solver_models.stoppable import run_stoppable

FAR = 1 << 59
"""Above every objective."""

MAX_CASES = 100_000
"""Most cases that are listed."""

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCase:
    """One partition and mapping that may still hold the best plan."""

    floor: int
    """Ticks that no order of it beats."""
    stage_of: Integers
    """[L] stage of every layer."""
    groups: Groups
    """Devices per stage."""
    recompute: Integers
    """[S] 1 where the stage recomputes."""


def open_cases(
    searcher: Searcher,
    space: Space,
    *,
    threshold: int = FAR,
    most_nodes: int = 1_000_000,
    most_cases: int = MAX_CASES,
    should_stop: Callable[[], bool] | None = None,
) -> tuple[OpenCase, ...] | None:
    """The open cases below `threshold`, least floor first; None if there are too many, or if it was stopped.

    Of cases that differ only by a symmetry of the devices, one is listed.
    """
    _load(searcher, space)
    stop = np.zeros(1, np.int64)
    found = run_stoppable(
        lambda: find_cases(
            searcher.layers, searcher.rules, searcher.instance.pinned, space, searcher.by_span, threshold, most_nodes,
            most_cases, stop,
        ),
        stop=lambda: stop.fill(1),
        should_stop=should_stop,
    )  # fmt: skip
    if found is None or stop[0] or found[1] >= most_nodes:
        return None
    return _read(searcher, space, table=found[0])


def _load(searcher: Searcher, space: Space) -> None:
    """Have the tree compiled, or loaded from disk, here: a thread that does it can neither be stopped nor left behind.

    One that was left behind at the end of the process brought it down, and the next process compiled again.
    """
    find_cases(
        searcher.layers, searcher.rules, searcher.instance.pinned, space, searcher.by_span, 0, 1, 1,
        np.ones(1, np.int64),
    )  # fmt: skip


def _read(searcher: Searcher, space: Space, *, table: Integers) -> tuple[OpenCase, ...]:
    num_layers = len(searcher.instance.state)
    most_stages = (table.shape[1] - 1 - num_layers) // 2
    cases = []
    for row in table[np.argsort(table[:, 0], kind="stable")]:
        chosen = row[num_layers + 1 : num_layers + 1 + most_stages]
        num_stages = int(np.sum(chosen >= 0))
        groups = tuple(tuple(space.group[g, : space.group_size[g]].tolist()) for g in chosen[:num_stages])
        flags = row[num_layers + 1 + most_stages :][:num_stages].copy()
        stage_of = row[1 : num_layers + 1].copy()
        cases.append(OpenCase(floor=int(row[0]), stage_of=stage_of, groups=groups, recompute=flags))
    return tuple(cases)

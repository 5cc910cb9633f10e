"""Every partition and mapping that may still hold a plan below a threshold: the enumerated master."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from solver_models.instance import Integers
from solver_models.joint.space import make_space
from solver_models.joint.tree import Space, find_cases
from solver_models.search import Searcher
from solver_models.stoppable import run_stoppable

FAR = 1 << 59
"""Above every objective."""

FIRST_NODES, MAX_NODES, MAX_CASES = 300_000, 20_000_000, 200_000
"""Nodes looked at before it is asked whether the search pays; nodes and cases at which the threshold is lowered."""

MAX_HALVINGS = 6
"""Thresholds tried where there are too many cases below the first one."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCases:
    """What is open."""

    threshold: int
    """Whatever is not among the cases, nor alike to one of them, takes at least so many ticks."""
    cases: tuple[OpenCase, ...]
    """Least floor first; of cases that differ only by a symmetry of the devices, one."""


def open_cases(
    searcher: Searcher,
    *,
    threshold: int = FAR,
    least: int = 0,
    most_nodes: int = MAX_NODES,
    most_cases: int = MAX_CASES,
    should_stop: Callable[[], bool] | None = None,
) -> OpenCases | None:
    """The open cases below `threshold`, or below the largest one towards `least` that leaves few enough to list.

    None if the problem is too large for that, or if it was stopped.
    """
    space = make_space(searcher.instance)
    if space is None:
        return None
    limit = min(FIRST_NODES, most_nodes)
    for _ in range(MAX_HALVINGS + 1):
        stop = np.zeros(1, np.int64)
        found = run_stoppable(
            lambda threshold=threshold, limit=limit, stop=stop: find_cases(  # type: ignore[misc]
                searcher.layers, searcher.rules, searcher.instance.pinned, space, searcher.by_span, threshold, limit,
                most_cases, stop,
            ),
            stop=lambda stop=stop: stop.__setitem__(0, 1),  # type: ignore[misc]
            should_stop=should_stop,
        )  # fmt: skip
        if found is None or stop[0]:
            return None
        table, nodes = found
        if nodes < limit and len(table) <= most_cases:
            return OpenCases(threshold=threshold, cases=_read(searcher, space, table))
        if nodes >= limit and limit < most_nodes and len(table) < most_cases and _pays(searcher):
            limit = most_nodes
        else:
            threshold = (threshold + max(least, 0)) // 2
    return None


def _pays(searcher: Searcher) -> bool:
    """Whether more than a glance may be spent: large problems are never closed this way."""
    return len(searcher.instance.state) <= 24 and len(searcher.instance.capacity) <= 8


def _read(searcher: Searcher, space: Space, table: Integers) -> tuple[OpenCase, ...]:
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

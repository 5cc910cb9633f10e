"""Every partition and mapping that may still hold a plan below a threshold: the enumerated master."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from solver_models.instance import Integers
from solver_models.interruptible import run_stoppable
from solver_models.joint.partition_enumeration import Space, Tree, TreeLimits, find_cases
from solver_models.local_search.search import LATEST, Searcher
from solver_models.local_search.task_window import TaskWindow

_MAX_CASES = 100_000
"""Open cases that are listed, at most."""
_PARTS = 16
"""Parts of the tree that may be searched side by side."""
_LARGEST_PART = 0.25
"""How much of all nodes one of them may have."""

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCase:
    """One partition and mapping that may still hold the best plan."""

    lower_bound: int
    """Ticks that no order of it beats."""
    stage_of: Integers
    """[L] stage of every layer."""
    groups: Groups
    """Devices per stage."""
    modes: Integers
    """[S] bits as in `columns`: whether a stage recomputes, and whether its replicas shard."""


def open_cases(
    searcher: Searcher,
    space: Space,
    *,
    threshold: int = LATEST,
    most_nodes: int = 1_000_000,
    most_cases: int | None = None,
    should_stop: Callable[[], bool] | None = None,
    window: TaskWindow | None = None,
) -> tuple[OpenCase, ...] | None:
    """The open cases below `threshold`, least lower bound first; None if there are too many, or if it was stopped.

    Of cases that differ only by a symmetry of the devices, one is listed; there may be `most_cases` (None: as many as
    memory has room for). All parts of the tree together may have `most_nodes`, and each a part of them; so it does not
    depend on threads whether that is enough.
    """
    _load(searcher, space)
    most_cases = _MAX_CASES if most_cases is None else most_cases
    tree, stop, looked_at = _tree(searcher, space, threshold=threshold), np.zeros(1, np.int64), [0] * _PARTS
    most_of_part = max(1, int(_LARGEST_PART * most_nodes))

    def search(number: int) -> Integers:
        share = np.array([number, _PARTS], np.int64)
        limits = TreeLimits(most_nodes=most_of_part, most_cases=most_cases, share=share, stop=stop)
        table, looked_at[number] = find_cases(tree, limits)
        if looked_at[number] >= most_of_part or sum(looked_at) >= most_nodes:
            stop[0] = 1  # then nobody wants what the others find
        return np.array(table, np.int64)

    run = (window or TaskWindow()).map
    found = run_stoppable(lambda: run(search, range(_PARTS)), stop=lambda: stop.fill(1), should_stop=should_stop)
    if found is None or stop[0] or sum(map(len, found)) > most_cases:
        return None
    return _read(searcher, space, table=np.concatenate(found))


def _tree(searcher: Searcher, space: Space, *, threshold: int) -> Tree:
    """What every part of the tree is searched for."""
    return Tree(
        layers=searcher.layers,
        rules=searcher.rules,
        pinned=searcher.instance.pinned,
        space=space,
        by_span=searcher.by_span,
        threshold=threshold,
    )


def _load(searcher: Searcher, space: Space) -> None:
    """Have the tree compiled, or loaded from disk, here: a thread that does it can neither be stopped nor left behind.

    One that was left behind at the end of the process brought it down, and the next process compiled again.
    """
    share, stop = np.array([0, 1], np.int64), np.ones(1, np.int64)
    limits = TreeLimits(most_nodes=1, most_cases=1, share=share, stop=stop)
    find_cases(_tree(searcher, space, threshold=0), limits)


def _read(searcher: Searcher, space: Space, *, table: Integers) -> tuple[OpenCase, ...]:
    num_layers = searcher.instance.num_layers
    most_stages = (table.shape[1] - 1 - num_layers) // 2
    cases = []
    for row in table[np.argsort(table[:, 0], kind="stable")]:
        chosen = row[num_layers + 1 : num_layers + 1 + most_stages]
        num_stages = int(np.sum(chosen >= 0))
        groups = tuple(tuple(space.group[g, : space.group_size[g]].tolist()) for g in chosen[:num_stages])
        flags = row[num_layers + 1 + most_stages :][:num_stages].copy()
        stage_of = row[1 : num_layers + 1].copy()
        cases.append(OpenCase(lower_bound=int(row[0]), stage_of=stage_of, groups=groups, modes=flags))
    return tuple(cases)

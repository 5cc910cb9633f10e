"""Partitions and mappings one step from a given one, all of them, in a fixed order.

The joint search draws its steps (`neighbourhood`); where every step counts they are listed. Whether a neighbour keeps
the rules is asked of `Searcher.is_allowed`.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product

import numpy as np

from solver_models.instance import Integers
from solver_models.local_search.search import Candidate

Groups = tuple[tuple[int, ...], ...]

Layout = tuple[Integers, Groups, Integers]
"""Stage of every layer [L], holders of every stage, and mode of every stage [S] (`Candidate`)."""


def layout_of(candidate: Candidate) -> Layout:
    """Stages, devices and modes of a candidate as a layout."""
    return candidate.stage_of, candidate.groups, candidate.modes


def key_of(layout: Layout) -> tuple[bytes, Groups, bytes]:
    """Equal for equal layouts only."""
    stage_of, groups, modes = layout
    return stage_of.tobytes(), groups, modes.tobytes()


def neighbours(layout: Layout, *, holders: Sequence[int]) -> Iterator[Layout]:
    """Fewer replicas and stages first, which move least; `holders`: what may hold a stage that holds none yet."""
    yield from _without_replica(layout)
    yield from _merged(layout)
    yield from _with_border_moved(layout)
    yield from _on_other_holders(layout, holders)
    yield from _with_replica(layout, holders)
    yield from _split(layout, holders)


def _without_replica(layout: Layout) -> Iterator[Layout]:
    """One replica of a stage less."""
    stage_of, groups, modes = layout
    for number, group in enumerate(groups):
        for index in range(len(group)) if len(group) > 1 else ():
            yield stage_of, _with_group(groups, number, group=group[:index] + group[index + 1 :]), modes


def _with_replica(layout: Layout, holders: Iterable[int]) -> Iterator[Layout]:
    """One replica of a stage more, behind the others."""
    stage_of, groups, modes = layout
    for number, group in enumerate(groups):
        for holder in holders:
            if holder not in group:
                yield stage_of, _with_group(groups, number, group=(*group, holder)), modes


def _on_other_holders(layout: Layout, holders: Iterable[int]) -> Iterator[Layout]:
    """One replica elsewhere; where that holder has another stage, the two change places as well."""
    stage_of, groups, modes = layout
    for number, group in enumerate(groups):
        for index, other in product(range(len(group)), holders):
            if other not in group:
                moved = (*group[:index], other, *group[index + 1 :])
                yield stage_of, _with_group(groups, number, group=moved), modes
    used = sorted({holder for group in groups for holder in group})
    for one, other in combinations(used, 2):
        to = {one: other, other: one}
        yield stage_of, tuple(tuple(to.get(each, each) for each in group) for group in groups), modes


def _merged(layout: Layout) -> Iterator[Layout]:
    """Two neighbouring stages as one, where either of them was."""
    stage_of, groups, modes = layout
    for number in range(len(groups) - 1):
        joined = np.where(stage_of > number, stage_of - 1, stage_of)
        for kept in (number, number + 1):
            yield (
                joined,
                (*groups[:number], groups[kept], *groups[number + 2 :]),
                np.delete(modes, number + number + 1 - kept),
            )


def _with_border_moved(layout: Layout) -> Iterator[Layout]:
    """A layer at the border of a stage in the stage before or behind."""
    stage_of, groups, modes = layout
    for number in range(len(groups) - 1):
        before, behind = np.flatnonzero(stage_of == number), np.flatnonzero(stage_of == number + 1)
        if len(before) > 1:
            yield _with_layer(stage_of, before[-1], stage=number + 1), groups, modes
        if len(behind) > 1:
            yield _with_layer(stage_of, behind[0], stage=number), groups, modes


def _split(layout: Layout, holders: Iterable[int]) -> Iterator[Layout]:
    """A stage in two, either of which goes to one more holder or to one of the stage's own replicas."""
    stage_of, groups, modes = layout
    for number, group in enumerate(groups):
        inside = np.flatnonzero(stage_of == number)
        pairs = [pair for holder in holders for pair in ((group, (holder,)), ((holder,), group))]
        if len(group) > 1:
            parts = [(group[:index] + group[index + 1 :], (own,)) for index, own in enumerate(group)]
            pairs += [pair for one, other in parts for pair in ((one, other), (other, one))]
        for cut in range(1, len(inside)):
            later = stage_of + (stage_of > number)
            later[inside[cut:]] = number + 1
            for one, other in pairs:
                yield (
                    later,
                    (*groups[:number], one, other, *groups[number + 1 :]),
                    np.insert(modes, number, modes[number]),
                )


def _with_group(groups: Groups, number: int, *, group: tuple[int, ...]) -> Groups:
    return (*groups[:number], group, *groups[number + 1 :])


def _with_layer(stage_of: Integers, layer: int, *, stage: int) -> Integers:
    changed = stage_of.copy()
    changed[layer] = stage
    return changed

"""Partitions and mappings one step away: tests of solver_models/starts/layout_neighbours.py."""

import numpy as np

from solver_models.starts.layout_neighbours import Layout, key_of, neighbours


def layout(stage_of: list[int], groups: tuple[tuple[int, ...], ...]) -> Layout:
    """Without modes."""
    return np.array(stage_of), groups, np.zeros(len(groups), np.int64)


def words(found: Layout) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """As plain numbers."""
    return tuple(found[0].tolist()), found[1]


def test_all_steps_of_a_small_layout():
    """Tests that three layers in two stages, with one holder to spare, have the neighbours of a list by hand."""
    found = [words(each) for each in neighbours(layout([0, 0, 1], ((0,), (1,))), holders=[2])]
    stays = (0, 0, 1)
    assert found == [
        ((0, 0, 0), ((0,),)),
        ((0, 0, 0), ((1,),)),
        ((0, 1, 1), ((0,), (1,))),
        (stays, ((2,), (1,))),
        (stays, ((0,), (2,))),
        (stays, ((1,), (0,))),
        (stays, ((0, 2), (1,))),
        (stays, ((0,), (1, 2))),
        ((0, 1, 2), ((0,), (2,), (1,))),
        ((0, 1, 2), ((2,), (0,), (1,))),
    ]


def test_steps_keep_layouts_sound():
    """Tests that stages stay numbered without gaps, hold layers, have a mode each, and that none stays where it is."""
    start = layout([0, 0, 1, 1, 2], ((0, 3), (1,), (2,)))
    for stage_of, groups, modes in neighbours(start, holders=[4, 5]):
        assert sorted(set(stage_of.tolist())) == list(range(len(groups)))
        assert len(modes) == len(groups)
        assert all(groups)
        assert key_of((stage_of, groups, modes)) != key_of(start)

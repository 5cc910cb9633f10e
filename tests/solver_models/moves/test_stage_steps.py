"""Stages cut in two, and two made one: tests of solver_models/moves/stage_steps.py."""

import numpy as np
import pytest

from solver_models.moves.stage_steps import cut_layers, merge_two

STAGE_OF = np.array([0, 0, 1, 1, 1, 2])
STAGES = STAGE_OF, np.array([0, 1, 3, 4]), np.array([7, 8, 9, 8]), np.array([0, 1, 2])
"""Three stages: on 7, on 8 and 9, on 8."""


@pytest.mark.parametrize(("s", "cut", "expected"), [(0, 1, [0, 1, 2, 2, 2, 3]), (1, 2, [0, 0, 1, 1, 2, 3])])
def test_a_stage_is_cut(s: int, cut: int, expected: list[int]):
    """Tests that its first layers stay, the others are the next stage, and later stages move up."""
    assert cut_layers(STAGE_OF, s, cut).tolist() == expected


@pytest.mark.parametrize(
    ("s", "keep", "start", "devices", "modes"),
    [
        (0, (True, False), [0, 1, 2], [7, 8], [0, 2]),
        (0, (False, True), [0, 2, 3], [8, 9, 8], [0, 2]),
        (0, (True, True), [0, 3, 4], [7, 8, 9, 8], [0, 2]),
        (1, (True, True), [0, 1, 3], [7, 8, 9], [0, 1]),
    ],
)
def test_two_stages_become_one(s: int, keep: tuple[bool, bool], start: list[int], devices: list[int], modes: list[int]):
    """Tests that the devices of either or both are kept, each once, with the mode of the first."""
    merged = merge_two(STAGES, s, *keep)
    assert merged[0].tolist() == (STAGE_OF - (s < STAGE_OF)).tolist()
    assert [each.tolist() for each in merged[1:]] == [start, devices, modes]

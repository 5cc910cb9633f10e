"""Tests of planner/option_values.py."""

from typing import get_args

from planner.export.targets import TARGETS
from planner.option_values import LayoutTarget, Objective, RankingTime, TargetName, ranked_by
from planner.recipes.layout_texts import TEXTS


def test_every_program_that_can_be_named_is_there():
    """Tests that the command line offers the programs that plans and layouts can be made for, and no others."""
    assert (tuple(TARGETS), tuple(TEXTS)) == (get_args(TargetName), get_args(LayoutTarget))


def test_every_objective_ranks_by_a_time():
    """Tests that no objective is taken for another one: each says by which time it ranks plans."""
    assert {ranked_by(each) for each in get_args(Objective)} == set(get_args(RankingTime))

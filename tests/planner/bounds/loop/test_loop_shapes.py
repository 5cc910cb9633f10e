"""Tests of planner/bounds/loop/loop_shapes.py."""

from dataclasses import replace

from benchmarks.layouts import read_problem
from planner.bounds.loop import loop_shapes
from planner.bounds.minimum_costs import Least
from planner.layout.costs import CostModel


def test_which_loops_there_are():
    """Tests that loops on most ranks come first, with what is in flight, and are the only ones if all are used."""
    problem = read_problem("deepseek-v3", ranks=16)
    least = Least(problem, CostModel(problem))
    (layers,) = loop_shapes.open_kinds(least)
    one, several = loop_shapes.shapes_of(least, layers.kind)[:2]
    assert (one.ranks, several.ranks) == (16, 16)
    assert [*one.numbers_of_chunks(least), *several.numbers_of_chunks(least)] == [1, 2, 3, 4]
    assert one.flying(64).tolist() == [*range(16, 0, -1)]
    assert several.flying(64).tolist() == [16] * 8 + [15, 13, 11, 9, 7, 5, 3, 1]
    fewer = replace(problem, options=replace(problem.options, idle_devices=False))
    assert loop_shapes.shapes_of(Least(fewer, CostModel(fewer)), layers.kind) == [one, several]
    assert loop_shapes.num_ranks(Least(fewer, CostModel(fewer)), [layers]) == 32

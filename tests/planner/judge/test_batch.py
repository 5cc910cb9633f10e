"""Tests of planner/judge/batch.py."""

from dataclasses import replace
from random import Random

from planner.judge.batch import _at
from profiles.microbatch_sizes import profile_at
from tests.planner.layer_kinds import with_kinds
from tests.strategies import random_problem


def test_kinds_grow_with_the_samples():
    """Tests that at another size of microbatches core and judge read the same bytes of every kind."""
    rng = Random(5)
    for _ in range(20):
        problem = with_kinds(rng, random_problem(rng))
        profile = replace(problem.profile, microbatch_size=problem.profile.microbatch_size or 4)
        for size in (1, 3, 24):
            read = [layer.recompute_kinds for layer in _at(profile, size).layers]
            assert read == [layer.recompute_kinds for layer in profile_at(profile, size).layers]


def test_workspaces_grow_but_for_a_part():
    """Tests that core and judge read the same workspace at another size of microbatches."""
    rng = Random(6)
    for _ in range(20):
        problem = random_problem(rng)
        layers = tuple(
            replace(layer, workspace_bytes=layer.workspace_bytes + 7, fixed_workspace_bytes=rng.randint(0, 7))
            for layer in problem.profile.layers
        )
        profile = replace(problem.profile, layers=layers, microbatch_size=problem.profile.microbatch_size or 4)
        for size in (1, 3, 24):
            read = [layer.workspace_bytes for layer in _at(profile, size).layers]
            assert read == [layer.workspace_bytes for layer in profile_at(profile, size).layers]

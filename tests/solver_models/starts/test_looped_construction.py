"""Cuts for pipelines whose order of actions is fixed: tests of solver_models/starts/looped_construction.py."""

from random import Random

import numpy
import pytest

from planner.simulation.simulate import simulate
from planner.verify import verify
from solver_models.moves.annealing import Cooling
from solver_models.starts.looped_construction import anneal_cut
from tests.planner.planning.starts.test_looped_layouts import every_cut, plan_with, random_loop, search_of

AS_IT_IS = Cooling(steps=0, first=1.0, last=1.0, seed=0)


@pytest.mark.parametrize("seed", range(6))
def test_order_and_memory_are_those_of_the_simulator(seed: int):
    """Tests that a cut's compiled makespan is the simulator's, and that it fits exactly if the verifier says so."""
    rng = Random(seed)
    problem = random_loop(rng, num_layers=7, memory=rng.choice([2**40, 30, 45]))
    for shape in search_of(problem).shapes:
        cuts = every_cut(7, len(shape.cut) - 1)
        for cut in rng.sample(cuts, min(len(cuts), 8)):
            plan = plan_with(problem, cut)
            missing, value = anneal_cut(shape.loop, numpy.array(cut), len(shape.ranks), AS_IT_IS)
            rules = {violation.rule for violation in verify(problem, plan).violations}
            assert (missing > 0) == ("memory-exceeded" in rules)
            if missing == 0:
                assert value == simulate(problem, plan).makespan_ns

"""Tests of solver_models/starts/recomputing_cuts.py."""

import numpy as np

from planner.layout.costs import CostModel
from planner.lowering import (
    make_instance,
)
from solver_models.starts.recomputing_cuts import RecomputingCuts
from tests.strategies import with_memory


def test_cuts_are_balanced_with_their_recomputation():
    """Tests that the first stage, which holds the most microbatches and has to recompute, is given fewer layers."""
    from tests.planner.decisions.recompute_layers.test_option import tight_chain

    problem = tight_chain(recompute=True, recompute_layers=True)
    problem = with_memory(problem, {device.name: 1000 for device in problem.cluster.devices})
    cuts = list(RecomputingCuts(make_instance(problem, CostModel(problem)), precision=200).cuts(most=3))
    assert cuts
    assert all(np.all(np.diff(cut) >= 0) and cut[-1] == 3 for cut in cuts)

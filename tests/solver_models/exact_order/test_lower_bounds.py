"""The schedule bound, compiled: tests of solver_models/exact_order/lower_bounds.py."""

from dataclasses import replace
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bounds.order.joint_memory_limit import HeldTogether
from planner.bounds.order.schedule_bound import HeadsAndTails
from planner.evidence.certificate import schedule_bound
from solver_models.exact_order.lower_bounds import schedule_lower_bound
from solver_models.joint.search_space import make_space
from solver_models.joint.subproblems import OpenCase, open_cases
from solver_models.local_search.search import LATEST, Searcher
from tests.long_runs import examples
from tests.solver_models.every_order import enumerate_orders
from tests.solver_models.nets import Case, random_case

randoms = st.randoms(use_true_random=False)


def listed(searcher: Searcher, *, threshold: int = LATEST) -> tuple[OpenCase, ...]:
    """The cases below a threshold."""
    space = make_space(searcher.instance)
    assert space is not None
    found = open_cases(searcher, space, threshold=threshold)
    assert found is not None
    return found


@settings(max_examples=examples(30))
@given(randoms)
def test_floors_hold_for_every_order(rng: Random):
    """Tests that no order of a case beats its floor, and that cases that do not fit into memory are gone."""
    problem = random_case(rng, is_tight=True, num_layers=3, num_devices=2, num_microbatches=2).problem
    problem = replace(problem, options=replace(problem.options, max_stages_per_device=2))
    searcher = Case(problem, ()).searcher
    cases = listed(searcher)
    for case in rng.sample(cases, min(20, len(cases))):
        candidate = searcher.rate(case.stage_of, case.groups, modes=case.modes)
        assert not candidate.is_feasible or candidate.objective >= case.lower_bound
        is_done, best = enumerate_orders(searcher, candidate, threshold=LATEST, most_orders=500, most_plays=5000)
        if is_done and best is not None:
            assert case.lower_bound <= best.objective
            assert best.sort_key <= candidate.sort_key


FLOOR = HeldTogether.lower_bound


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(randoms)
def test_compiled_floor_is_the_schedule_bound(rng: Random):
    """Tests that the compiled schedule bound is at least the planner's, and equal to it where every stage has a W.

    What two stages of one device hold of the same microbatches is the planner's alone, and only raises its bound; so is
    what more than two have room for together.
    """
    case = random_case(rng, is_tight=rng.random() < 0.5)
    if case.problem.options.objective == "makespan":
        floor = int(schedule_lower_bound(case.net, LATEST))
        has_many = np.diff(case.net.device_start).max() > 2
        with (
            patch.object(HeadsAndTails, "_within", return_value=[]),
            patch.object(
                HeldTogether, "lower_bound", lambda *given, **times: 0 if has_many else FLOOR(*given, **times)
            ),
        ):
            bound = schedule_bound(case.problem, case.stages, costs=case.costs)
        assert floor >= bound
        assert floor == bound or has_many or not np.all(case.net.has_weight)
        assert schedule_bound(case.problem, case.stages, costs=case.costs) >= bound

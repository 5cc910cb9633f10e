"""Problems of which one is answered: as good as each by itself, with a bound that holds for all."""

from dataclasses import replace

import pytest

from planner.errors import InfeasibleProblemError
from planner.planning import Limits
from planner.planning.runs.alternatives import make_best_plan
from planner.problem import Problem
from planner.verify import verify
from tests.planner.builders import make_layer, make_link, make_problem
from tests.planner.hasty import make_plan

QUICK = Limits(time_limit_s=60, max_rounds=1, threads=1)


def two_devices(forward: int, **fields: int) -> Problem:
    layers = [make_layer(f"l{i}", (forward, 10, 10), **fields) for i in range(4)]
    problem = make_problem(layers, [make_link("a b")], num_microbatches=4)
    return replace(problem, options=replace(problem.options, max_replicas=1))


def test_the_shortest_of_all():
    """Tests that the plan is the best of any problem, verified against its own, and no shorter than any bound."""
    problems = {"slow": two_devices(40), "quick": two_devices(10), "middling": two_devices(20)}
    best = make_best_plan(problems, limits=QUICK)
    assert best.name == "quick"
    assert verify(problems["quick"], best.plan).passed
    assert best.plan.evidence is not None
    alone = make_plan(problems["quick"], limits=QUICK)
    assert alone.evidence is not None
    assert best.plan.evidence.makespan_ns == alone.evidence.makespan_ns
    assert best.lower_bound_ns is not None
    found = [make_plan(problem, limits=QUICK).evidence for problem in problems.values()]
    assert best.lower_bound_ns == min(each.lower_bound_ns for each in found if each is not None)
    assert best.lower_bound_ns <= min(each.makespan_ns for each in found if each is not None)


def test_what_cannot_fit():
    """Tests that a problem that nothing fits takes no part, and that none at all is refused."""
    full = two_devices(1, state_bytes=2**49)
    best = make_best_plan({"full": full, "slow": two_devices(40)}, limits=QUICK)
    assert best.name == "slow"
    assert best.lower_bound_ns is not None
    with pytest.raises(InfeasibleProblemError, match="no plan fits"):
        make_best_plan({"full": full, "as full": full}, limits=QUICK)

"""Queues on links: what one device sends takes turns, and nothing is claimed of it that orders do not keep to."""

from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.lowering import make_schedule_instance
from solver_models.schedule.solve import solve_order
from solver_models.simulation.evaluator import FAR
from tests.long_runs import examples
from tests.planner.builders import make_edge, make_layer, make_link, make_problem
from tests.planner.eager_plans import diamond_stages, queued_problem, queued_stages
from tests.solver_models.every_order import enumerate_orders
from tests.solver_models.nets import Case

MANY = 100_000
"""More nodes than any of these cases needs."""


def optimum_of(case: Case) -> int | None:
    """The least makespan of all orders; None if they are too many."""
    is_done, best = enumerate_orders(
        case.searcher, case.candidate(), threshold=FAR, most_orders=2_000, most_plays=400_000
    )
    return best.objective if is_done and best is not None else None


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 2))
def test_orders_of_what_queues_are_searched_to_the_end(rng: Random, num_microbatches: int):
    """Tests that where transfers queue the search ends with the best of all orders, and finds none below."""
    problem = queued_problem(rng, num_microbatches=num_microbatches)
    case = Case(problem, queued_stages(rng, problem))
    optimum = optimum_of(case)
    assume(optimum is not None)
    assert optimum is not None
    for threshold in (FAR, optimum + 1, optimum):
        is_closed, best = case.searcher.sequence(case.candidate(), threshold=threshold, most_nodes=MANY)
        assert is_closed
        assert (None if best is None else best.objective) == (optimum if optimum < threshold else None)


def served_second() -> Case:
    """The longer branch of a diamond gets its input second."""
    layers = [make_layer(name, (9, 9, 0) if name == "r" else (1, 1, 0)) for name in "pqrs"]
    edges = [
        make_edge(ends, num_bytes=10 if "p" in ends else 1, gradient_bytes=1) for ends in ("p q", "p r", "q s", "r s")
    ]
    problem = make_problem(layers, [make_link("a b")], edges=edges, max_replicas=1)
    return Case(problem, diamond_stages())


def test_what_one_action_sends_goes_in_the_order_of_edges():
    """Tests that one node closes a case, and CP-SAT says the same, where the longer branch is served second."""
    case = served_second()
    optimum = optimum_of(case)
    assert optimum is not None
    assert case.searcher.sequence(case.candidate(), threshold=optimum, most_nodes=1) == (True, None)
    result = solve_order(make_schedule_instance(case.problem, case.stages, costs=case.costs))
    assert (result.status, result.objective) == ("optimal", optimum)

"""Orders of the complete model where actions take no time: tests of solver_models/complete/timetable.py."""

from itertools import combinations, pairwise, permutations

import pytest

from planner.layout.costs import CostModel
from planner.planning.complete.complete_search import ask
from solver_models.complete.complete_model import CompleteModel
from solver_models.complete.solver_answer import SolverAnswer
from solver_models.complete.with_cp_sat import solve_with_cp_sat
from solver_models.instance import FORWARD
from tests.planner.builders import make_edge, make_layer, make_link, make_problem


def instant_model(seats: str, *edges: str) -> CompleteModel:
    """Stages of a layer each, on devices `a` and `b` as the seats say, whose actions take no time."""
    layers = [make_layer(f"l{n}", (0, 0, 0)) for n in range(len(seats))]
    problem = make_problem(
        layers, [make_link("a b")], edges=[make_edge(ends) for ends in edges], max_stages_per_device=3, max_replicas=1,
        partition=tuple((layer.name,) for layer in layers), placement=tuple(((seat,),) for seat in seats),
    )  # fmt: skip
    return ask(problem, CostModel(problem)).model


def solve(model: CompleteModel, *pairs: tuple[int, int]) -> SolverAnswer:
    """What CP-SAT says where of each pair the F of the first stage comes before that of the second."""
    known = {(a[0], b[0]): switch for (_, a, b), switch in model.timetable.orders.items() if a[1] == b[1] == "F"}
    decided = {known[tuple(sorted(pair))]: int(pair in known) for pair in pairs}
    return solve_with_cp_sat(model.programme.fixed(decided), time_limit_s=60, seed=0, threads=1)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_order_is_the_one_that_memory_was_counted_for(order: tuple[int, ...]):
    """Tests that actions of one instant are read in the order that the solver decided."""
    model = instant_model("aaa")
    answer = solve(model, *combinations(order, 2))
    assert answer.values is not None
    (read,) = model.read(answer.values).device_orders.values()
    assert [stage for kind, stage, _ in read if kind == FORWARD] == list(order)


def test_actions_of_one_instant_do_not_wait_for_each_other():
    """Tests that no circle is taken for an order: neither on one device, nor through what others send."""
    assert solve(instant_model("aaa"), *pairwise((0, 1, 2, 0))).status == "infeasible"
    assert solve(instant_model("abba", "l0 l1", "l2 l3"), (3, 0), (2, 1)).status == "optimal"
    assert solve(instant_model("abba", "l0 l1", "l2 l3"), (3, 0), (1, 2)).status == "infeasible"

"""Orders that repeat: tests of solver_models/schedule/periodic_orders.py."""

from benchmarks.tessel_shapes import make_problem
from planner.layout.costs import CostModel
from planner.lowering import make_plan_from_orders, make_schedule_instance
from planner.simulation.simulate import simulate
from solver_models.schedule.periodic_orders import PeriodicSearch
from solver_models.schedule.solve import solve_order
from tests.planner.builders import make_stage
from tests.planner.planning.starts.test_overlapping_layouts import EVERYONE, SHAPE, m_shape, m_stages


def test_cp_sat_knows_all_devices_of_a_lane():
    """Tests that the order model finds what no order beats, from a hint that repeats, and that it plays."""
    problem = m_shape()
    stages = m_stages()
    instance = make_schedule_instance(problem, stages, costs=CostModel(problem))
    found = PeriodicSearch(instance).begin((50, 100, 200))
    assert found is not None
    result = solve_order(instance, hint=found.device_orders)
    assert (result.status, result.objective) == ("optimal", 2 * 2 + (2 + 3) * 4)
    assert result.device_orders is not None
    plan = make_plan_from_orders(problem, stages, device_orders=result.device_orders)
    assert simulate(problem, plan).makespan_ns == result.objective


def test_moves_only_make_orders_better():
    """Tests that moving times never ends above where it began, and that equal seeds move alike."""
    problem = make_problem(SHAPE["NN"], 3)
    names = ["W @ " + EVERYONE, "a @ d0", "b @ d1", "X @ d1+d0+d2+d3", "c @ d2", "d @ d3"]
    search = PeriodicSearch(make_schedule_instance(problem, tuple(map(make_stage, names)), costs=CostModel(problem)))
    first = search.begin((50, 100, 200))
    assert first is not None
    moved = search.improve(first, tries=60, seed=1)
    assert moved.objective < first.objective
    assert moved == search.improve(first, tries=60, seed=1)

"""Periodic patterns: their words are legal, and they are worth beginning with where memory is scarce."""

from benchmarks.orders import even_times, make_problem, uneven_times
from planner.layout.costs import CostModel
from planner.lowering import make_instance, make_plan_from_orders, make_schedule_instance, make_stages
from planner.plan import Stage
from planner.problem import Problem
from planner.verify import verify
from solver_models.instance import ScheduleInstance
from solver_models.local_search.order_search import OrderSearch
from solver_models.local_search.search import Candidate, Searcher
from solver_models.schedule.repetend import find_repetends, repeat
from solver_models.starts.first_candidates import make_seeds

VEE = make_problem(even_times(16, time_us=500), num_microbatches=24, memory=0.626, chunks=2, transfer_us=0)
"""Two chunks per device in a V, eight devices, the memory of V-Half."""

SMALL = make_problem(uneven_times(3, seed=1), num_microbatches=5, memory=0.7)
"""A chain of three stages, two microbatches in flight."""


def open_order(problem: Problem) -> tuple[Searcher, Candidate, tuple[Stage, ...], ScheduleInstance]:
    """The only partition and mapping that the options allow."""
    costs = CostModel(problem)
    searcher = Searcher(make_instance(problem, costs))
    candidate = make_seeds(searcher)[0]
    stages = make_stages(problem, candidate.stage_of, groups=candidate.groups, modes=candidate.modes)
    return searcher, candidate, stages, make_schedule_instance(problem, stages, costs=costs)


def test_the_words_of_a_tiny_pattern():
    """Tests that the drawing of two even stages with room for two microbatches is the one drawn by hand."""
    problem = make_problem(even_times(2), num_microbatches=3, memory=1, transfer_us=0)
    *_, schedule = open_order(problem)
    pattern = next(find_repetends(schedule))
    assert (pattern.period, pattern.end) == (3, 6)
    words = repeat(schedule, pattern)
    drawn = [" ".join("FIW"[kind] + str(m) for kind, _, m in words[device]) for device in (0, 1)]
    assert drawn == ["F0 F1 I0 W0 F2 I1 W1 I2 W2", "F0 I0 W0 F1 I1 W1 F2 I2 W2"]


def test_words_are_legal():
    """Tests that every pattern's words pass the verifier, memory included, and none is shorter than the load."""
    for problem in (SMALL, VEE):
        *_, stages, schedule = open_order(problem)
        patterns = list(find_repetends(schedule))
        assert patterns
        for pattern in patterns:
            words = repeat(schedule, pattern)
            assert verify(problem, make_plan_from_orders(problem, stages, device_orders=words)).passed


def test_the_shortest_period_is_the_load():
    """Tests that in the memory of V-Half a period as long as the work of a device is found: six slots."""
    *_, schedule = open_order(VEE)
    assert next(find_repetends(schedule)).period == 6


def test_a_pattern_beats_every_list_schedule():
    """Tests that the pattern of the V is better than all standard policies."""
    searcher, candidate, _, schedule = open_order(VEE)
    order = OrderSearch(searcher, candidate, schedule=schedule)
    found = list(order._repetends(seed=order.seed))
    listed = searcher.rate(candidate.stage_of, candidate.groups)
    assert listed.is_feasible
    assert min(each.objective for each in found) < listed.objective

"""A played plan: tests of planner/simulation/timeline.py."""

from hypothesis import given

from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import simulate
from tests.strategies import cases


@given(case=cases())
def test_memory_trace_ends_where_it_began(case: tuple[Problem, Plan]):
    """Tests that at the end of an iteration every device holds what it held at its start, and never less."""
    for trace in simulate(*case).memory.values():
        assert trace[-1].num_bytes == trace[0].num_bytes == min(point.num_bytes for point in trace)

"""Where the host sets the pace, and what that costs a plan."""

from planner.simulation.host_waits import find_host_waits
from tests.planner.builders import make_layer, make_link, make_plan, make_problem
from tests.planner.layout.test_two_clocks import timed_layer


def test_stages_that_wait_for_their_host_are_named():
    """Tests that the stage whose host is slower is named, and that its plan is played without the host."""
    layers = [timed_layer("x", (10, 10, 0), (1, 1, 0)), timed_layer("y", (10, 10, 0), (25, 25, 0))]
    problem = make_problem(layers, [make_link("a b")])
    plan = make_plan(problem, ["x @ a", "y @ b"], {"a": "0F0 0I0", "b": "1F0 1I0"})
    # The host of b begins at 0 as well: y ends once it is asked for, at 25 and 50.
    waits = find_host_waits(problem, plan)
    assert waits is not None
    assert (waits.stages, waits.objective_ns, waits.without_host_ns) == ((1,), 60, 40)


def test_a_host_that_is_fast_enough_is_not_mentioned():
    """Tests that nothing is found where cards never wait, or no host is told apart."""
    for layer in (timed_layer("x", (10, 10, 0), (5, 5, 0)), make_layer("x")):
        problem = make_problem([layer], [], more_devices="a")
        order = "0F0 0I0" if layer.parameter_bytes == 0 else "0F0 0I0 0W0"
        assert find_host_waits(problem, make_plan(problem, ["x @ a"], {"a": order})) is None

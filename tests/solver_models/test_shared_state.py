"""What memory looks like where replicas shard the optimizer's state: tests of solver_models/shared_state.py."""

from planner.layout.costs import CostModel
from planner.lowering import make_instance
from solver_models.shared_state import as_if_sharding
from solver_models.simulation.columns import STATE_ROW
from tests.planner.builders import make_link, make_problem
from tests.planner.layout.test_gathers import stepping


def test_a_partition_is_sought_for_the_memory_of_replicas_that_shard():
    """Tests that two replicas are taken to hold half of the optimizer's state, rounded up, and all of the rest."""
    problem = make_problem([stepping("x", 0)], [make_link("a b")], shard_optimizer="allow")
    instance = make_instance(problem, CostModel(problem))
    states = [each.sizes[STATE_ROW].tolist() for each in (instance, as_if_sharding(instance))]
    assert states == [[40], [40 - 25 + 13]]

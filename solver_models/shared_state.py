"""What memory looks like where replicas shard the optimizer's state."""

from dataclasses import replace

from solver_models.instance import Instance
from solver_models.simulation.columns import STATE_ROW


def as_if_sharding(instance: Instance) -> Instance:
    """The instance in which every stage holds the part that two replicas that shard hold; more of them hold less."""
    sizes = instance.layers.sizes.copy()
    sizes[:, STATE_ROW] -= instance.layers.shardable // 2
    return replace(instance, layers=instance.layers._replace(sizes=sizes))

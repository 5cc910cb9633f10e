"""What memory looks like where replicas shard the optimizer's state."""

from dataclasses import replace

from solver_models.instance import Instance


def as_if_sharding(instance: Instance) -> Instance:
    """The instance in which every stage holds the part that two replicas that shard hold; more of them hold less."""
    assert instance.sharding is not None
    return replace(instance, state=instance.state - instance.sharding.optimizer[0] // 2)

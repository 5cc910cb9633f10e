"""What fully sharded plans exclude; a baseline makes them (`planner.baselines.fully_sharded`)."""

from typing import Protocol

from profiles.cluster import Cluster


class _ShardOptions(Protocol):
    @property
    def shard_optimizer(self) -> str:
        """Whether replicas shard the optimizer's state."""


ONE_SIZE_ONLY = True
"""They are only for microbatches of one size."""


def refuse(options: _ShardOptions) -> None:
    """ValueError if another option excludes them."""
    if options.shard_optimizer == "never":
        raise ValueError(
            "options: fully_shard = true with shard_optimizer = never, but full shards include the "
            "optimizer's state: set shard_optimizer to allow, together or always, or leave fully_shard out"
        )


def require(cluster: Cluster) -> None:
    """ValueError where devices do not compute while they send."""
    if not cluster.overlap:
        raise ValueError(
            "problem: overlap = false with fully_shard, under which layers are gathered beside others' actions; set "
            "overlap to true, or leave fully_shard out"
        )

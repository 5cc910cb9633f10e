"""What gathered stages exclude."""

from typing import Protocol

from profiles.cluster import Cluster


class _GatherOptions(Protocol):
    @property
    def max_active_stages(self) -> int | None:
        """How many stages of a device may be gathered at a time."""

    @property
    def shard_optimizer(self) -> str:
        """Whether replicas shard the optimizer's state."""

    @property
    def synchronisation(self) -> str:
        """`bucketed` or after the last action."""

    @property
    def order(self) -> str:
        """`looped` or any."""

    @property
    def split_placement(self) -> bool:
        """Whether parts of a stage may be elsewhere."""

    @property
    def unequal_shares(self) -> bool:
        """Whether replicas may take unequal shares."""


PART = "max active stages"
"""The name of its part of the search."""

ONE_SIZE_ONLY = True
"""They are only for microbatches of one size."""


def refuse(options: _GatherOptions) -> None:
    """ValueError if another option excludes them."""
    for is_excluded, what, remedy in (
        (
            options.shard_optimizer == "never",
            "shard_optimizer = never, but whoever shards weights shards the optimizer's state",
            "set shard_optimizer to allow, together or always",
        ),
        (
            options.synchronisation == "bucketed",
            "synchronisation = bucketed, where no rule says how gathered weights queue on links",
            "set synchronisation to after",
        ),
        (
            options.order == "looped",
            "order = looped; Megatron-LM and DeepSpeed do not gather stages in a pipeline",
            "set order to any",
        ),
        (
            options.split_placement or options.unequal_shares,
            "split_placement or unequal_shares, under which devices of a rank differ",
            "set both to false",
        ),
    ):
        if is_excluded:
            raise ValueError(
                f"options: max_active_stages = {options.max_active_stages} with {what}: {remedy}, or leave "
                "max_active_stages out"
            )


def require(cluster: Cluster) -> None:
    """ValueError where devices do not compute while they send."""
    if not cluster.overlap:
        raise ValueError(
            "problem: overlap = false with max_active_stages, under which weights are gathered beside actions; set "
            "overlap to true, or leave max_active_stages out"
        )

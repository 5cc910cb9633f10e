"""What offload needs, and what excludes it."""

from typing import Protocol

from profiles.cluster import Cluster


class _Options(Protocol):
    @property
    def order(self) -> str:
        """`looped` or any."""

    @property
    def split_placement(self) -> bool:
        """Whether parts of a stage may be elsewhere."""

    @property
    def max_active_stages(self) -> int | None:
        """How many stages of a device may be gathered at a time."""


PART = "offload"
"""The name of its part of the search."""

ONE_SIZE_ONLY = True
"""It is only for microbatches of one size."""


def refuse(options: _Options) -> None:
    """ValueError if another option excludes it."""
    for is_excluded, what, remedy in (
        (
            options.order == "looped",
            "order = looped; programs that run stages in a loop choose what they offload by layer",
            "set order to any",
        ),
        (
            options.split_placement,
            "split_placement = true, under which stashes travel between devices",
            "set split_placement to false",
        ),
        (
            options.max_active_stages is not None,
            f"max_active_stages = {options.max_active_stages}; no rule says how gathers and stashes wait for each "
            "other",
            "leave max_active_stages out",
        ),
    ):
        if is_excluded:
            raise ValueError(f"options: offload = true with {what}: {remedy}, or set offload to false")


def require(cluster: Cluster) -> None:
    """ValueError where no device has a host link, or devices do not compute while they send."""
    if not cluster.host_routes:
        raise ValueError(
            f"problem: offload = true, but no device of cluster {cluster.name!r} has a host_link; add host_links and "
            "hosts to the cluster, or set offload to false"
        )
    if not cluster.overlap:
        raise ValueError(
            "problem: overlap = false with offload = true, under which stashes travel beside actions; set overlap to "
            "true, or set offload to false"
        )

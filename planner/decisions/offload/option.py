"""What offload needs, and who knows of it."""

from typing import Any

from planner.decisions.decision import QUICK_BOUNDS, Decision, Excluded, Switch


def require(cluster: Any) -> None:
    """ValueError where no device has a host link."""
    if not cluster.host_routes:
        raise ValueError(
            f"problem: offload = true, but no device of cluster {cluster.name!r} has a host_link; add host_links and "
            "hosts to the cluster, or set offload to false"
        )


DECISION = Decision(
    bounds=QUICK_BOUNDS,
    is_refined=True,
    one_size_only=True,
    has_one_clock=True,
    excludes=(
        Excluded("order", "looped", "any", "; programs that run stages in a loop choose what they offload by layer"),
        Excluded("split_placement", True, False, ", under which stashes travel between devices"),
    ),
    sent_beside="stashes travel beside actions",
    require=require,
    use=lambda stage: "offloads only some microbatches" if stage.offload else "",
    part="offload",
    switch=Switch(
        help="Stashes of microbatches may travel to host memory and back, where devices have a host_link.",
        says="activations may wait in host memory",
    ),
)

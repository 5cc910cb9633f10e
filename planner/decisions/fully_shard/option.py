"""What fully sharded plans exclude; a baseline makes them (`planner.baselines.fully_sharded`)."""

from planner.decisions.decision import QUICK_BOUNDS, Decision, Excluded, Switch

DECISION = Decision(
    bounds=QUICK_BOUNDS | {"host"},
    is_demand=True,
    is_refined=True,
    one_size_only=True,
    excludes=(
        Excluded(
            "shard_optimizer", "never", "allow", ", but full shards include the optimizer's state", is_implied=True
        ),
    ),
    sent_beside="layers are gathered beside others' actions",
    use=lambda stage: "shards weights and gradients (FSDP2)" if stage.is_fully_sharded else "",
    switch=Switch(
        help="A plan may also be one stage whose replicas shard weights, gradients and optimizer state (FSDP2).",
        says="a single stage may be fully sharded (FSDP2)",
    ),
)

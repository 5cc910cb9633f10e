"""What gathered stages exclude, and who knows of them."""

from planner.decisions.decision import QUICK_BOUNDS, Decision, Excluded, Switch

_UNLIKE = ", under which devices of a rank differ"


DECISION = Decision(
    bounds=QUICK_BOUNDS | {"host"},
    is_demand=True,
    is_refined=True,
    one_size_only=True,
    has_one_clock=True,
    excludes=(
        Excluded(
            "shard_optimizer",
            "never",
            "allow",
            ", but whoever shards weights shards the optimizer's state",
            is_implied=True,
        ),
        Excluded("synchronisation", "bucketed", "after", ", where no rule says how gathered weights queue on links"),
        Excluded("order", "looped", "any", "; Megatron-LM and DeepSpeed do not gather stages in a pipeline"),
        Excluded("split_placement", True, False, _UNLIKE),
        Excluded("unequal_shares", True, False, _UNLIKE),
        Excluded("offload", True, False, ", where no rule says how gathers and stashes wait for each other"),
    ),
    sent_beside="weights are gathered beside actions",
    use=lambda stage: "gathers its weights" if stage.is_gathered else "",
    part="max active stages",
    switch=Switch(
        help="Replicas may shard weights, and gather those of up to K stages of a device at a time (FSDP).",
        metavar="K",
        least=1,
        says="replicas may divide weights, with up to {} stages of a device gathered",
    ),
)

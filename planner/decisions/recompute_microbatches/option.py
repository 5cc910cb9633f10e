"""What a choice of microbatches needs, and who knows of it."""

from planner.decisions.decision import NEEDS_RECOMPUTATION, RECOMPUTES, Decision, Excluded, Switch

_LOOPED = Excluded("order", "looped", "any", "; programs that run stages in a loop recompute every microbatch alike")

DECISION = Decision(
    bounds=None,
    one_size_only=True,
    excludes=(NEEDS_RECOMPUTATION, _LOOPED),
    opened=RECOMPUTES,
    use=lambda stage: "recomputes only some microbatches" if stage.recompute_microbatches else "",
    part="microbatch recomputation",
    switch=Switch(
        help="As --recompute, decided for each microbatch of a stage.", says="may recompute single microbatches"
    ),
)

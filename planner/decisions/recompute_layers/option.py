"""What a choice of layers needs, and who knows of it."""

from planner.decisions.decision import NEEDS_RECOMPUTATION, RECOMPUTES, Decision, Switch

DECISION = Decision(
    bounds=None,
    left=lambda _, kinds: kinds,
    excludes=(NEEDS_RECOMPUTATION,),
    opened=RECOMPUTES,
    part="layer recomputation",
    switch=Switch(help="As --recompute, decided for each layer, with its kind.", says="may recompute single layers"),
)

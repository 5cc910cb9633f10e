"""What a choice of layers needs, and who knows of it."""

from planner.decisions.decision import NEEDS_RECOMPUTATION, RECOMPUTES, Decision, Switch

PART = "layer recomputation"
"""The name of its part of the search."""

DECISION = Decision(
    bounds=None,
    excludes=(NEEDS_RECOMPUTATION,),
    opened=RECOMPUTES,
    part=PART,
    switch=Switch(help="As --recompute, decided for each layer, with its kind.", says="may recompute single layers"),
)

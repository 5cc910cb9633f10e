"""Groups of several devices that share the layers of a stage, of one width per stage."""

from planner.decisions.decision import Decision, Switch

DECISION = Decision(
    bounds=None,
    is_enumerated=True,
    opened=lambda profile: max(cost.width for layer in profile.layers for cost in layer.costs),
    switch=Switch(
        help="Devices that may share a stage (needs costs measured so).",
        metavar="N",
        says="up to {} devices per stage replica",
    ),
)

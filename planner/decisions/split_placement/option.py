"""What split placement excludes, and who knows of it."""

from planner.decisions.decision import Decision, Excluded, Switch

DECISION = Decision(
    bounds=frozenset({"work"}),
    one_size_only=True,
    has_one_clock=True,
    excludes=(Excluded("keep_workspace", True, False, ", since no device then has both gradients"),),
    use=lambda stage: "places its I or W on other devices" if stage.is_split else "",
    part="split placement",
    switch=Switch(
        help="Weight gradients, or half of the input gradients, of a stage may be computed on another device.",
        says="gradients may be computed on other devices",
    ),
)

"""Why a search has no plan: tests of planner/planning/dropped_plans.py."""

from planner.planning.dropped_plans import DroppedPlans


def test_reasons_that_differ_in_names_count_as_one():
    """Tests that plans are counted by their reasons, numbers and names apart, and the most frequent comes first."""
    dropped = DroppedPlans()
    for reason in ("stage 1 is on 'd0'.", "no room", "stage 12 is on 'd1'.", "other"):
        dropped.add(reason)
    assert dropped.reasons(most=2) == ["2 plans were dropped: stage 1 is on 'd0'", "1 plan was dropped: no room"]

"""What unequal shares exclude, and who knows of them."""

from planner.decisions.decision import QUICK_BOUNDS, Decision, Excluded, Switch

_LOOPED = Excluded("order", "looped", "any", "; programs that run stages in a loop cut every microbatch evenly")

DECISION = Decision(
    bounds=QUICK_BOUNDS,
    is_refined=True,
    one_size_only=True,
    excludes=(_LOOPED,),
    use=lambda stage: f"has samples = {list(stage.samples)}" if stage.samples else "",
    part="unequal shares",
    switch=Switch(
        help="Replicas of a stage may take unequal shares of whole samples.",
        says="replicas may take different shares",
    ),
)

"""Stages that stand in a loop and run 1F1B, interleaved where a rank has several: Megatron-LM and DeepSpeed do."""

from planner.decisions.decision import Decision, Excluded

DECISION = Decision(
    bounds=None,
    is_freedom=False,
    in_complete_model=True,
    is_enumerated=True,
    one_size_only=True,
    excludes=(
        Excluded("split_backward", True, False, "; programs that run stages in a loop have whole backward passes only"),
    ),
)

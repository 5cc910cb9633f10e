"""Stages that recompute their activations in the backward pass: all layers, for every microbatch."""

from planner.decisions.decision import RECOMPUTES, Decision, Switch

DECISION = Decision(
    bounds=None,
    left=lambda size, _: [size.checkpoint_bytes],
    in_complete_model=True,
    is_enumerated=True,
    opened=RECOMPUTES,
    switch=Switch(help="Stages may recompute their activations.", says="may recompute activations"),
)

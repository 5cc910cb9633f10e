"""Layers that recompute one after the other in the backward pass, with the stash of one at a time."""

from operator import attrgetter

from planner.decisions.decision import NEEDS_RECOMPUTATION, RECOMPUTES, Decision, Switch

DECISION = Decision(
    bounds=None,
    least_stash=attrgetter("held_bytes"),
    excludes=(NEEDS_RECOMPUTATION,),
    opened=RECOMPUTES,
    switch=Switch(
        help="As --recompute; the backward holds one layer's activations at a time, as the executor, Megatron and "
        "DeepSpeed do.",
        says="recomputes one layer at a time",
    ),
)

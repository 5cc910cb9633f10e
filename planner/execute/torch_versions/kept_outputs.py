"""Where a stage of torch keeps what its forward gave, until its backward: `fwd_cache` up to 2.14, since 2.15 states of
microbatches, in which outputs and the edges that stand for them lie apart.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any


def kept_outputs(stage: Any, microbatch: int) -> tuple[Any, ...]:
    """What the forward of a microbatch gave, or what has taken its place."""
    if hasattr(stage, "fwd_cache"):
        return tuple(stage.fwd_cache[microbatch][0])
    return tuple(stage._forward_chunk_states[microbatch].live_outputs)


def replace_outputs(stage: Any, microbatch: int, *, roots: Sequence[Any]) -> None:
    """Let the backward of a microbatch begin at `roots` (edges of the graph, None where nothing is trained)."""
    if hasattr(stage, "fwd_cache"):
        stage.fwd_cache[microbatch] = tuple(roots), stage.fwd_cache[microbatch][1]
        return
    states = stage._forward_chunk_states
    states[microbatch] = replace(states[microbatch], live_outputs=list(roots), output_grad_edges=(None,) * len(roots))


def kept_microbatches(stage: Any) -> tuple[int, ...]:
    """Microbatches whose inputs or outputs a torch stage still holds."""
    return tuple(stage.fwd_cache if hasattr(stage, "fwd_cache") else stage._forward_chunk_states)

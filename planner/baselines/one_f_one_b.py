"""1F1B (PipeDream-Flush, Narayanan et al., 2021, arXiv 2006.09503): one forward, one backward, as early as possible."""

from planner.baselines.alternation import alternate, forward_steps, fused_steps
from planner.baselines.pipeline import DeviceOrders, Pipeline


def order_one_f_one_b(pipeline: Pipeline) -> DeviceOrders:
    """Stage s of S runs S - s forwards before its first backward, then alternates."""
    return [
        alternate(forward_steps(pipeline, stage), fused_steps(pipeline, stage), num_ahead=pipeline.num_stages - stage)
        for stage in range(pipeline.num_stages)
    ]

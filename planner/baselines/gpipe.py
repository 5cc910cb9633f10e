"""GPipe (Huang et al., 2019, arXiv 1811.06965): all forwards, then all backwards."""

from planner.baselines.alternation import alternate, forward_steps, fused_steps
from planner.baselines.pipeline import DeviceOrders, Pipeline


def order_gpipe(pipeline: Pipeline) -> DeviceOrders:
    """Every stage runs F0 F1 F2 ... B0 B1 B2 ...; the paper draws the backwards in reverse, the times are the same."""
    return [
        alternate(forward_steps(pipeline, stage), fused_steps(pipeline, stage), num_ahead=pipeline.num_microbatches)
        for stage in range(pipeline.num_stages)
    ]

"""ZB-H1 (Qi et al., 2024, arXiv 2401.10241, section 2.2): 1F1B with W deferred, within the memory of 1F1B."""

from planner.baselines.alternation import alternate, forward_steps, split_steps
from planner.baselines.pipeline import DeviceOrders, Pipeline


def order_zb_h1(pipeline: Pipeline) -> DeviceOrders:
    """Stage s of S runs S - s forwards ahead as in 1F1B and keeps s W back, so that all stages hold S microbatches."""
    return [
        alternate(
            forward_steps(pipeline, stage),
            split_steps(pipeline, stage, deferral=stage),
            num_ahead=pipeline.num_stages - stage,
        )
        for stage in range(pipeline.num_stages)
    ]

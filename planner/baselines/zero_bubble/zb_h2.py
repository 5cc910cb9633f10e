"""ZB-H2 (Qi et al., 2024, arXiv 2401.10241, section 2.3): no bubble but the fill, in twice the memory of 1F1B."""

from planner.baselines.alternation import alternate, forward_steps, split_steps
from planner.baselines.pipeline import DeviceOrders, Pipeline


def order_zb_h2(pipeline: Pipeline) -> DeviceOrders:
    """Stage s of S runs 2 (S - s) - 1 forwards ahead and keeps 2 s W back, so that all hold 2 S - 1 microbatches."""
    return [
        alternate(
            forward_steps(pipeline, stage),
            split_steps(pipeline, stage, deferral=2 * stage),
            num_ahead=2 * (pipeline.num_stages - stage) - 1,
        )
        for stage in range(pipeline.num_stages)
    ]

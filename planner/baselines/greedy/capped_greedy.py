"""The greedy order under caps, one stage per device: what pipelines limited by their activations are compared with.

Stage s of S runs I if one is ready, else F while fewer than min(K, S - s) are in flight, K being what its memory holds,
else W. On uniform chains it reaches the schedule bound for every K (docs/benchmarks/capped_uniform.md).
"""

from collections.abc import Iterator

from planner.baselines.greedy.capped_orders import Rule, best_capped, caps_within, room_for
from planner.baselines.pipeline import DeviceOrders, Pipeline


def order_capped_greedy(pipeline: Pipeline) -> DeviceOrders:
    """I and W apart: W where nothing else can run, or sooner; caps as in 1F1B, twice those, and memory alone."""
    return best_capped(
        pipeline, (Rule(caps=caps, most_pending=most) for most in (None, 1, 0) for caps in _caps(pipeline))
    )


def order_capped_whole(pipeline: Pipeline) -> DeviceOrders:
    """Whole backward passes: 1F1B with as many in flight as there is room for, early where the costs are uneven."""
    return best_capped(pipeline, (Rule(caps=caps, splits=False) for caps in _caps(pipeline)))


def _caps(pipeline: Pipeline) -> Iterator[tuple[int, ...]]:
    slopes = (caps_within(pipeline, quarters, denominator=4) for quarters in (4, 8, 6))
    yield from dict.fromkeys((*slopes, room_for(pipeline)))

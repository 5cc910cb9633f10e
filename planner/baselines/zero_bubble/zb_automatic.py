"""The automatic zero-bubble schedule (Qi et al., 2024, arXiv 2401.10241, section 3.1): driven by costs and memory.

With a limit of one (two) times the memory of 1F1B it is the paper's ZB-1p (ZB-2p); here the limit is the device's own.
"""

from collections.abc import Iterator

from planner.actions import Action
from planner.baselines.alternation import alternate, forward_steps
from planner.baselines.pipeline import DeviceOrders, Pipeline
from planner.baselines.zero_bubble.weight_grads import Habit, best_filled

HABITS = (
    Habit(quarters=4, evens_out=True),
    Habit(quarters=3),
    Habit(quarters=2),
    Habit(quarters=0),
)
"""Tried with each warm-up; the paper searches a small grid in the same way."""


def order_zb_automatic(pipeline: Pipeline) -> DeviceOrders:
    """The best of a small grid: with or without one more forward that would delay the first I, and four habits."""
    return best_filled(pipeline, _trials(pipeline), limits=[device.memory for device in pipeline.devices])


def _trials(pipeline: Pipeline) -> Iterator[tuple[DeviceOrders, Habit]]:
    tried = []
    for squeezes in (False, True):
        ahead = num_ahead(pipeline, squeezes=squeezes)
        if ahead not in tried:
            tried.append(ahead)
            orders = _alternating_orders(pipeline, ahead)
            yield from ((orders, habit) for habit in HABITS)


def _alternating_orders(pipeline: Pipeline, ahead: list[int]) -> DeviceOrders:
    return [
        alternate(
            forward_steps(pipeline, stage),
            [[Action("I", stage, microbatch)] for microbatch in range(pipeline.num_microbatches)],
            num_ahead=ahead[stage],
        )
        for stage in range(pipeline.num_stages)
    ]


def num_ahead(pipeline: Pipeline, *, squeezes: bool) -> list[int]:
    """Per stage, how many forwards fit before its first I arrives, into memory, and below the stage before it.

    With `squeezes` one more forward is run where it would end after the first I arrives.
    """
    first_gradient = _first_gradient_ns(pipeline)
    counts: list[int] = []
    arrivals = [0] * pipeline.num_microbatches
    for stage, cost in enumerate(pipeline.costs):
        most = counts[-1] - 1 if counts else pipeline.num_microbatches
        if cost.held_bytes:
            most = min(most, pipeline.devices[stage].memory // cost.held_bytes)
        latest_end = first_gradient[stage] + (cost.forward_ns - 1 if squeezes else 0)
        ends = _warm_up_ends(arrivals, cost.forward_ns, most=most, latest_end=latest_end)
        counts.append(len(ends))
        delay = max((delay for _, delay in pipeline.activations_to[stage]), default=0)
        arrivals = [end + delay for end in ends]
    return counts


def _warm_up_ends(arrivals: list[int], forward_ns: int, *, most: int, latest_end: int) -> list[int]:
    """Ends of the forwards of a warm-up; the first one is always run."""
    ends = [arrivals[0] + forward_ns]
    for arrival in arrivals[1 : max(most, 1)]:
        end = max(arrival, ends[-1]) + forward_ns
        if end > latest_end:
            break
        ends.append(end)
    return ends


def _first_gradient_ns(pipeline: Pipeline) -> list[int]:
    """When the gradient of microbatch 0 reaches every stage if nothing holds it up."""
    ready = [0] * pipeline.num_stages
    forward_end = [0] * pipeline.num_stages
    for stage, cost in enumerate(pipeline.costs):
        forward_end[stage] = ready[stage] + cost.forward_ns
        for consumer, delay in pipeline.activations_to[stage]:
            ready[consumer] = max(ready[consumer], forward_end[stage] + delay)
    gradient = forward_end
    for stage in reversed(range(pipeline.num_stages)):
        for producer, delay in pipeline.gradients_to[stage]:
            end = gradient[stage] + pipeline.costs[stage].input_grad_ns
            gradient[producer] = max(gradient[producer], end + delay)
    return gradient

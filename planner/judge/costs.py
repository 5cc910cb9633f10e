"""What an action takes: the measured times of its layers at the size of a share, and an overhead (section 1)."""

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from planner.judge.recomputation import extra_ns
from planner.judge.samples import round_up
from profiles.model_profile import Layer, LayerCost, ModelProfile

KINDS = "FIWB"
"""Columns of every table that has one per kind of action."""


class Times(NamedTuple):
    """Nanoseconds of one layer, or of one stage, for one microbatch."""

    forward: Fraction
    input_grad: Fraction
    weight_grad: Fraction
    backward: Fraction
    recompute: Fraction


def measured_times(cost: LayerCost, *, kind: str) -> Times:
    """What one entry of the profile states, for a layer that recomputes by a kind.

    The fused backward takes I + W where it was not measured.
    """
    both = cost.input_grad_ns + cost.weight_grad_ns
    fused = both if cost.backward_ns is None else cost.backward_ns
    columns = cost.forward_ns, cost.input_grad_ns, cost.weight_grad_ns, fused, extra_ns(cost, kind)
    return Times(*map(Fraction, columns))


def unit_size(profile: ModelProfile) -> int:
    """In how many units a microbatch is counted: its samples, or itself where nobody knows how many it has."""
    return 1 if profile.microbatch_size is None else profile.microbatch_size


def is_linear(profile: ModelProfile) -> bool:
    """Whether costs outside the measured sizes are in proportion to those of the nearest size.

    Documents of version 1 that do not say: where every layer has one size per device type and width.
    """
    if profile.scaling is None:
        per_place = Counter(
            (layer.name, cost.device_type, cost.width) for layer in profile.layers for cost in layer.costs
        )
        return max(per_place.values()) == 1
    return profile.scaling == "linear"


def measured_sizes(layer: Layer, *, where: tuple[str, int], whole: int) -> dict[int, LayerCost]:
    """What was measured on a device type at a width, by samples; `whole`: those of a microbatch."""
    return {
        whole if cost.microbatch_size is None else cost.microbatch_size: cost
        for cost in layer.costs
        if (cost.device_type, cost.width) == where
    }


def layer_times(measured: dict[int, LayerCost], samples: Fraction, *, kind: str, is_linear: bool) -> Times | None:
    """Times of a layer that recomputes by a kind: measured for so many samples, or on the line between neighbours.

    These are the nearest sizes below and above. Beyond all sizes there are none, unless costs scale linearly: then they
    are in proportion to the nearest.
    """
    smaller = [size for size in measured if size <= samples]
    larger = [size for size in measured if size >= samples]
    if smaller and larger:
        low, high = max(smaller), min(larger)
        weight = (samples - low) / (high - low) if low < high else Fraction(0)
        below, above = (
            _scaled(measured_times(measured[size], kind=kind), part)
            for size, part in ((low, 1 - weight), (high, weight))
        )
        return Times(*(a + b for a, b in zip(below, above, strict=True)))
    if not is_linear or not measured:
        return None
    nearest = min(larger) if larger else max(smaller)
    return _scaled(measured_times(measured[nearest], kind=kind), samples / nearest)


def _scaled(times: Times, factor: Fraction) -> Times:
    return Times(*(each * factor for each in times))


def action_overhead(
    profile: ModelProfile, device_type: str, *, num_stages: int, is_sharded: bool = False
) -> dict[str, int]:
    """What an action of each kind costs beyond its layers on a device type; 0 where it was not measured.

    `is_sharded`: of a fully sharded stage, whose F and backwards do more around their messages.
    """
    for entry in profile.action_overhead_ns:
        if entry.device_type == device_type:
            columns = [entry.forward_ns, entry.input_grad_ns, entry.weight_grad_ns, entry.backward_ns]
            if num_stages > 1:
                columns[0] += entry.stages_forward_ns
                columns[1] += entry.stages_input_grad_ns
                columns[2] += entry.stages_weight_grad_ns
                columns[3] += entry.stages_backward_ns
            if is_sharded:
                more = entry.sharded_forward_ns, entry.sharded_backward_ns, 0, entry.sharded_backward_ns
                columns = [own + added for own, added in zip(columns, more, strict=True)]
            return dict(zip(KINDS, columns, strict=True))
    return dict.fromkeys(KINDS, 0)


def exchange_times(profile: ModelProfile, layer: Layer, *, device_type: str) -> Times:
    """What the exchanges of a layer take whose microbatches are shared: in F, and in whichever of I and B runs."""
    one = sum(entry.exchange_ns for entry in profile.action_overhead_ns if entry.device_type == device_type)
    there, back = Fraction(layer.forward_exchanges * one), Fraction(layer.backward_exchanges * one)
    return Times(there, back, Fraction(0), back, Fraction(0))


def step_time(layers: Iterable[Layer], *, device_type: str, sharers: int) -> int:
    """Nanoseconds that each of `sharers` devices takes for the optimizer's step on the weights of a stage."""
    stated = [{c.optimizer_ns for c in layer.costs if c.device_type == device_type} - {0} for layer in layers]
    return round_up(Fraction(sum(sum(numbers) for numbers in stated), sharers))


def stage_times(
    layers: Iterable[Times], *, share: Fraction, overhead: dict[str, int], exchanges: Iterable[Times]
) -> dict[str, int]:
    """Nanoseconds of F, I, W and B of a stage on a device that takes a share of every microbatch.

    A layer's time for a whole microbatch, at what the share costs, is rounded up, so is that of its `exchanges`, then
    the share of the stage's; who has the whole microbatch exchanges nothing. I and B begin with the recomputation of
    those layers that recompute. Every action has the whole overhead, whatever its share.
    """
    sums = [0] * len(Times._fields)
    for times in (*layers, *(exchanges if share < 1 else ())):
        for column, each in enumerate(times):
            sums[column] += round_up(each / share)
    forward, input_grad, weight_grad, backward, extra = sums
    whole = {"F": forward, "I": input_grad + extra, "W": weight_grad, "B": backward + extra}
    return {kind: round_up(share * total) + overhead[kind] for kind, total in whole.items()}

"""A profile at another size of its microbatches, and the sizes at which it says what a microbatch costs."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any, TypeVar

from profiles.model_profile import GROWING, Edge, Layer, LayerCost, ModelProfile, WidthBytes, checkpoints_scaled

Held = TypeVar("Held", Layer, WidthBytes)


def measured_sizes(profile: ModelProfile, device_types: Iterable[str]) -> tuple[int, ...]:
    """The samples, ascending, at which some layer was measured on one device, and all have a cost on every type.

    There are none where the profile does not state the size of a microbatch.
    """
    own, types = profile.microbatch_size, tuple(device_types)
    if own is None:
        return ()
    found = {
        cost.microbatch_size or own
        for layer in profile.layers
        for cost in layer.costs
        if cost.width == 1 and cost.device_type in types
    }
    return tuple(size for size in sorted(found) if why_no_cost(profile, size, device_types=types) is None)


def why_no_cost(profile: ModelProfile, size: int, *, device_types: Iterable[str]) -> str | None:
    """Which layer has no cost for a microbatch of `size` samples at its least width, and why; None if all have one."""
    own = profile.microbatch_size or 1
    for layer in profile.layers:
        for device_type in device_types:
            there = [cost for cost in layer.costs if cost.device_type == device_type]
            least = min((cost.width for cost in there), default=1)
            known = sorted(cost.microbatch_size or own for cost in there if cost.width == least)
            if not known or not (profile.scales_linearly or known[0] <= size <= known[-1]):
                sizes = ", ".join(map(str, known)) or "no size"
                return f"layer {layer.name!r} was measured on {device_type!r} at {sizes} only"
    return None


def profile_at(profile: ModelProfile, size: int) -> ModelProfile:
    """The same measurements for microbatches of `size` samples.

    Costs keep the sizes they were measured at. Bytes that grow with the samples do so in proportion, rounded up;
    workspace grows likewise, but for its fixed part, and is never less than stated. Raises ValueError if the profile's
    own size is unknown.
    """
    own = profile.microbatch_size
    if own is None:
        raise ValueError(
            f"profile {profile.name!r}: microbatch_size = null, so nothing is known of {size} samples; state it"
        )
    if size == own:
        return profile
    factor = Fraction(size, own)
    return replace(
        profile,
        microbatch_size=size,
        scaling="linear" if profile.scales_linearly else "measured",
        layers=tuple(_layer_at(layer, factor, own=own) for layer in profile.layers),
        edges=tuple(_edge_at(edge, factor) for edge in profile.edges),
        held_once=tuple(entry.at(factor) for entry in profile.held_once),
    )


def costs_near(profile: ModelProfile, sizes: Iterable[Fraction]) -> ModelProfile:
    """The profile with those costs alone that decide what microbatches, or parts of them, of these sizes cost.

    Raises ValueError if the profile's own size is unknown.
    """
    wanted, own = tuple(sizes), profile.microbatch_size
    if own is None:
        raise ValueError(f"profile {profile.name!r}: microbatch_size = null; state it")
    return replace(
        profile,
        scaling="linear" if profile.scales_linearly else "measured",
        layers=tuple(
            replace(layer, costs=tuple(_nearest(_costs_at(layer.costs, own), wanted))) for layer in profile.layers
        ),
    )


def _nearest(costs: Iterable[LayerCost], sizes: Iterable[Fraction]) -> list[LayerCost]:
    """Per device type and width the next smaller and the next larger size that was measured, for each of `sizes`."""
    places: dict[tuple[str, int], dict[int, LayerCost]] = {}
    for cost in costs:
        places.setdefault((cost.device_type, cost.width), {})[cost.microbatch_size or 1] = cost
    found = []
    for known in places.values():
        order = sorted(known)
        kept = {at for size in sizes for at in _around(order, size)}
        found += [known[at] for at in order if at in kept]
    return found


def _around(order: Sequence[int], size: Fraction) -> Sequence[int]:
    """Of ascending sizes the last that is not above, and the first that is not below; at the ends the only one."""
    return order[max(0, bisect_right(order, size) - 1) : bisect_left(order, size) + 1] or order[-1:]


def _layer_at(layer: Layer, factor: Fraction, *, own: int) -> Layer:
    return replace(
        _bytes_at(layer, factor),
        costs=_costs_at(layer.costs, own),
        wider=tuple(_bytes_at(entry, factor) for entry in layer.wider),
    )


def _costs_at(costs: Iterable[LayerCost], own: int) -> tuple[LayerCost, ...]:
    """Every cost with the size it was measured at; of two for the same size the later one holds, as everywhere."""
    sized = (replace(cost, microbatch_size=own) if cost.microbatch_size is None else cost for cost in costs)
    return tuple({(cost.device_type, cost.width, cost.microbatch_size): cost for cost in sized}.values())


def _bytes_at(held: Held, factor: Fraction) -> Held:
    growing = held.workspace_bytes - held.fixed_workspace_bytes
    sizes: dict[str, Any] = {name: ceil(factor * getattr(held, name)) for name in GROWING}
    return replace(
        held,
        **sizes,
        recompute_kinds=checkpoints_scaled(held.recompute_kinds, lambda size: ceil(factor * size)),
        workspace_bytes=held.fixed_workspace_bytes + max(growing, ceil(factor * growing)),
    )


def _edge_at(edge: Edge, factor: Fraction) -> Edge:
    back = None if edge.gradient_bytes is None else ceil(factor * edge.gradient_bytes)
    return replace(edge, bytes=ceil(factor * edge.bytes), gradient_bytes=back)

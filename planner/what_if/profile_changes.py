"""A problem with changed costs: a faster device, more microbatches of half the size."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction

from planner.problem import Problem
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile, WidthBytes, checkpoints_scaled


def with_faster_device(problem: Problem, name: str) -> Problem:
    """The same question with one device of a type of its own: 10/11 of the old one's times, rounded up."""
    cluster = problem.cluster
    old = cluster.by_name[name].type
    new = _fresh(f"{old}, 10 % faster", cluster.device_types)
    layers = tuple(
        replace(layer, costs=layer.costs + tuple(_faster(cost, new) for cost in layer.costs if cost.device_type == old))
        for layer in problem.profile.layers
    )
    devices = tuple(replace(device, type=new) if device.name == name else device for device in cluster.devices)
    return replace(problem, profile=replace(problem.profile, layers=layers), cluster=replace(cluster, devices=devices))


def _faster(cost: LayerCost, device_type: str) -> LayerCost:
    def shorten(nanoseconds: int) -> int:
        return -(-10 * nanoseconds // 11)

    return replace(_scale(cost, shorten), device_type=device_type, optimizer_ns=shorten(cost.optimizer_ns))


def _scale(cost: LayerCost, change: Callable[[int], int]) -> LayerCost:
    """The cost with every time of a microbatch changed; a fused backward never becomes longer than its halves."""
    input_grad, weight_grad = change(cost.input_grad_ns), change(cost.weight_grad_ns)
    fused = None if cost.backward_ns is None else min(change(cost.backward_ns), input_grad + weight_grad)
    return replace(
        cost.with_recomputation(change),
        forward_ns=change(cost.forward_ns),
        input_grad_ns=input_grad,
        weight_grad_ns=weight_grad,
        backward_ns=fused,
    )


def _fresh(name: str, taken: Iterable[str]) -> str:
    """`name`, lengthened until it is not taken."""
    known = set(taken)
    while name in known:
        name += "'"
    return name


def with_halved_microbatches(problem: Problem) -> Problem | None:
    """Twice as many microbatches of half the size.

    Times as at that size, halved and rounded up where they scale; bytes halved. None where the halves are no whole
    samples, or were not measured.
    """
    profile = problem.profile
    is_measured = any(cost.microbatch_size is not None for layer in profile.layers for cost in layer.costs)
    if not profile.is_whole(Fraction(1, 2)):
        return None
    halved = replace(
        profile,
        microbatch_size=None if profile.microbatch_size is None else profile.microbatch_size // 2,
        layers=tuple(
            _halve_layer(layer, profile, is_measured=is_measured or not profile.scales_linearly)
            for layer in profile.layers
        ),
        edges=tuple(_halve_edge(edge) for edge in profile.edges),
    )
    try:
        return replace(problem, profile=halved, num_microbatches=2 * problem.num_microbatches)
    except ValueError:
        return None


def _half(number: int) -> int:
    return -(-number // 2)


def _halve_layer(layer: Layer, profile: ModelProfile, *, is_measured: bool) -> Layer:
    def at_size(cost: LayerCost) -> LayerCost:
        if is_measured and profile.microbatch_size is not None:
            return replace(cost, microbatch_size=cost.microbatch_size or profile.microbatch_size)
        return _scale(cost, _half)

    return replace(
        layer,
        costs=tuple(map(at_size, layer.costs)),
        stash_bytes=_half(layer.stash_bytes),
        weight_stash_bytes=_half(layer.weight_stash_bytes),
        checkpoint_bytes=_half(layer.checkpoint_bytes),
        recompute_kinds=checkpoints_scaled(layer.recompute_kinds, _half),
        wider=tuple(map(_halve_width, layer.wider)),
    )


def _halve_width(entry: WidthBytes) -> WidthBytes:
    return replace(
        entry,
        stash_bytes=_half(entry.stash_bytes),
        weight_stash_bytes=_half(entry.weight_stash_bytes),
        checkpoint_bytes=_half(entry.checkpoint_bytes),
        recompute_kinds=checkpoints_scaled(entry.recompute_kinds, _half),
    )


def _halve_edge(edge: Edge) -> Edge:
    gradient = edge.gradient_bytes
    return replace(edge, bytes=_half(edge.bytes), gradient_bytes=None if gradient is None else _half(gradient))

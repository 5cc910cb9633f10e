"""A problem with changed costs: a faster device, more microbatches of half the size."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from planner.problem import Problem
from profiles.microbatch_sizes import profile_at
from profiles.model_profile import LayerCost, ModelProfile


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

    once: dict[str, Any] = {field: shorten(getattr(cost, field)) for field in cost.ONCE}
    return replace(_scale(cost, shorten), device_type=device_type, **once)


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
    """Twice as many microbatches of half the size; None where the halves are no whole samples, or were not measured."""
    profile = problem.profile
    if not profile.is_whole(Fraction(1, 2)):
        return None
    size = profile.microbatch_size
    halved = _halve_unknown(profile) if size is None else profile_at(profile, size // 2)
    try:
        return replace(problem, profile=halved, num_microbatches=2 * problem.num_microbatches)
    except ValueError:
        return None


def _halve_unknown(profile: ModelProfile) -> ModelProfile:
    """Half of every microbatch, whose samples nobody counted: times and bytes halved, rounded up."""
    halved = profile_at(replace(profile, microbatch_size=2), 1)
    layers = tuple(
        replace(half, costs=tuple(_scale(cost, lambda number: -(-number // 2)) for cost in layer.costs))
        for layer, half in zip(profile.layers, halved.layers, strict=True)
    )
    return replace(profile, layers=layers, edges=halved.edges, held_once=halved.held_once)

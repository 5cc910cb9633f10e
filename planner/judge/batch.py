"""How many samples a microbatch has where the question leaves that to the plan, and what layers cost and hold then.

The plan states size and number of its microbatches; the profile stays as it was measured. Costs belong to the size they
were measured at. What grows with the samples is read in proportion; workspace is never less than stated.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeVar

from planner.judge.samples import round_up
from planner.plan import Plan
from planner.problem import Problem
from profiles.model_profile import GROWING, Edge, Layer, LayerCost, ModelProfile, WidthBytes

Held = TypeVar("Held", Layer, WidthBytes)


def profile_run(problem: Problem, plan: Plan) -> ModelProfile:
    """The profile at the size of microbatches that the plan states, if that was for the plan to say.

    Of a size that there cannot be, which the rules of `reference` report, the profile as measured.
    """
    if problem.batch is None:
        return problem.profile
    measured, size = problem.batch.profile, plan.problem.microbatch_size
    if type(size) is not int or size < 1:
        return measured
    try:
        return profile_of_size(measured, size)
    except ValueError:  # bytes beyond every limit
        return measured


def profile_of_size(measured: ModelProfile, size: int) -> ModelProfile:
    """What layers cost and hold for a microbatch of so many samples, of a profile that says at how many it was made."""
    return measured if size == measured.microbatch_size else _at(measured, size)


def _at(measured: ModelProfile, size: int) -> ModelProfile:
    """The profile for microbatches of so many samples."""
    own = measured.microbatch_size or 1
    factor = Fraction(size, own)
    return replace(
        measured,
        microbatch_size=size,
        scaling=measured.scaling or ("linear" if _has_one_size_each(measured) else "measured"),
        layers=tuple(_layer(layer, factor, own=own) for layer in measured.layers),
        edges=tuple(_edge(edge, factor) for edge in measured.edges),
        held_once=tuple(  # no more than layers hold, whose bytes are rounded up
            replace(
                each,
                stash_bytes=factor * each.stash_bytes // 1,
                weight_stash_bytes=factor * each.weight_stash_bytes // 1,
            )
            for each in measured.held_once
        ),
    )


def measured_near(measured: ModelProfile, sizes: set[Fraction]) -> ModelProfile:
    """The profile without the costs that say nothing of so many samples: others were measured nearer to each."""
    own = measured.microbatch_size or 1
    layers = []
    for layer in measured.layers:
        known: dict[tuple[str, int], dict[int, LayerCost]] = {}
        for cost in layer.costs:
            known.setdefault((cost.device_type, cost.width), {})[cost.microbatch_size or own] = cost
        kept = [cost for by_size in known.values() for cost in _near(by_size, sizes)]
        layers.append(replace(layer, costs=tuple(kept)))
    scaling = measured.scaling or ("linear" if _has_one_size_each(measured) else "measured")
    return replace(measured, scaling=scaling, layers=tuple(layers))


def _near(by_size: dict[int, LayerCost], sizes: set[Fraction]) -> list[LayerCost]:
    """For each of `sizes` the largest measured one up to it, and the smallest from it on."""
    chosen = set[int]()
    for size in sizes:
        below, above = [each for each in by_size if each <= size], [each for each in by_size if each >= size]
        chosen |= {max(below)} if below else set()
        chosen |= {min(above)} if above else set()
    return [by_size[size] for size in sorted(chosen)]


def measured_at(profile: ModelProfile) -> set[int]:
    """The samples at which some layer was measured on one device."""
    sizes = {
        profile.microbatch_size if cost.microbatch_size is None else cost.microbatch_size
        for layer in profile.layers
        for cost in layer.costs
        if cost.width == 1
    }
    return {size for size in sizes if size is not None}


def _has_one_size_each(profile: ModelProfile) -> bool:
    """Whether no layer was measured twice on one device type at one width."""
    places = [(layer.name, cost.device_type, cost.width) for layer in profile.layers for cost in layer.costs]
    return len(places) == len(set(places))


def _layer(layer: Layer, factor: Fraction, *, own: int) -> Layer:
    costs = {(cost.device_type, cost.width, cost.microbatch_size or own): cost for cost in layer.costs}
    return replace(
        _held(layer, factor),
        costs=tuple(
            cost if cost.microbatch_size is not None else replace(cost, microbatch_size=own) for cost in costs.values()
        ),
        wider=tuple(_held(entry, factor) for entry in layer.wider),
    )


def _held(entry: Held, factor: Fraction) -> Held:
    """What grows with the samples, in proportion; less workspace was not measured, and a part of it is always there."""
    always = entry.fixed_workspace_bytes
    sizes: dict[str, Any] = {name: round_up(factor * getattr(entry, name)) for name in GROWING}
    return replace(
        entry,
        **sizes,
        recompute_kinds=tuple(
            replace(kind, checkpoint_bytes=round_up(factor * kind.checkpoint_bytes)) for kind in entry.recompute_kinds
        ),
        workspace_bytes=always + round_up(max(factor, Fraction(1)) * (entry.workspace_bytes - always)),
    )


def _edge(edge: Edge, factor: Fraction) -> Edge:
    back = edge.gradient_bytes
    return replace(
        edge,
        bytes=round_up(factor * edge.bytes),
        gradient_bytes=None if back is None else round_up(factor * back),
    )

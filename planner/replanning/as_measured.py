"""The problem as it really is: a slow device is a type of its own, slow layers are slow everywhere."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.actions import Kind
from planner.plan import Plan
from planner.problem import Problem
from planner.replanning.link_times import slow_down
from planner.replanning.slowdown_factors import FactorExplanation, Factors
from profiles.field_rules import MAX_NANOSECONDS
from profiles.model_profile import Layer, LayerCost

_LINK_ERROR = 0.02
"""Relative error of a link's factor that bounds allow for."""

_KindRatios = Mapping[Kind, float]
"""Measured over planned time by kind of action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """What the costs of one problem are multiplied with."""

    pairs: Mapping[tuple[str, int], _KindRatios]
    """By device and stage, as measured there."""
    totals: Mapping[tuple[str, int], float]
    """Factors over all kinds of actions together."""
    factors: Factors
    """What is said about devices and stages."""
    links: Mapping[int, float]
    """Factors of links, by their indices."""
    certain_links: Mapping[int, float]
    """Those of them that nothing else explains."""
    error: float = 0.0
    """Relative error of every ratio by rounding to whole nanoseconds."""


def exactly(problem: Problem, plan: Plan, *, scales: Scales) -> Problem:
    """To play the plan that ran: every device is a type of its own, with what was measured there."""
    chosen = scales.factors.likeliest()
    names = [device.name for device in problem.cluster.devices]
    return _with_types(problem, plan, scales=scales, own={name: name for name in names}, chosen=chosen)


def under(problem: Problem, plan: Plan, *, scales: Scales, chosen: FactorExplanation) -> Problem:
    """To plan anew, taking an explanation for true: only devices that differ from plan are types of their own."""
    if problem.options.max_width > 1:
        return _with_types(problem, plan, scales=scales, own={}, chosen=chosen)
    own = {device: device for device in chosen.devices}
    return _with_types(problem, plan, scales=scales, own=own, chosen=chosen)


def at_best(problem: Problem, plan: Plan, *, scales: Scales, chosen: FactorExplanation) -> Problem:
    """To bound all plans under an explanation: as `under`, and every cost and link at the best that was measured.

    Where devices may work on a layer together, no type is split (a group of two types has no costs): the best device
    of a type stands for all of them.
    """
    own = {} if problem.options.max_width > 1 else {device: device for device in chosen.devices}
    links = {link: max(1.0, factor * (1 - _LINK_ERROR)) for link, factor in scales.certain_links.items()}
    return _with_types(problem, plan, scales=replace(scales, links=links), own=own, chosen=chosen, is_best=True)


def _with_types(
    problem: Problem,
    plan: Plan,
    *,
    scales: Scales,
    own: Mapping[str, str],
    chosen: FactorExplanation,
    is_best: bool = False,
) -> Problem:
    """`own`: the devices that become types of their own. Types without a device are left out."""
    if problem.profile.has_host_times:
        raise ValueError(
            f"profile {problem.profile.name!r} states host times, but a run tells host and card not apart; leave host "
            "out of the costs, or calibrate the profile with the run"
        )
    members: dict[tuple[str, str], list[str]] = {}
    for device in problem.cluster.devices:
        members.setdefault((device.type, own.get(device.name, "")), []).append(device.name)
    types = {key: f"{key[0]} ({key[1]})" if key[1] else key[0] for key in members}
    type_of = {name: types[key] for key, names in members.items() for name in names}
    stage_of = {name: number for number, stage in enumerate(plan.stages) for name in stage.layers}
    rule = _RatioRule(scales=scales, chosen=chosen, is_best=is_best, is_exact=len(own) == len(problem.cluster.devices))
    layers = []
    for layer in problem.profile.layers:
        costs = tuple(
            _scaled(cost, types[key], ratios=rule.ratios(names, stage_of.get(layer.name)), is_best=is_best, layer=layer)
            for key, names in members.items()
            for cost in layer.costs
            if cost.device_type == key[0]
        )
        layers.append(replace(layer, costs=costs))
    devices = tuple(replace(device, type=type_of[device.name]) for device in problem.cluster.devices)
    cluster = slow_down(replace(problem.cluster, devices=devices), scales.links)
    return replace(problem.at_its_size(), profile=replace(problem.profile, layers=tuple(layers)), cluster=cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RatioRule:
    """Which ratios hold for a layer of a stage on some devices of one type."""

    scales: Scales
    chosen: FactorExplanation
    is_best: bool
    is_exact: bool

    def ratios(self, devices: list[str], stage: int | None) -> _KindRatios:
        """By kind; of several devices the least."""
        each = [self._of(device, stage) for device in devices]
        kinds: tuple[Kind, ...] = ("F", "I", "W", "B")
        return {kind: min(ratios[kind] for ratios in each) for kind in kinds}

    def _of(self, device: str, stage: int | None) -> dict[Kind, float]:
        kinds: tuple[Kind, ...] = ("F", "I", "W", "B")
        common = self.scales.factors.common
        if self.is_best and all(pair[0] != device for pair in self.scales.pairs):
            common = min(1.0, common)
        assumed = common * self.chosen.devices.get(device, 1.0)
        assumed *= 1.0 if stage is None else self.chosen.stages.get(stage, 1.0)
        if self.is_best:
            assumed *= min(1.0, self._least_noise(device, stage)) * (1 - self.scales.error)
        pair = None if stage is None else self.scales.pairs.get((device, stage))
        if pair is None or not (self.is_exact or self.is_best or device in self.chosen.devices):
            return dict.fromkeys(kinds, assumed)
        known = {kind: pair[kind] for kind in kinds if kind in pair}
        if self.is_best:
            known = {kind: ratio * (1 - self.scales.error) for kind, ratio in known.items()}
        # Of B alone, or of I and W alone, what the others take in proportion.
        whole = known.get("B", _split_ratio(known))
        return {kind: known.get(kind, assumed if whole is None or kind == "F" else whole) for kind in kinds}

    def _least_noise(self, device: str, stage: int | None) -> float:
        """The least that a pair of the device or of the stage took beside what is explained."""
        found = [1.0]
        for (other, number), ratio in self.scales.totals.items():
            if other == device or number == stage:
                explained = self.scales.factors.common * self.chosen.devices.get(other, 1.0)
                found.append(ratio / explained / self.chosen.stages.get(number, 1.0))
        return min(found)


def _split_ratio(known: _KindRatios) -> float | None:
    """That of I and W together; None where neither was measured."""
    found = [ratio for kind, ratio in known.items() if kind in "IW"]
    return sum(found) / len(found) if found else None


def _scaled(cost: LayerCost, device_type: str, *, ratios: _KindRatios, is_best: bool, layer: Layer) -> LayerCost:
    """B keeps what it saves against I and W. The best of anything is rounded down."""

    def scale(nanoseconds: int, kind: Kind) -> int:
        value = nanoseconds * ratios[kind]
        return min(MAX_NANOSECONDS, math.floor(value) if is_best else round(value))

    input_grad = scale(cost.input_grad_ns, "I")
    weight_grad = scale(cost.weight_grad_ns, "W") if layer.is_trainable else 0
    backward = scale(cost.fused_backward_ns, "B")
    if backward > input_grad + weight_grad:
        # Never above I + W: then these were not measured, or not as slow.
        missing = backward - input_grad - weight_grad
        input_grad += 0 if is_best else missing
        backward = min(backward, input_grad + weight_grad)
    return replace(
        cost.with_recomputation(lambda extra: scale(extra, "F")),
        device_type=device_type,
        forward_ns=scale(cost.forward_ns, "F"),
        input_grad_ns=input_grad,
        weight_grad_ns=weight_grad,
        backward_ns=backward,
    )

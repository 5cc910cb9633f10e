"""Whose fault it is: measured over planned times of (device, stage) pairs as products of device and stage factors.

A pair's ratio is its device's factor times its stage's. Devices and stages that are connected by pairs make up a
component; multiplying its devices and dividing its stages by one number changes no ratio, so what is measured leaves
one number per component open. An explanation fixes it by taking one device or stage for unchanged; the explanations
that change the fewest devices and stages are the plausible ones. Where there are several, none can be excluded.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy

Pair = tuple[str, int]
"""A device and a stage."""

Node = str | int
"""A device, by its name, or a stage, by its number."""

LEAST_DRIFT = 0.02
"""Deviations up to this are taken as none whatever their spread."""

MAX_COMBINATIONS = 16
"""So many combinations of explanations are told apart at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Measured over planned time of one pair."""

    value: float
    """Over all kinds of action, as often as they run."""
    spread: float
    """Relative standard error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorExplanation:
    """One way to explain a component: what differs from plan, everything else there is as planned."""

    devices: Mapping[str, float]
    """Factors of the devices that differ."""
    stages: Mapping[int, float]
    """Factors of the stages that differ: their layers take that much longer on every device."""
    is_plausible: bool
    """Whether no other explanation needs fewer devices and stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """Devices and stages that hang together."""

    pairs: tuple[Pair, ...]
    """Those that were measured."""
    explanations: tuple[FactorExplanation, ...]
    """All that must be reckoned with, plausible ones first; a single empty one where nothing differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Everything that is said about devices and stages."""

    common: float
    """What all measured pairs, or most of them, take times their planned time; 1 where they have nothing in common."""
    components: tuple[Component, ...]
    """Relative to `common`."""

    def likeliest(self) -> FactorExplanation:
        """The first plausible explanation of every component."""
        return _merge(component.explanations[0] for component in self.components)

    def combinations(self) -> list[FactorExplanation]:
        """One explanation per component, put together, in every way.

        Beyond `MAX_COMBINATIONS` a component has its least factors over all its explanations: what is below every
        plan with these is below every plan with any of its explanations.
        """
        choices: list[Sequence[FactorExplanation]] = []
        count = 1
        for component in self.components:
            count *= len(component.explanations)
            is_told_apart = count <= MAX_COMBINATIONS
            choices.append(component.explanations if is_told_apart else (_least(component.explanations),))
        return [_merge(chosen) for chosen in product(*choices)]


def find_factors(ratios: Mapping[Pair, Ratio]) -> Factors:
    """Explain ratios, all above 0."""
    common = _common(ratios)
    relative = {pair: Ratio(value=ratio.value / common, spread=ratio.spread) for pair, ratio in ratios.items()}
    return Factors(common=common, components=tuple(_explain(pairs, relative) for pairs in _components(relative)))


def threshold(spread: float) -> float:
    """The least logarithm of a factor that is taken for one."""
    return max(math.log1p(LEAST_DRIFT), 3 * spread)


def _common(ratios: Mapping[Pair, Ratio]) -> float:
    """The middle ratio if all devices, or at least three and more than half, are near it; else 1."""
    devices: dict[str, list[float]] = {}
    for (device, _), ratio in ratios.items():
        devices.setdefault(device, []).append(ratio.value)
    if not ratios:
        return 1.0
    values = sorted(ratio.value for ratio in ratios.values())
    middle = values[len(values) // 2]
    margin = threshold(sorted(ratio.spread for ratio in ratios.values())[len(ratios) // 2])
    near = {
        device for device, those in devices.items() if all(abs(math.log(value / middle)) <= margin for value in those)
    }
    is_shared = len(near) == len(devices) or (len(near) >= 3 and 2 * len(near) > len(devices))
    # Replicas of one stage share its layers: that is no more than one coincidence.
    spans_stages = len({stage for device, stage in ratios if device in near}) > 1
    return middle if is_shared and spans_stages and len(devices) > 1 and abs(math.log(middle)) > margin else 1.0


def _components(pairs: Iterable[Pair]) -> list[tuple[Pair, ...]]:
    """Pairs that share a device or a stage, directly or through others."""
    left, found = list(pairs), []
    while left:
        group, nodes = [left.pop(0)], set[Node]()
        is_growing = True
        while is_growing:
            nodes = {node for pair in group for node in pair}
            joined = [pair for pair in left if set(pair) & nodes]
            group += joined
            left = [pair for pair in left if pair not in joined]
            is_growing = bool(joined)
        found.append(tuple(sorted(group)))
    return found


def _explain(pairs: tuple[Pair, ...], ratios: Mapping[Pair, Ratio]) -> Component:
    nodes: list[Node] = list(dict.fromkeys([device for device, _ in pairs]))
    nodes += dict.fromkeys(stage for _, stage in pairs)
    margin = max(threshold(ratios[pair].spread) for pair in pairs)
    if all(abs(math.log(ratios[pair].value)) <= margin for pair in pairs):
        return Component(pairs=pairs, explanations=(FactorExplanation(devices={}, stages={}, is_plausible=True),))
    logs = _solve(pairs, nodes=nodes, ratios=ratios)
    found: dict[frozenset[Node], dict[Node, float]] = {}
    for anchor in nodes:
        shift = logs[anchor]
        # A device's factor grows by what the stages' shrinks.
        sign = 1 if isinstance(anchor, str) else -1
        factors = {node: log - sign * shift * (1 if isinstance(node, str) else -1) for node, log in logs.items()}
        changed = {node: log for node, log in factors.items() if abs(log) > margin}
        found.setdefault(frozenset(changed), changed)
    fewest = min(len(changed) for changed in found.values())
    kept = [
        (len(changed) == fewest, changed)
        for changed in found.values()
        if len(changed) == fewest or len({isinstance(node, str) for node in changed}) == 1
    ]
    kept.sort(key=lambda entry: (not entry[0], -sum(isinstance(node, str) for node in entry[1])))
    return Component(pairs=pairs, explanations=tuple(_as_explanation(each, is_plausible=ok) for ok, each in kept))


def _as_explanation(changed: Mapping[Node, float], *, is_plausible: bool) -> FactorExplanation:
    return FactorExplanation(
        devices={node: math.exp(log) for node, log in changed.items() if isinstance(node, str)},
        stages={node: math.exp(log) for node, log in changed.items() if isinstance(node, int)},
        is_plausible=is_plausible,
    )


def _solve(pairs: Sequence[Pair], *, nodes: Sequence[Node], ratios: Mapping[Pair, Ratio]) -> dict[Node, float]:
    """Logarithms of factors with the least squared differences from the ratios'; the first node's is about 0."""
    number = {node: index for index, node in enumerate(nodes)}
    matrix = numpy.zeros((len(pairs) + 1, len(nodes)))
    right = numpy.zeros(len(pairs) + 1)
    for row, (device, stage) in enumerate(pairs):
        matrix[row, number[device]] = matrix[row, number[stage]] = 1
        right[row] = math.log(ratios[device, stage].value)
    matrix[-1, 0] = 1
    solution = numpy.linalg.lstsq(matrix, right, rcond=None)[0]
    return {node: float(solution[index]) for node, index in number.items()}


def _least(explanations: Sequence[FactorExplanation]) -> FactorExplanation:
    devices = {device for each in explanations for device in each.devices}
    stages = {stage for each in explanations for stage in each.stages}
    return FactorExplanation(
        devices={device: min(each.devices.get(device, 1.0) for each in explanations) for device in devices},
        stages={stage: min(each.stages.get(stage, 1.0) for each in explanations) for stage in stages},
        is_plausible=False,
    )


def _merge(chosen: Iterable[FactorExplanation]) -> FactorExplanation:
    parts = tuple(chosen)
    return FactorExplanation(
        devices={device: factor for part in parts for device, factor in part.devices.items()},
        stages={stage: factor for part in parts for stage, factor in part.stages.items()},
        is_plausible=all(part.is_plausible for part in parts),
    )

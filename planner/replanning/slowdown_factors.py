"""Whose fault it is: measured over planned times of (device, stage) pairs as products of device and stage factors.

A pair's ratio is its device's factor times its stage's. Devices and stages that are connected by pairs make up a
component; multiplying its devices and dividing its stages by one number changes no ratio, so what is measured leaves
one number per component open. An explanation fixes it by taking one device or stage for unchanged; the explanations
that change the fewest devices and stages are the plausible ones. Where there are several, none can be excluded, nor
can anything between them: a device twice as slow and its layers once more are, there, like a device three times as
slow. The one that bounds all plans therefore reckons with all that is left open (`_Leeway`), as long as nothing is
faster than planned that need not be.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx
import numpy

Pair = tuple[str, int]
"""A device and a stage."""

Box = tuple[tuple[float, float], ...]
"""By component from which power to which."""

Node = str | int
"""A device, by its name, or a stage, by its number."""

LEAST_DRIFT = 0.02
"""Deviations up to this are taken as none whatever their spread."""

FEW = 3
"""Fewer components than this may be as slow as each other by chance, without anything in common."""


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
class _Leeway:
    """What is left open in a component: its devices times e to some power, its stages divided by the same."""

    logs: Mapping[Node, float]
    """Logarithms of factors at power 0, of what is not as planned at all powers."""
    low: float
    """Least power: no device need be faster than planned; or what an explanation needs."""
    high: float
    """Greatest power: no stage need be faster than planned; or what an explanation needs."""

    def least(self, low: float, high: float) -> FactorExplanation:
        """Of every device and stage the least factor at any of these powers: nothing there is below it."""
        return FactorExplanation(
            devices={node: math.exp(log + low) for node, log in self.logs.items() if isinstance(node, str)},
            stages={node: math.exp(log - high) for node, log in self.logs.items() if isinstance(node, int)},
            is_plausible=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """Devices and stages that hang together."""

    pairs: tuple[Pair, ...]
    """Measured pairs of device and stage."""
    explanations: tuple[FactorExplanation, ...]
    """The simplest ones, plausible ones first; a single empty one where nothing differs."""
    leeway: _Leeway
    """All that may be true, these and what is between."""

    @property
    def is_open(self) -> bool:
        """Whether nothing there is certain to be as planned."""
        return self.leeway.logs.keys() >= {node for pair in self.pairs for node in pair}


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Everything that is said about devices and stages."""

    common: float
    """What all measured pairs, or most of them, take times their planned time; 1 where they have nothing in common."""
    components: tuple[Component, ...]
    """Relative to `common`."""
    separate: tuple[Component, ...] = ()
    """Relative to 1, where it may be chance that `common` is common; else empty."""

    def likeliest(self) -> FactorExplanation:
        """The first plausible explanation of every component."""
        return _merge(component.explanations[0] for component in self.components)

    def least(self, box: Box) -> FactorExplanation:
        """With every component at the least of its powers in the box."""
        return _merge(
            component.leeway.least(low, high) for component, (low, high) in zip(self.components, box, strict=True)
        )

    def box(self, devices: Collection[str]) -> Box:
        """All that is left open on these devices of a cluster.

        A device of one component takes for a stage of another what the quotient of their powers says, and that is all
        that counts. So where nothing is certain, one of two powers is enough.
        """
        box = tuple((component.leeway.low, component.leeway.high) for component in self.components)
        measured = {device for component in self.components for device, _ in component.pairs}
        if len(box) != 2 or not measured.issuperset(devices) or not all(each.is_open for each in self.components):
            return box
        (low, high), (least, most) = box
        return (0.0, 0.0), (least - high, most - low)

    def alternatives(self) -> "tuple[Factors, ...]":
        """These, and those without anything in common where that cannot be excluded."""
        return (self, Factors(common=1.0, components=self.separate)) if self.separate else (self,)


def find_factors(ratios: Mapping[Pair, Ratio]) -> Factors:
    """Explain ratios, all above 0."""
    common, count = _common(ratios)
    relative = {pair: Ratio(value=ratio.value / common, spread=ratio.spread) for pair, ratio in ratios.items()}
    is_chance = common != 1.0 and count < FEW
    return Factors(
        common=common,
        components=tuple(_explain(pairs, relative) for pairs in _components(relative)),
        separate=tuple(_explain(pairs, ratios) for pairs in _components(ratios)) if is_chance else (),
    )


def threshold(spread: float) -> float:
    """The least logarithm of a factor that is taken for one."""
    return max(math.log1p(LEAST_DRIFT), 3 * spread)


def _common(ratios: Mapping[Pair, Ratio]) -> tuple[float, int]:
    """The middle ratio if all devices, or most of them in at least three components, are near it; else 1.

    And in how many components they are: within one, devices are alike by their stages, which is one coincidence.
    """
    devices: dict[str, list[float]] = {}
    for (device, _), ratio in ratios.items():
        devices.setdefault(device, []).append(ratio.value)
    if not ratios:
        return 1.0, 0
    values = sorted(ratio.value for ratio in ratios.values())
    middle = values[len(values) // 2]
    margin = threshold(sorted(ratio.spread for ratio in ratios.values())[len(ratios) // 2])
    near = {
        device for device, those in devices.items() if all(abs(math.log(value / middle)) <= margin for value in those)
    }
    count = sum(any(device in near for device, _ in pairs) for pairs in _components(ratios))
    is_shared = len(near) == len(devices) or (count >= FEW and 2 * len(near) > len(devices))
    # Replicas of one stage share its layers: that is no more than one coincidence.
    spans_stages = len({stage for device, stage in ratios if device in near}) > 1
    is_common = is_shared and spans_stages and len(devices) > 1 and abs(math.log(middle)) > margin
    return (middle if is_common else 1.0), count


def _components(pairs: Collection[Pair]) -> list[tuple[Pair, ...]]:
    """Pairs that share a device or a stage, directly or through others."""
    graph = networkx.Graph(list(pairs))
    return [tuple(sorted(pair for pair in pairs if pair[0] in nodes)) for nodes in networkx.connected_components(graph)]


def _explain(pairs: tuple[Pair, ...], ratios: Mapping[Pair, Ratio]) -> Component:
    nodes: list[Node] = list(dict.fromkeys([device for device, _ in pairs]))
    nodes += dict.fromkeys(stage for _, stage in pairs)
    margin = max(threshold(ratios[pair].spread) for pair in pairs)
    if all(abs(math.log(ratios[pair].value)) <= margin for pair in pairs):
        none = FactorExplanation(devices={}, stages={}, is_plausible=True)
        return Component(pairs=pairs, explanations=(none,), leeway=_Leeway(logs={}, low=0.0, high=0.0))
    logs = _solve(pairs, nodes=nodes, ratios=ratios)
    found: dict[frozenset[Node], tuple[float, dict[Node, float]]] = {}
    for anchor in nodes:
        # A device's factor grows by what the stages' shrinks.
        power = -logs[anchor] if isinstance(anchor, str) else logs[anchor]
        factors = {node: log + (power if isinstance(node, str) else -power) for node, log in logs.items()}
        changed = {node: log for node, log in factors.items() if abs(log) > margin}
        found.setdefault(frozenset(changed), (power, changed))
    fewest = min(len(changed) for _, changed in found.values())
    kept = [
        (len(changed) == fewest, power, changed)
        for power, changed in found.values()
        if len(changed) == fewest or len({isinstance(node, str) for node in changed}) == 1
    ]
    kept.sort(key=lambda entry: (not entry[0], -sum(isinstance(node, str) for node in entry[2])))
    return Component(
        pairs=pairs,
        explanations=tuple(_as_explanation(each, is_plausible=ok) for ok, _, each in kept),
        leeway=_leeway(logs, powers=[power for _, power, _ in kept], margin=margin),
    )


def _leeway(logs: Mapping[Node, float], *, powers: Sequence[float], margin: float) -> _Leeway:
    """From where the least device is as planned to where the least stage is, and all `powers` of explanations."""
    ends = [-min(log for node, log in logs.items() if isinstance(node, str))]
    ends.append(min(log for node, log in logs.items() if isinstance(node, int)))
    low, high = min(*ends, *powers), max(*ends, *powers)
    changed = {
        node: log
        for node, log in logs.items()
        if max(abs(log + sign * power) for power in (low, high) for sign in [1 if isinstance(node, str) else -1])
        > margin
    }
    return _Leeway(logs=changed, low=low, high=high)


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


def _merge(chosen: Iterable[FactorExplanation]) -> FactorExplanation:
    parts = tuple(chosen)
    return FactorExplanation(
        devices={device: factor for part in parts for device, factor in part.devices.items()},
        stages={stage: factor for part in parts for stage, factor in part.stages.items()},
        is_plausible=all(part.is_plausible for part in parts),
    )

"""What a running job says about devices, layers and links, and what its iteration time says beside that."""

import heapq
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from planner.actions import Kind
from planner.evidence.certificate import make_bound
from planner.fidelity.attribution import Comparison
from planner.fidelity.executed_run import typical
from planner.layout.costs import CostModel
from planner.layout.stage_replicas import lay_out_stages
from planner.option_values import RankingTime
from planner.plan import Plan
from planner.problem import Problem
from planner.replanning.as_measured import Scales, at_best, exactly, under
from planner.replanning.link_times import SlowLinks, find_slow_links, time_transfers
from planner.replanning.observations import Observations
from planner.replanning.slowdown_factors import Box, Component, FactorExplanation, Factors, Pair, Ratio, find_factors
from planner.simulation.simulate import simulate

_MAX_BOUND_S = 4.0
"""Seconds, roughly, that all bounds together may take."""

LEAST_BOUNDS, MOST_BOUNDS, BOUNDS_OF = 13, 65, 1200
"""Bounds that are made where not everything is certain: the whole, and twice as many as cuts in two. As many as the
third over layers times devices, within the first two: the larger the question, the longer each takes.
"""

_CLOSE = 0.99
"""A bound that is this part of what it can be at most is good enough."""

_LEAST_WIDTH = 0.01
"""Parts whose factors differ by no more (logarithms) are not cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A device, the layers of a stage, a link, or everything, and how much slower than planned it is."""

    kind: Literal["device", "stage", "link", "everything"]
    name: str
    """Of the device; number of the stage; ends of the link; empty for everything."""
    factor: float
    """Measured over planned time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """What explains part of the difference."""

    alternatives: tuple[tuple[Suspect, ...], ...]
    """Each explains it by itself, with all that it lists; several where what was measured does not tell them apart."""
    num_likely: int
    """So many of them, the first, need the fewest coincidences."""
    effect_ns: int
    """How much shorter the replay is with this as planned."""

    @property
    def largest_factor(self) -> float:
        """The factor furthest from 1, in the first alternative."""
        return max((suspect.factor for suspect in self.alternatives[0]), key=lambda factor: max(factor, 1 / factor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A plan, its job, and what tells them apart."""

    culprits: tuple[Culprit, ...]
    """The largest effect first."""
    planned_ns: int
    """The plan by its own figures."""
    present_ns: int
    """The replay at measured durations and links."""
    measured_ns: int | None
    """Median iteration; None where iterations were not seen as a whole."""
    between_ns: int
    """Median time between two iterations: loading of data, saving, logging."""
    parts_ns: Mapping[str, int]
    """Where the iteration is longer than the replay, by what the processes did; empty where it was not seen."""
    missing_devices: tuple[str, ...]
    """Devices without a trace."""
    likeliest: Problem
    """The problem as measured by the likeliest explanation."""
    scales: Scales
    """What costs and links are multiplied with."""

    @property
    def is_ambiguous(self) -> bool:
        """Whether several explanations have to be reckoned with."""
        return any(
            len(each.explanations) > 1
            for factors_tried in self.scales.factors.alternatives()
            for each in factors_tried.components
        )

    @property
    def unexplained_ns(self) -> int:
        """Of an iteration, what neither actions nor transfers explain."""
        return 0 if self.measured_ns is None else self.measured_ns - self.present_ns


def diagnose(problem: Problem, plan: Plan, *, seen: Observations) -> Diagnosis:
    """Attribute what was measured of a running plan to devices, stages and links.

    Raises ValueError for plans whose actions are not each a single process's, and where microbatches differ.
    """
    problem.require_alike("a diagnosis")
    if any(stage.is_split or any(len(group) != 1 for group in stage.groups) for stage in plan.stages):
        raise ValueError(
            "stages on several devices, or split placement: their processes have no separate timings; plan without "
            "either"
        )
    objective = problem.options.objective
    timeline = simulate(problem, plan)
    scales = _scales(problem, plan, seen=seen)
    slow_links: tuple[SlowLinks, ...] = ()
    if seen.iterations:
        transfers = time_transfers(problem, plan, timeline=timeline, iterations=seen.iterations)
        slow_links = find_slow_links(problem, plan, seen=transfers)
    scales = replace(
        scales,
        links=dict(slow.links[0] for slow in slow_links),
        certain_links=dict(slow.links[0] for slow in slow_links if len(slow.links) == 1),
    )
    actual = exactly(problem, plan, scales=scales)
    present = simulate(actual, plan).objective_ns(objective)
    culprits = _find_culprits(problem, plan, scales=scales, slow_links=slow_links, present_ns=present)
    return Diagnosis(
        culprits=culprits,
        planned_ns=timeline.objective_ns(objective),
        present_ns=present,
        measured_ns=_measured_ns(seen, problem.options.ranked_by),
        between_ns=round(statistics.median(seen.between_ns)) if seen.between_ns else 0,
        parts_ns=_parts(actual, plan, seen=seen),
        missing_devices=seen.missing_devices,
        likeliest=under(problem, plan, scales=scales, chosen=scales.factors.likeliest()),
        scales=scales,
    )


def find_limit_ns(problem: Problem, plan: Plan, *, found: Diagnosis) -> int:
    """No plan is below this on the cluster as measured: the least bound over everything that may explain it.

    What is left open is a box of numbers. It is bounded with everything at its least, and cut in two where it is
    widest, again and again the part with the least bound, until that is close to the bound at a corner.
    """
    devices = problem.cluster.by_name
    parts = [
        (0, number, factors_tried, factors_tried.box(devices))
        for number, factors_tried in enumerate(found.scales.factors.alternatives())
    ]
    is_open = len(parts) > 1 or any(high > low for low, high in parts[0][3])
    seconds = _MAX_BOUND_S / LEAST_BOUNDS if is_open else _MAX_BOUND_S / 2
    most = BOUNDS_OF // (len(devices) * len(problem.profile.layers))

    def bound(factors_tried: Factors, box: Box) -> int:
        scales = replace(found.scales, factors=factors_tried)
        best = at_best(problem, plan, scales=scales, chosen=factors_tried.least(box))
        return make_bound(best, CostModel(best), time_limit_s=seconds).value_ns

    parts = [(bound(factors_tried, box), number, factors_tried, box) for _, number, factors_tried, box in parts]
    heapq.heapify(parts)
    corners = [
        (factors_tried, tuple((ends[side],) * 2 for ends in box))
        for _, _, factors_tried, box in parts
        for side in (0, 1)
    ]
    enough = _CLOSE * min(bound(factors_tried, corner) for factors_tried, corner in corners) if is_open else 0
    for number in range(len(parts), max(LEAST_BOUNDS, min(MOST_BOUNDS, most)) - 1, 2):
        value, _, factors_tried, box = parts[0]
        widest = max(range(len(box)), key=lambda each: box[each][1] - box[each][0], default=0)
        if value >= enough or box[widest][1] - box[widest][0] <= _LEAST_WIDTH:
            break
        heapq.heappop(parts)
        for half, cut in enumerate(_halves(box, widest)):
            # What is below everything in the whole is below everything in its part.
            heapq.heappush(parts, (max(value, bound(factors_tried, cut)), number + half, factors_tried, cut))
    return parts[0][0]


def _halves(box: Box, place: int) -> tuple[Box, Box]:
    low, high = box[place]
    middle = (low + high) / 2
    return (*box[:place], (low, middle), *box[place + 1 :]), (*box[:place], (middle, high), *box[place + 1 :])


def _scales(problem: Problem, plan: Plan, *, seen: Observations) -> Scales:
    costs = CostModel(problem)
    place = lay_out_stages(plan.stages, costs=costs).by_place
    planned: dict[Pair, dict[Kind, int]] = {}
    for device, number, kind in seen.durations_ns:
        if duration := costs.planned_ns(plan.stages[number], place[device, number].replica, kind=kind):
            planned.setdefault((device, number), {})[kind] = duration
    pairs: dict[Pair, dict[Kind, float]] = {}
    ratios: dict[Pair, Ratio] = {}
    error = 0.0
    for pair, kinds in planned.items():
        measured = {kind: seen.typical_ns((*pair, kind)) for kind in kinds}
        if not all(measured.values()):
            continue
        pairs[pair] = {kind: measured[kind] / kinds[kind] for kind in kinds}
        whole = sum(kinds.values())
        spread = sum(seen.spread((*pair, kind)) * kinds[kind] for kind in kinds) / whole
        ratios[pair] = Ratio(value=sum(measured.values()) / whole, spread=spread)
        error = max(error, (1 + len(plan.stages[pair[1]].layers)) / min(kinds.values()))
    return Scales(
        pairs=pairs,
        totals={pair: ratio.value for pair, ratio in ratios.items()},
        factors=find_factors(ratios),
        links={},
        certain_links={},
        error=min(error, 0.5),
    )


def _measured_ns(seen: Observations, ranked_by: RankingTime) -> int | None:
    """Only where whole iterations were seen; of the span only what begins and ends with actions counts."""
    if ranked_by == "span" and seen.iterations:
        spans = [
            max(row.actions[-1].end_ns - row.actions[0].start_ns for row in each.rows.values() if row.actions)
            for each in seen.iterations
        ]
        return round(statistics.median(spans))
    if ranked_by == "span" or seen.missing_devices or not seen.iteration_ns:
        return None
    return round(statistics.median(seen.iteration_ns))


def _parts(actual: Problem, plan: Plan, *, seen: Observations) -> dict[str, int]:
    if not seen.iterations:
        return {}
    timeline = simulate(actual, plan)
    comparison = Comparison(actual, plan, timeline=timeline, iterations=seen.iterations)
    return dict(comparison.attribute(typical(seen.iterations)).parts)


def _find_culprits(
    problem: Problem, plan: Plan, *, scales: Scales, slow_links: Iterable[SlowLinks], present_ns: int
) -> tuple[Culprit, ...]:
    def effect(**changed: object) -> int:
        other = exactly(problem, plan, scales=replace(scales, **changed))  # type: ignore[arg-type]
        return present_ns - simulate(other, plan).objective_ns(problem.options.objective)

    found = []
    common = scales.factors.common
    if common != 1.0:
        pairs = {pair: {kind: r / common for kind, r in ratios.items()} for pair, ratios in scales.pairs.items()}
        suspect = Suspect(kind="everything", name="", factor=common)
        found.append(Culprit(alternatives=((suspect,),), num_likely=1, effect_ns=effect(pairs=pairs)))
    for component in scales.factors.components:
        alternatives = tuple(_suspects(each) for each in component.explanations)
        if all(alternatives):
            likely = sum(each.is_plausible for each in component.explanations)
            saved = effect(pairs=_as_planned(scales, component))
            found.append(Culprit(alternatives=alternatives, num_likely=likely, effect_ns=saved))
    for factors_tried in slow_links:
        links = tuple((_link(problem, number, factor=factor),) for number, factor in factors_tried.links)
        others = {link: factor for link, factor in scales.links.items() if link != factors_tried.links[0][0]}
        found.append(Culprit(alternatives=links, num_likely=len(links), effect_ns=effect(links=others)))
    return tuple(sorted(found, key=lambda culprit: -abs(culprit.effect_ns)))


def _link(problem: Problem, number: int, *, factor: float) -> Suspect:
    link = problem.cluster.links[number]
    return Suspect(kind="link", name=f"{link.a} - {link.b}", factor=factor)


def _suspects(explanation: FactorExplanation) -> tuple[Suspect, ...]:
    devices = (Suspect(kind="device", name=name, factor=factor) for name, factor in explanation.devices.items())
    stages = (Suspect(kind="stage", name=str(name), factor=factor) for name, factor in explanation.stages.items())
    return (*devices, *stages)


def _as_planned(scales: Scales, component: Component) -> dict[Pair, dict[Kind, float]]:
    return {
        pair: dict.fromkeys(ratios, scales.factors.common) if pair in component.pairs else dict(ratios)
        for pair, ratios in scales.pairs.items()
    }

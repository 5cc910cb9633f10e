"""Rules: it fits, and its times are right."""

from collections.abc import Iterator

import networkx

from planner.costs import overlaps
from planner.errors import PlanError
from planner.plan import Stage
from planner.rules.case import Case, Finding, Findings, shown
from planner.split_placement import common, input_grad_ranges


def route_missing(case: Case) -> Findings:
    """Every transfer and every ring of replicas has a route."""
    part_of = {}
    for number, part in enumerate(networkx.connected_components(_link_graph(case))):
        part_of.update(dict.fromkeys(part, number))
    for source, target in dict.fromkeys(_neighbours(case)):
        if part_of.get(source, source) != part_of.get(target, target):
            message = f"Devices {source} and {target} have to exchange data, but no links connect them."
            yield Finding(f"{source} to {target}", "a route", "none", message)


def _link_graph(case: Case) -> "networkx.Graph[str]":
    graph: networkx.Graph[str] = networkx.Graph()
    graph.add_edges_from((link.a, link.b) for link in case.problem.cluster.links)
    return graph


def _neighbours(case: Case) -> Iterator[tuple[str, str]]:
    """Pairs of devices that exchange something."""
    stages = case.plan.stages
    for a, b in case.costs.traffic(stages):
        for i, j, *_ in overlaps(len(stages[a].replicas), len(stages[b].replicas)):
            sender, receiver = stages[a].replicas[i][0], stages[b].replicas[j][0]
            if sender != receiver:
                yield sender, receiver
        if stages[a].is_split or stages[b].is_split:
            yield from _gradient_neighbours(case, (stages[a], stages[b]))
    for _, stage in case.split_stages():
        owner, *others = case.costs.parts(stage)
        yield from ((owner.device, part.device) for part in others)
        yield from ((a.device, b.device) for a in others for b in others if a.share and "W" in b.kinds and a != b)
    for stage in stages:
        heads = [group[0] for group in stage.replicas]
        if len(heads) > 1:
            yield from zip(heads, [*heads[1:], heads[0]], strict=True)


def _gradient_neighbours(case: Case, ends: tuple[Stage, Stage]) -> Iterator[tuple[str, str]]:
    """Pairs of devices that exchange gradients, where one of the stages has split placement."""
    heads = [
        [part.device for part in case.costs.parts(stage)] if stage.is_split else [group[0] for group in stage.replicas]
        for stage in ends
    ]
    for taker in input_grad_ranges(ends[0]):
        for maker in input_grad_ranges(ends[1]):
            pair = heads[1][maker.number], heads[0][taker.number]
            if common(taker, maker) and pair[0] != pair[1]:
                yield pair


def memory_exceeded(case: Case) -> Findings:
    """No device ever holds more than its memory."""
    for device, use in case.memory.items():
        limit = case.problem.cluster.by_name[device].memory_bytes
        if use.peak_bytes > limit:
            when = f"first during {use.first_over}" if use.first_over else "before its first action"
            message = f"Device {device} holds up to {use.peak_bytes} bytes, above its {limit}, {when}."
            yield Finding(f"device {device}", f"at most {limit}", use.peak_bytes, message)


def timeline_broken(case: Case) -> Findings:
    """The simulator plays the plan, and its timeline obeys every equation of the second evaluation."""
    if isinstance(case.played, PlanError):
        yield Finding("the timeline", "a timeline", "none", f"The simulator cannot play the plan: {case.played}.")
    elif case.replayed is not None:
        for text in case.replayed.inconsistencies:
            message = f"The simulator and the second evaluation disagree: {text}."
            yield Finding("the timeline", "no inconsistency", text, message)


def span_differs(case: Case) -> Findings:
    """The simulator's span is the one recomputed."""
    assert case.timeline is not None
    assert case.replayed is not None
    if case.timeline.span_ns != case.replayed.span_ns:
        yield from _evaluations("span", expected=case.replayed.span_ns, actual=case.timeline.span_ns)


def peaks_differ(case: Case) -> Findings:
    """The simulator's peaks of memory are those recomputed."""
    assert case.timeline is not None
    assert case.replayed is not None
    if case.timeline.peak_bytes != case.replayed.peak_bytes:
        yield from _evaluations("peak_bytes", expected=case.replayed.peak_bytes, actual=case.timeline.peak_bytes)


def _evaluations(figure: str, *, expected: object, actual: object) -> Findings:
    message = f"The simulator and the second evaluation disagree about {figure}: {shown(actual)}, {shown(expected)}."
    yield Finding(figure, expected, actual, message)

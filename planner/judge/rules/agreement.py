"""Rules: it fits, and the core's timeline is the one that the contract demands."""

from collections.abc import Iterator

from planner.judge.case import Case, Finding, Findings, Rules, shown
from planner.judge.memory import usable_bytes
from planner.judge.rules.evidence import TOLERANCE
from planner.judge.synchronisation import ring_pairs


def route_missing(case: Case) -> Findings:
    """Every transfer and every ring of replicas has a route."""
    part_of = case.reading.routes.connected()
    for source, target in dict.fromkeys(_exchanging(case)):
        if source != target and part_of.get(source, source) != part_of.get(target, target):
            message = f"Devices {source} and {target} have to exchange data, but no links connect them."
            yield Finding(f"{source} to {target}", "a route", "none", message)


def _exchanging(case: Case) -> Iterator[tuple[str, str]]:
    """Pairs of devices that exchange something."""
    replicas = case.reading.replicas
    for channel in case.reading.channels:
        yield replicas[channel.sender].head, replicas[channel.receiver].head
    for stage in case.plan.stages:
        yield from ring_pairs(stage)


def memory_exceeded(case: Case) -> Findings:
    """No device ever holds more than its memory."""
    for device, use in case.reading.memory.items():
        limit = usable_bytes(case.reading.devices[device])
        if use.peak_bytes > limit:
            when = f"first during {use.first_over}" if use.first_over else "before its first action"
            message = f"Device {device} holds up to {use.peak_bytes} bytes, above its {limit}, {when}."
            yield Finding(f"device {device}", f"at most {limit}", use.peak_bytes, message)


def timeline_broken(case: Case) -> Findings:
    """The core plays the plan, and its timeline obeys every equation of the contract."""
    if isinstance(case.played, str):
        yield Finding("the timeline", "a timeline", "none", f"The core cannot play the plan: {case.played}.")
    elif case.judgement is not None:
        for text in case.judgement.inconsistencies:
            yield Finding("the timeline", "no inconsistency", text, f"The core and the judge disagree: {text}.")


def span_differs(case: Case) -> Findings:
    """The core's span is the one recomputed."""
    assert case.timeline is not None
    assert case.judgement is not None
    if case.timeline.span_ns != case.judgement.span_ns:
        yield from _evaluations("span", expected=case.judgement.span_ns, actual=case.timeline.span_ns)


def bubble_differs(case: Case) -> Findings:
    """The core's bubble is the one recomputed, to 1e-9."""
    assert case.timeline is not None
    assert case.judgement is not None
    if abs(case.timeline.bubble - case.judgement.bubble) > TOLERANCE:
        yield from _evaluations("bubble", expected=case.judgement.bubble, actual=case.timeline.bubble)


def peaks_differ(case: Case) -> Findings:
    """The core's peaks of memory are those recomputed."""
    assert case.timeline is not None
    assert case.judgement is not None
    if case.timeline.peak_bytes != case.judgement.peak_bytes:
        yield from _evaluations("peak_bytes", expected=case.judgement.peak_bytes, actual=case.timeline.peak_bytes)


def _evaluations(figure: str, *, expected: object, actual: object) -> Findings:
    message = f"The core and the judge disagree about {figure}: {shown(actual)}, {shown(expected)}."
    yield Finding(figure, expected, actual, message)


ROUTE_RULES: Rules = {
    route_missing: "Add a link to the cluster, or put the stages on devices that links connect.",
}

MEMORY_RULES: Rules = {
    memory_exceeded: "Run fewer microbatches at a time there, recompute, or move layers.",
}

TIMELINE_RULES: Rules = {
    timeline_broken: "Report it with the plan: the planner itself is wrong.",
}

FIGURE_RULES: Rules = dict.fromkeys((span_differs, bubble_differs, peaks_differ), *TIMELINE_RULES.values())

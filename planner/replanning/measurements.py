"""How long actions really took: from the executor's own timings, or from traces of torch's profiler (Kineto)."""

import json
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.actions import Kind, parse_action

_NAME = re.compile(r"(?:PP:)?([0-9]+[FIWB][0-9]+)")
"""`0F3`, or as torch's pipelining runtime marks it for its profiler, `PP:0F3`."""

Key = tuple[int, Kind]
"""A stage and a kind of action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What was executed."""

    durations_ns: Mapping[Key, tuple[int, ...]]
    """Every measured action, by stage and kind."""

    def typical_ns(self, stage: int, kind: Kind) -> int | None:
        """The median; None if no such action was measured."""
        spans = self.durations_ns.get((stage, kind))
        return None if not spans else round(statistics.median(spans))


def parse_measurements(documents: Iterable[tuple[str, str | bytes]]) -> Measurements:
    """Put several documents together, each given as (its name, its text).

    Of the executor's `rankN.json` the first iteration is left out where there are others: it warms up. Raises
    ValueError that names a document that is neither that nor a trace, and if no action is in any of them.
    """
    durations: dict[Key, list[int]] = {}
    for source, text in documents:
        for name, span in _spans(text, source=source):
            action = parse_action(name)
            durations.setdefault((action.stage, action.kind), []).append(span)
    if not durations:
        raise ValueError("no action was measured in what was given; run with --trace, or profile the actions (PP:0F0)")
    return Measurements(durations_ns={key: tuple(spans) for key, spans in sorted(durations.items())})


def _spans(text: str | bytes, *, source: str) -> list[tuple[str, int]]:
    try:
        document: Any = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{source}: not JSON ({str(error)[:80]}); give timings of the executor, or a trace") from None
    try:
        if isinstance(document, dict) and "iterations" in document:
            return _of_rank(document["iterations"])
        events = document["traceEvents"] if isinstance(document, dict) else document
        return _of_trace(events)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError(
            f"{source}: neither the executor's timings (rankN.json) nor a trace of torch's profiler"
        ) from None


def _of_rank(iterations: list[list[tuple[str, int, int]]]) -> list[tuple[str, int]]:
    kept = iterations[1:] or iterations
    return [(name, end - start) for row in kept for name, start, end in row if _NAME.fullmatch(name)]


def _of_trace(events: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Complete events whose name is an action; the profiler states microseconds."""
    found = []
    for event in events:
        match = _NAME.fullmatch(str(event.get("name", "")))
        if event.get("ph") == "X" and match is not None:
            found.append((match[1], round(float(event["dur"]) * 1000)))
    return found

"""Clocks of a job's ranks, held against each other by what cannot have come before what: set right, or refused.

An action ends after the one that made its input, whatever the clocks say. Per pair of ranks that gives a least and a
greatest offset, proved as long as both clocks run evenly for the length of an iteration.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from networkx import DiGraph

SLACK_NS = 50_000
"""So much may a profiler's times of one host contradict each other: a GPU's clock is told from the host's."""

Entry = tuple[int, int, str, int, int]
"""Start, end, kind, stage and microbatch."""

Gaps = dict[tuple[str, str], int]
"""By two devices: by how much at least the second's clock has to be set forward against the first's."""

_PREVIOUS = {"F": -1, "B": 1, "I": 1}
"""By kind: where the stage is that makes an action's input."""


class ClockWindow(NamedTuple):
    """What was added to a device's clock in one iteration, and what might have been."""

    low_ns: int
    """The least that contradicts nothing, against the first device."""
    high_ns: int
    """The greatest."""
    offset_ns: int
    """What was added: the middle, which contradicts nothing either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRules:
    """What is known about when an action can start, and about who talks to whom."""

    source: str
    """The file that a refusal names."""
    starts_with_input: bool
    """Whether an action's time begins once its input is there; otherwise it may wait for it within its time."""
    pairs: frozenset[tuple[str, str]] | None = None
    """Devices that follow each other in a pipeline; None: told only where a stage has one device."""


def find_windows(
    iterations: Iterable[Mapping[str, Sequence[Entry]]], *, rules: ClockRules
) -> tuple[list[dict[str, ClockWindow]], dict[str, ClockWindow]]:
    """Of every iteration its devices' windows, and the widest of every device whose clock has to be set.

    One offset for all iterations where one can be, else one for each. Where times contradict nothing it is 0.
    `iterations` are gone through once. Raises ValueError that names ranks and skew where no offsets help.
    """
    gaps, names = [], set[str]()
    for rows in iterations:
        gaps.append(_gaps(rows, rules=rules))
        names |= rows.keys()
    devices = sorted(names)
    try:
        windows = [_windows(_merged(gaps), devices=devices, source=rules.source)] * len(gaps)
    except ValueError:
        windows = [_windows(each, devices=devices, source=rules.source) for each in gaps]
    told = {
        device: max((found[device] for found in windows), key=lambda each: abs(each.offset_ns)) for device in devices
    }
    return windows, {device: window for device, window in told.items() if window.offset_ns}


def on_one_clock(rows: Mapping[str, Sequence[Entry]], windows: Mapping[str, ClockWindow]) -> dict[str, list[Entry]]:
    """An iteration with its offsets added."""
    return {device: _moved(row, windows[device].offset_ns) for device, row in rows.items()}


def _merged(gaps: Sequence[Gaps]) -> Gaps:
    """The widest of all iterations."""
    found: Gaps = {}
    for each in gaps:
        for pair, gap in each.items():
            found[pair] = max(gap, found.get(pair, gap))
    return found


def _moved(row: Sequence[Entry], offset: int) -> list[Entry]:
    return [(start + offset, end + offset, kind, stage, number) for start, end, kind, stage, number in row]


def _gaps(rows: Mapping[str, Sequence[Entry]], *, rules: ClockRules) -> Gaps:
    """Of actions that follow each other for certain; ValueError where one is before all that may make its input."""
    made: dict[tuple[str, int, int], list[tuple[str, int]]] = defaultdict(list)
    for device, row in rows.items():
        for _, end, kind, stage, number in row:
            if kind in _PREVIOUS:
                made["F" if kind == "F" else "B", stage, number].append((device, end))
    gaps: Gaps = {}
    for device, row in rows.items():
        for start, end, kind, stage, number in row:
            if kind not in _PREVIOUS:
                continue
            direction, before = "F" if kind == "F" else "B", stage + _PREVIOUS[kind]
            makers = made.get((direction, before, number), [])
            own = len(made[direction, stage, number])
            known = _certain(makers, device, num_own=own, pairs=rules.pairs)
            for maker, ready in known:
                key = maker, device
                gaps[key] = max(gaps.get(key, -(2**62)), ready - (start if rules.starts_with_input else end))
            late = min((ready for _, ready in makers), default=end) - end
            if not known and late > SLACK_NS:
                names = ", ".join(sorted(repr(name) for name, _ in makers))
                raise ValueError(
                    f"{rules.source}: {kind} of microbatch {number} at stage {stage} ends on {device!r} "
                    f"{late / 1e6:.1f} ms before any of {names} has made its input; synchronise the ranks' clocks and "
                    "export the traces again"
                )
    return gaps


def _certain(
    makers: Sequence[tuple[str, int]], device: str, *, num_own: int, pairs: frozenset[tuple[str, str]] | None
) -> list[tuple[str, int]]:
    """Those of whom the device must have got something: a stage of one device, or of its own pipeline."""
    if pairs is not None:
        return [each for each in makers if (each[0], device) in pairs or (device, each[0]) in pairs]
    return [each for each in makers if each[0] != device] if len(makers) == 1 or num_own == 1 else []


def _windows(gaps: Gaps, *, devices: Sequence[str], source: str) -> dict[str, ClockWindow]:
    """Offsets under which every gap is closed; nothing is added where none is open.

    Longest ways through the gaps from the first device and to it are the least and the greatest offset of every other
    (differences of that kind can be met together, and so can their means, since each is linear in the offsets).
    """
    none = ClockWindow(0, 0, 0)
    if all(gap <= SLACK_NS for gap in gaps.values()):
        return dict.fromkeys(devices, none)
    back = {(b, a): gap for (a, b), gap in gaps.items()}
    found: dict[str, ClockWindow] = {}
    for first in devices:
        if first in found:
            continue
        low = _longest(gaps, first, source=source)
        high = {device: -far for device, far in _longest(back, first, source=source).items()}
        found[first] = none
        both = sorted((low.keys() & high.keys()) - found.keys())
        found |= {each: ClockWindow(low[each], high[each], (low[each] + high[each]) // 2) for each in both}
    left = [(a, b) for (a, b), gap in gaps.items() if gap + found[a].offset_ns - found[b].offset_ns > 2 * SLACK_NS]
    if left:
        a, b = left[0]
        raise ValueError(
            f"{source}: {b!r} has its input before {a!r} has made it, by {gaps[a, b] / 1e6:.1f} ms, and no message "
            "back shows their clock offset; synchronise the clocks and export the traces again"
        )
    return found


def _longest(gaps: Gaps, first: str, *, source: str) -> dict[str, int]:
    """To every device that can be reached; ValueError where a way comes round with something left."""
    import networkx  # takes longer to load than all else here

    graph: DiGraph[str] = networkx.DiGraph()
    graph.add_node(first)
    graph.add_weighted_edges_from((a, b, SLACK_NS - gap) for (a, b), gap in gaps.items())
    try:
        found = networkx.single_source_bellman_ford_path_length(graph, first)
    except networkx.NetworkXUnbounded:
        ring = sorted(set(networkx.find_negative_cycle(graph, first)))
        raise ValueError(_contradiction(gaps, ring, source=source)) from None
    return {device: -int(length) for device, length in found.items()}


def _contradiction(gaps: Gaps, ring: Sequence[str], *, source: str) -> str:
    """One sentence with the ranks and the skew that no offset removes."""
    a, b = ring[0], ring[-1]
    least, most = gaps.get((a, b)), gaps.get((b, a))
    if len(ring) == 2 and least is not None and most is not None:
        told = (
            f"by one way {b!r} is at least {least / 1e6:.1f} ms behind {a!r}, by the other at most {-most / 1e6:.1f} ms"
        )
    else:
        told = f"offsets of {', '.join(map(repr, ring))} do not add up"
    return (
        f"{source}: inputs arrive before they are made, whatever the clock offsets ({told}); give traces of one run, "
        "and set the clocks right before it"
    )

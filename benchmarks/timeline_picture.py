"""Timelines as one SVG, on one scale: a plan's prediction above its run, or several schedules of one question."""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from planner.simulation.timeline import TimedAction

Rows = Mapping[str, Sequence[TimedAction]]
"""By device what runs on it."""

Group = Sequence[tuple[str, Sequence[TimedAction]]]
"""Lanes that lie close together, by name."""

COLOURS = {"F": "#2a5bb8", "I": "#f4a83a", "W": "#3aae86", "B": "#862a68"}
"""Those of the viewer."""

NAMES = {"F": "forward", "I": "input gradient", "W": "weight gradient", "B": "backward"}

WIDTH, LEFT, LANE, GAP, TOP, BOTTOM = 900, 150, 22, 14, 30, 26
"""Pixels: the picture, its names, a row, the room between devices, the key above and the axis below."""

EDGE = 24
"""Pixels that the words of a mark need on either side."""

NS_PER_MS = 1_000_000


def tick_ms(end_ns: int, *, at_most: int = 8) -> float:
    """The distance of the axis' marks: 1, 2 or 5 times a power of ten."""
    step = 1e-6
    while True:
        for factor in (1, 2, 5):
            if end_ns / NS_PER_MS / (factor * step) <= at_most:
                return factor * step
        step *= 10


def draw_timelines(planned: Rows, run: Rows) -> str:
    """The picture's document, device by device the prediction and the run; both timelines begin at 0."""
    return draw_groups([[(f"{device} planned", row), ("run", run.get(device, ()))] for device, row in planned.items()])


def draw_groups(groups: Sequence[Group]) -> str:
    """The picture's document; all timelines begin at 0."""
    actions = [timed for group in groups for _, row in group for timed in row]
    end = max((timed.end_ns for timed in actions), default=1)
    scale = (WIDTH - LEFT - 10) / end
    height = TOP + sum(len(group) * LANE + GAP for group in groups) + BOTTOM
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
    parts = [
        f'<svg {box} font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *_key({timed.action.kind for timed in actions}),
        *_axis(end, scale=scale, height=height),
    ]
    top = TOP
    for group in groups:
        for name, row in group:
            parts += _lane(name, row, top=top, scale=scale)
            top += LANE
        top += GAP
    return "\n".join([*parts, "</svg>"]) + "\n"


def _key(kinds: set[str]) -> list[str]:
    parts, x = [], LEFT
    for kind in (kind for kind in COLOURS if kind in kinds):
        parts.append(f'<rect x="{x}" y="8" width="12" height="12" fill="{COLOURS[kind]}"/>')
        parts.append(f'<text x="{x + 17}" y="18" fill="#1b2026">{NAMES[kind]}</text>')
        x += 130
    return parts


def _axis(end_ns: int, *, scale: float, height: int) -> list[str]:
    parts, step = [], tick_ms(end_ns)
    for number in range(int(end_ns / NS_PER_MS / step) + 1):
        x = LEFT + number * step * NS_PER_MS * scale
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{height - BOTTOM}" stroke="#dde1e6"/>')
        anchor = "middle" if x + EDGE < WIDTH else "end"
        parts.append(
            f'<text x="{x:.1f}" y="{height - 9}" text-anchor="{anchor}" fill="#5f6b78">{number * step:g} ms</text>'
        )
    return parts


def _lane(name: str, actions: Sequence[TimedAction], *, top: int, scale: float) -> list[str]:
    """A second stage of a device is drawn lighter."""
    first = min((timed.action.stage for timed in actions), default=0)
    parts = [f'<text x="{LEFT - 8}" y="{top + 15}" text-anchor="end" fill="#1b2026">{escape(name)}</text>']
    for timed in actions:
        x, width = LEFT + timed.start_ns * scale, (timed.end_ns - timed.start_ns) * scale
        colour, opacity = COLOURS[timed.action.kind], 1 if timed.action.stage == first else 0.6
        parts.append(
            f'<rect x="{x:.1f}" y="{top + 1}" width="{max(width - 0.5, 0.5):.1f}" height="{LANE - 2}" fill="{colour}" '
            f'fill-opacity="{opacity}"><title>{escape(str(timed.action))}</title></rect>'
        )
    return parts

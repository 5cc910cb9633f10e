"""A step as it ran beside its replay, as a picture: a row per device, the same axis of time for both."""

from collections.abc import Mapping
from xml.sax.saxutils import escape

from planner.fidelity.run_replay import replay_ends_ns
from profiles.importers.straggler import Key, RunStep

LEFT, WIDTH, ROW, PANEL = 150, 900, 18, 46
"""Pixels: names, the axis, a device's row, and what a panel has above its rows."""

COLOURS = {"F": "#4878a8", "B": "#6aa84f"}


def draw_step(step: RunStep, *, title: str) -> str:
    """As SVG; the text that stands on actions is their microbatch."""
    as_run, replayed = step.ends_as_run_ns(), replay_ends_ns(step)
    longest = max(max(as_run.values()), max(replayed.values()))
    height = len(step.actions) * ROW + PANEL
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" height="{2 * height + 40}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for place, (name, ends) in enumerate((("as run", as_run), ("replayed", replayed))):
        told = f"{title}, {name}: {max(ends.values()) / 1e6:,.1f} ms"
        lines += _panel(step, ends, top=place * height + 10, scale=WIDTH / longest, title=told)
    lines += _axis(longest, top=2 * height + 10)
    return "\n".join([*lines, "</svg>", ""])


def _panel(step: RunStep, ends: Mapping[Key, int], *, top: int, scale: float, title: str) -> list[str]:
    lines = [f'<text x="4" y="{top + 18}" font-weight="bold">{escape(title)}</text>']
    for number, (seat, row) in enumerate(sorted(step.actions.items())):
        y = top + 28 + number * ROW
        lines.append(f'<text x="4" y="{y + 12}">pipeline {seat[0]}, stage {seat[1]}</text>')
        for action in row:
            end = ends[(*seat, action.kind, action.microbatch)]
            x, wide = LEFT + (end - action.duration_ns) * scale, action.duration_ns * scale
            lines.append(
                f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{ROW - 3}" fill="{COLOURS[action.kind]}" '
                f'stroke="white" stroke-width="0.5"/><text x="{x + wide / 2:.1f}" y="{y + 11}" fill="white" '
                f'font-size="9" text-anchor="middle">{action.microbatch}</text>'
            )
    return lines


def _axis(longest: int, *, top: int) -> list[str]:
    """Forwards and backwards by colour, and the time at the ends of the axis."""
    return [
        f'<text x="{LEFT}" y="{top + 14}">0</text>',
        f'<text x="{LEFT + WIDTH}" y="{top + 14}" text-anchor="end">{longest / 1e6:,.1f} ms</text>',
        f'<text x="{LEFT + WIDTH // 2}" y="{top + 14}" text-anchor="middle" fill="{COLOURS["F"]}">forward</text>',
        f'<text x="{LEFT + WIDTH // 2 + 60}" y="{top + 14}" text-anchor="middle" fill="{COLOURS["B"]}">backward</text>',
    ]

"""How figures are written for people: milliseconds, GiB, percent, ratios and lists that are cut in the middle."""

from collections import Counter
from collections.abc import Sequence

from planner.plan import DeviceGroup, Stage

ABSENT = "–"
"""Stands where there is no figure."""


def render_ms(nanoseconds: int | None) -> str:
    """Milliseconds with about four digits: `0.123`, `12.35`, `1,234.6`."""
    if nanoseconds is None:
        return ABSENT
    value = nanoseconds / 10**6
    digits = 3 if value < 10 else 2 if value < 100 else 1
    return f"{value:,.{digits}f}"


def render_bytes(num_bytes: int) -> str:
    """GiB, or MiB below a tenth of that: `9.31 GiB`, `12.0 MiB`."""
    if abs(num_bytes) >= 2**30 // 10 or num_bytes == 0:
        return f"{num_bytes / 2**30:,.2f} GiB"
    return f"{num_bytes / 2**20:,.1f} MiB" if abs(num_bytes) >= 2**20 // 10 else f"{num_bytes:,} bytes"


def render_of_limit(num_bytes: int, limit_bytes: int) -> str:
    """`9.31 / 16.00 GiB`; the unit only once where both have the same."""
    value, unit = render_bytes(num_bytes).split(" ")
    limit, limit_unit = render_bytes(limit_bytes).split(" ")
    return f"{value} / {limit} {limit_unit}" if unit == limit_unit else f"{value} {unit} / {limit} {limit_unit}"


def render_percent(fraction: float | None) -> str:
    """One digit: `12.3 %`; a fraction that only rounds to zero is `<0.1 %`."""
    if fraction is None:
        return ABSENT
    return "<0.1 %" if 0 < fraction < 0.0005 else f"{100 * fraction:.1f} %"


def render_ratio(value: int | None, unit: int | None) -> str:
    """How many times `unit` goes into `value`: `1.23×`."""
    return ABSENT if not value or not unit else f"{value / unit:.2f}×"


def render_seconds(seconds: float) -> str:
    """Seconds with as many digits as matter: `0.42 s`, `12.3 s`, `120 s`."""
    return f"{seconds:.{2 if seconds < 10 else 1 if seconds < 100 else 0}f} s"


def render_bar(fraction: float, *, width: int = 8) -> str:
    """A bar `width` cells long, filled up to `fraction`."""
    filled = min(width, max(0, round(fraction * width)))
    return "█" * filled + "░" * (width - filled)


def render_recomputation(stage: Stage) -> str:
    """`recomputed`, or where only some layers are, or not fully, `3 of 8 recomputed (2 full, 1 selective)`; or ``.

    Where only some microbatches are: `recomputed for 2 microbatches`.
    """
    count = len(stage.recompute_microbatches)
    which = f" for {count} microbatch{'es' * (count > 1)}" if count else ""
    if isinstance(stage.recompute, bool):
        return f"recomputed{which}" if stage.recompute else ""
    counts = Counter(kind for _, kind in stage.recompute)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return f"{counts.total()} of {len(stage.layers)} recomputed ({kinds}){which}" if counts else ""


def render_recomputed(stage: Stage) -> str:
    """The sign of a stage that recomputes, with the number of its layers if not all do: `↻ `, `↻3/8 `; or ``."""
    count = len(stage.recomputed)
    return "" if not count else "↻ " if count == len(stage.layers) else f"↻{count}/{len(stage.layers)} "


def render_layers(names: Sequence[str], *, width: int = 32) -> str:
    """`first … last (n)`, long names cut."""
    if len(names) == 1:
        return _cut(names[0], width)
    tail = f" ({len(names)})"
    each = (width - len(tail) - 3) // 2
    return f"{_cut(names[0], each)} … {_cut(names[-1], each)}{tail}"


def render_groups(groups: Sequence[DeviceGroup], *, width: int = 20) -> str:
    """The device groups of a stage: `gpu0 gpu1 ×2`, or `gpu0 … gpu7 ×8`; the devices of a wide group joined by `+`."""
    tail = f" ×{len(groups)}" if len(groups) > 1 else ""
    names = ["+".join(group) for group in groups]
    text = " ".join(names)
    if len(text) + len(tail) > width and len(names) > 2:
        each = (width - len(tail) - 3) // 2
        text = f"{_cut(names[0], each)} … {_cut(names[-1], each)}"
    return _cut(text, width - len(tail)) + tail


def render_samples(stage: Stage) -> str:
    """How many samples each replica takes, ` 3+1`, where these are unequal; otherwise nothing."""
    return f" {'+'.join(map(str, stage.samples))}" if stage.samples else ""


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"

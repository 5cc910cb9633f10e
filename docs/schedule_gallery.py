"""Draws schedules as SVG pictures for the pages: the planner's own baselines, and the tutorial's plan beside two.

The baselines answer one question: four devices, eight microbatches, equal stages, F = I = W = 1 step per device and
microbatch, and transfers that take no time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from api.inputs import read_plan_and_problem
from api.reporting.what_if_range import make_named_baseline
from planner.baselines.layouts import EVEN
from planner.baselines.registry import METHODS, make_method_plan
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.planning import Limits, make_plan
from planner.problem import Options, Problem
from planner.simulation.simulate import Timeline, simulate
from planner.simulation.timeline import TimedAction
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile

NUM_DEVICES, NUM_MICROBATCHES = 4, 8
STEP_NS = 1_000
"""F, I or W of all layers of a device, for one microbatch."""
STASH_BYTES = 2
"""What one microbatch keeps on a device until its W has ended."""

SCHEDULES = {
    "GPipe": 8, "1F1B": 4, "interleaved 1F1B": 6, "breadth-first": 8, "ZB-H1": 4, "ZB-H2": 7, "ZB-V": 4,
    "V-Half": 3, "V-Min": 2, "capped greedy": 3, "capped V": 3,
}  # fmt: skip
"""Per method how many microbatches fit into the memory of a device."""
OURS = "joint search"
OURS_CAPACITY, OURS_ROUNDS = 3, 1

COLOURS = {"F": "#2a5bb8", "I": "#f4a83a", "W": "#3aae86", "B": "#862a68"}
"""Those of the viewer."""
NAMES = {"F": "forward", "I": "input gradient", "W": "weight gradient", "B": "backward, I and W in one"}
STEP_PX, ROW_PX, LEFT_PX, TOP_PX, TUTORIAL_PX = 24, 22, 64, 48, 820
TUTORIAL = Path(__file__).resolve().parents[1] / "examples" / "tutorial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A schedule to draw."""

    name: str
    timeline: Timeline

    @property
    def caption(self) -> str:
        """Its length, its idle part, and the microbatches that its fullest device holds."""
        steps = self.timeline.makespan_ns / STEP_NS
        held = max(self.timeline.peak_bytes.values()) / STASH_BYTES
        return f"{self.name}: {steps:g} steps, bubble {self.timeline.bubble:.1%}, holds {held:g} microbatches"


def write_gallery(folder: Path) -> None:
    """Write a picture per schedule, of memory over time, and of the tutorial; what has not changed is left alone."""
    pictures = list(make_pictures())
    files = {f"schedule-{picture.name.lower().replace(' ', '-')}.svg": draw_schedule(picture) for picture in pictures}
    files["memory-over-time.svg"] = draw_memory(pictures)
    files["tutorial-schedules.svg"] = draw_tutorial(tutorial_timelines())
    for name, text in files.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def make_pictures() -> Iterator[Picture]:
    """Every schedule of the gallery, ours last."""
    methods = {method.name: method for method in METHODS}
    for name, capacity in SCHEDULES.items():
        problem = make_question(capacity)
        plan = make_method_plan(CostModel(problem), methods[name], cut=EVEN)
        yield Picture(name=name, timeline=simulate(problem, plan))
    problem = make_question(OURS_CAPACITY)
    yield Picture(name=OURS, timeline=simulate(problem, our_plan(problem)))


def our_plan(problem: Problem) -> Plan:
    """What the planner finds in so many rounds, the same on every machine."""
    return make_plan(problem, limits=Limits(max_rounds=OURS_ROUNDS, threads=1))


def make_question(capacity: int) -> Problem:
    """Two equal layers per device; a device has memory for so many microbatches."""
    names = [f"layer{number}" for number in range(2 * NUM_DEVICES)]
    half = STEP_NS // 2
    cost = LayerCost(device_type="gpu", forward_ns=half, input_grad_ns=half, weight_grad_ns=half)
    stash = STASH_BYTES // 2
    layers = tuple(
        Layer(name=name, costs=(cost,), parameter_bytes=1, state_bytes=0, stash_bytes=stash, weight_stash_bytes=stash)
        for name in names
    )
    devices = [f"gpu{number}" for number in range(NUM_DEVICES)]
    return Problem(
        profile=ModelProfile(
            name="equal layers",
            layers=layers,
            edges=tuple(Edge(producer=a, consumer=b, bytes=0) for a, b in pairwise(names)),
        ),
        cluster=Cluster(
            name="ring",
            devices=tuple(Device(name=name, type="gpu", memory_bytes=capacity * STASH_BYTES) for name in devices),
            links=tuple(Link(a=a, b=b, bandwidth_bytes_per_s=10**9) for a, b in pairwise([*devices, devices[0]])),
        ),
        num_microbatches=NUM_MICROBATCHES,
        options=Options(receive_buffers=0, max_replicas=1),
    )


def draw_schedule(picture: Picture) -> str:
    """A row per device; a box is an action with its microbatch, lighter for a device's second stage."""
    actions = picture.timeline.actions
    end = max(timed.end_ns for row in actions.values() for timed in row)
    width, height = LEFT_PX + int(end / STEP_NS * STEP_PX) + 8, TOP_PX + ROW_PX * len(actions) + 8
    parts = [f'<text x="8" y="18" font-weight="bold" fill="#1b2026">{picture.caption}</text>', *_key(actions)]
    for number, (device, row) in enumerate(actions.items()):
        parts += _row(device, row, top=TOP_PX + number * ROW_PX, scale=STEP_PX / STEP_NS)
    return _document(parts, width=max(width, 560), height=height)


def tutorial_timelines() -> dict[str, Timeline]:
    """GPipe, 1F1B and the committed plan of `examples/tutorial`, by name."""
    plan, problem = read_plan_and_problem(str(TUTORIAL / "plan.json"), str(TUTORIAL / "workload.json"), cluster=None)
    plans = {name: make_named_baseline(problem, f"{name} (largest stage minimised)") for name in ("GPipe", "1F1B")}
    return {name: simulate(problem, each) for name, each in (plans | {"the plan": plan}).items()}


def draw_tutorial(timelines: Mapping[str, Timeline]) -> str:
    """Several schedules of one question below each other on one scale, each with its length."""
    scale = TUTORIAL_PX / max(timeline.makespan_ns for timeline in timelines.values())
    parts, top = (
        list(_key({device: row for each in timelines.values() for device, row in each.actions.items()})),
        TOP_PX,
    )
    for name, timeline in timelines.items():
        parts.append(f'<text x="8" y="{top + 15}" fill="#1b2026">{name}: {timeline.makespan_ns / 1e6:.1f} ms</text>')
        for device, row in timeline.actions.items():
            top += ROW_PX
            parts += _row(device, row, top=top, scale=scale)
        top += 2 * ROW_PX
    return _document(parts, width=LEFT_PX + TUTORIAL_PX + 8, height=top)


def _key(actions: Mapping[str, Sequence[TimedAction]]) -> Iterator[str]:
    kinds, x = {timed.action.kind for row in actions.values() for timed in row}, LEFT_PX
    for kind in (kind for kind in COLOURS if kind in kinds):
        yield f'<rect x="{x}" y="27" width="12" height="12" fill="{COLOURS[kind]}"/>'
        yield f'<text x="{x + 17}" y="37" fill="#1b2026">{NAMES[kind]}</text>'
        x += 40 + 7 * len(NAMES[kind])


def _row(device: str, row: Sequence[TimedAction], *, top: int, scale: float) -> Iterator[str]:
    first = min(timed.action.stage for timed in row)
    yield f'<text x="{LEFT_PX - 8}" y="{top + 15}" text-anchor="end" fill="#1b2026">{device}</text>'
    for timed in row:
        x, width = LEFT_PX + timed.start_ns * scale, (timed.end_ns - timed.start_ns) * scale
        opacity = 1 if timed.action.stage == first else 0.6
        ink = "#ffffff" if timed.action.kind in "FB" and opacity == 1 else "#1b2026"
        yield (
            f'<rect x="{x:.1f}" y="{top + 1}" width="{width - 1:.1f}" height="{ROW_PX - 2}" '
            f'fill="{COLOURS[timed.action.kind]}" fill-opacity="{opacity}"><title>{timed.action}</title></rect>'
            f'<text x="{x + width / 2 - 0.5:.1f}" y="{top + 15}" text-anchor="middle" fill="{ink}">'
            f"{timed.action.microbatch}</text>"
        )


def draw_memory(pictures: Sequence[Picture]) -> str:
    """What the first device holds over time, a row per schedule, in microbatches; the number is the peak."""
    parts = ['<text x="8" y="18" font-weight="bold" fill="#1b2026">Microbatches that the first device holds</text>']
    row_px, left_px, most = 44, 130, NUM_MICROBATCHES * STASH_BYTES
    for number, picture in enumerate(pictures):
        points = next(iter(picture.timeline.memory.values()))
        base, peak = 30 + (number + 1) * row_px, max(point.num_bytes for point in points)
        path = [f"M{left_px} {base}"]
        for point in points:
            x = left_px + point.time_ns / STEP_NS * STEP_PX * 0.7
            path.append(f"H{x:.1f} V{base - point.num_bytes / most * (row_px - 8):.1f}")
        parts.append(f'<path d="{" ".join(path)} V{base} Z" fill="{COLOURS["F"]}" fill-opacity="0.5"/>')
        parts.append(f'<text x="{left_px - 34}" y="{base}" text-anchor="end" fill="#1b2026">{picture.name}</text>')
        parts.append(
            f'<text x="{left_px - 10}" y="{base}" text-anchor="end" fill="#1b2026">{peak / STASH_BYTES:g}</text>'
        )
    return _document(parts, width=left_px + int(34 * STEP_PX * 0.7), height=44 + row_px * len(pictures))


def _document(parts: Sequence[str], *, width: int, height: int) -> str:
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg {box} font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#ffffff"/>'
    return "\n".join([head, *parts, "</svg>"]) + "\n"

"""The pictures of the first screen's demos: `python -m benchmarks.demo_pictures` plans each and draws its timeline."""

import argparse
from pathlib import Path

from api.inputs import make_problem, read_workload
from api.viewer.content import machine_order
from planner.actions import KINDS
from planner.planning import make_plan
from planner.progress import Limits
from planner.simulation.simulate import Timeline, simulate

PAGE = Path("api", "service", "page")
DEMOS = ("llama3-8b-h200", "bert24-six-accelerators", "vgg16-ethernet")
WIDTH, HEIGHT, GAP = 320, 96, 0.12
COLOURS = {"F": "#3f76e0", "I": "#f0ad3e", "W": "#3aae86", "B": "#a8488a"}
"""Of the kinds, between those of the light and the dark theme: a picture does not know which one is on."""


def draw(timeline: Timeline, devices: list[str]) -> str:
    """One row per device, one path per kind of action; transparent, so that any ground will do."""
    scale, height = WIDTH / timeline.makespan_ns, HEIGHT / len(devices)
    shapes: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for row, device in enumerate(devices):
        for action, start, end in timeline.actions.get(device, ()):
            x, width = start * scale, max(0.4, (end - start) * scale - 0.4)
            y, tall = (row + GAP / 2) * height, (1 - GAP) * height
            shapes[action.kind].append(f"M{x:.1f},{y:.1f}h{width:.1f}v{tall:.1f}h-{width:.1f}z")
    paths = [f'<path fill="{COLOURS[kind]}" d="{"".join(found)}"/>' for kind, found in shapes.items() if found]
    ground = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#8a97a6" fill-opacity=".16"/>'
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {view}>', ground, *paths, "</svg>\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0)
    given = parser.parse_args()
    for name in DEMOS:
        problem = make_problem(read_workload(f"demo:{name}", cluster=None), num_microbatches=None)
        plan = make_plan(problem, limits=Limits(time_limit_s=given.seconds))
        text = draw(simulate(problem, plan), machine_order(problem.cluster))
        (PAGE / f"demo-{name}.svg").write_text(text, encoding="utf-8")
        print(name, f"{len(text):,} bytes")


if __name__ == "__main__":
    main()

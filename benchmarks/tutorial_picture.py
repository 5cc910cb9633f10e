"""The picture of docs/tutorial.md: GPipe, 1F1B and the committed plan of `examples/tutorial` on one scale.

python -m benchmarks.tutorial_picture -o docs/images/tutorial-schedules.svg
"""

from pathlib import Path

from api.inputs import read_plan_and_problem
from api.reporting.what_if_range import make_named_baseline
from benchmarks.report import make_parser
from benchmarks.timeline_picture import Group, draw_groups
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import simulate

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "tutorial"
BASELINES = {"GPipe": "GPipe (largest stage minimised)", "1F1B": "1F1B (largest stage minimised)"}
"""As the picture and as the plan's evidence calls them."""


def lanes(problem: Problem, plan: Plan, *, name: str) -> Group:
    """Every device of a schedule, whose name stands at the first."""
    rows = simulate(problem, plan).actions
    return [(f"{name}, {device}" if number == 0 else device, row) for number, (device, row) in enumerate(rows.items())]


def make_groups() -> list[Group]:
    """The schedules, ours last."""
    plan, problem = read_plan_and_problem(str(FOLDER / "plan.json"), str(FOLDER / "workload.json"), cluster=None)
    schedules = {name: make_named_baseline(problem, known) for name, known in BASELINES.items()} | {"plan": plan}
    return [lanes(problem, each, name=name) for name, each in schedules.items()]


def draw_schedules() -> str:
    """The picture's document."""
    return draw_groups(make_groups())


def main() -> None:
    """Write it."""
    given = make_parser(__doc__).parse_args()
    (given.output or Path("docs", "images", "tutorial-schedules.svg")).write_text(draw_schedules(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""What a run on a host owes to cores of its own and to a malloc that keeps what is freed.

    python -m benchmarks.host_settings [--quick] [--models A,B] -o docs/benchmarks/host_settings.md

README's commands profile and plan every model. Then the planner's plan and 1F1B run in fresh processes of torchrun with
and without each of the two, in turns, round after round: what else the host does meets all alike.
"""

import os
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from api.inputs import make_problem
from api.tuning.short_run import ShortRun
from benchmarks.report import Table, make_parser, ms, percent
from benchmarks.statistics_of import paired
from benchmarks.user_flow import (
    ROOT,
    Flow,
    FlowModel,
    balanced_cut,
    find_baseline,
    make_layout,
    spread_of,
    without_evidence,
)
from planner.document import parse_plan
from planner.fidelity.executed_run import read_run
from planner.plan import Plan
from planner.simulation.simulate import simulate
from profiles.load import load_workload

MODELS = (
    FlowModel(name="small GPT (examples)", factory="examples.small_gpt:make_training"),
    FlowModel(name="llama", factory="benchmarks.transformers_models:llama"),
    FlowModel(name="resnet18", factory="benchmarks.transformers_models:resnet18"),
)

ROUNDS, PLANNING_S = 5, 5.0

LATE_NS = 1_500_000
"""An action that is begun so long after the one before has ended, waiting for its input aside, was begun late."""

LEFT_ALONE = "GLIBC_TUNABLES", "glibc.malloc.tcache_count=7"
"""glibc's own default: it changes nothing, but that malloc is set up by the environment, which has its way."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How processes are set up."""

    name: str
    is_pinned: bool
    keeps: bool


SETTINGS = (
    Setting(name="neither", is_pinned=False, keeps=False),
    Setting(name="own cores", is_pinned=True, keeps=False),
    Setting(name="kept memory", is_pinned=False, keeps=True),
    Setting(name="both (the default)", is_pinned=True, keeps=True),
)


@dataclass(kw_only=True)
class Timed:
    """What the runs of a plan with a setting took."""

    medians_ns: list[int] = field(default_factory=list)
    """Of the iterations of a run, round by round."""
    spreads: list[float] = field(default_factory=list)
    """Quartiles of a run's iterations apart, over their median."""
    late: list[float] = field(default_factory=list)
    """Of the actions of a run."""


def run_once(flow: Flow, path: Path, setting: Setting, *, predicted_ns: int) -> ShortRun:
    """A run in fresh processes."""
    name, value = LEFT_ALONE
    if not setting.keeps:
        os.environ[name] = value
    try:
        return flow.run(path, predicted_ns=predicted_ns, switches=() if setting.is_pinned else ("--no-pin",))
    finally:
        os.environ.pop(name, None)


def share_late(folder: Path, plan: Plan) -> float:
    """Of the actions behind another, in all iterations but the first, the share that was begun late."""
    gaps = [
        taken_up - before.end_ns
        for iteration in read_run(folder, plan)[1:]
        for row in iteration.rows.values()
        for before, taken_up in zip(row.actions, row.taken_up_ns[1:], strict=False)
    ]
    return sum(gap > LATE_NS for gap in gaps) / max(1, len(gaps))


def make_plans(flow: Flow) -> dict[str, Path]:
    """The planner's plan and 1F1B, of a fresh profile."""
    workload = flow.profile()
    count = flow.model.num_devices
    cut, places = balanced_cut(workload, count), [(number,) for number in range(count)]
    problem = make_layout(workload, cut, places=places, split_backward=False)
    return {
        "planner": flow.plan("planner", time_limit_s=PLANNING_S),
        "1F1B": flow.write("1F1B", without_evidence(find_baseline("1F1B", problem))),
    }


def predict_ns(flow: Flow, path: Path) -> int:
    """By the profile, which was measured with both settings."""
    problem = make_problem(load_workload(str(flow.path)))
    return simulate(problem, parse_plan(path.read_bytes(), source=str(path))).makespan_ns


def time_plan(flow: Flow, path: Path, *, rounds: int, predicted_ns: int) -> dict[str, Timed]:
    """All settings in turns, each round beginning with the next one."""
    plan = parse_plan(path.read_bytes(), source=str(path))
    found = {setting.name: Timed() for setting in SETTINGS}
    for number in range(rounds):
        turn = number % len(SETTINGS)
        for setting in (*SETTINGS[turn:], *SETTINGS[:turn]):
            run = run_once(flow, path, setting, predicted_ns=predicted_ns)
            found[setting.name].medians_ns.append(run.median_ns)
            found[setting.name].spreads.append(spread_of(run.durations_ns))
            found[setting.name].late.append(share_late(Path(run.folder), plan))
    return found


def add_rows(table: Table, flow: Flow, *, rounds: int) -> None:
    """The rows of a model."""
    for name, path in make_plans(flow).items():
        predicted_ns = predict_ns(flow, path)
        found = time_plan(flow, path, rounds=rounds, predicted_ns=predicted_ns)
        alone = found[SETTINGS[0].name]
        for setting in SETTINGS:
            timed = found[setting.name]
            saved, half = paired(alone.medians_ns, timed.medians_ns)
            table.add(
                (
                    flow.model.name,
                    name,
                    setting.name,
                    ms(predicted_ns),
                    ms(round(statistics.median(timed.medians_ns))),
                    "" if timed is alone else f"{100 * saved:.1f} ± {100 * half:.1f} %",
                    percent(statistics.median(timed.spreads)),
                    f"{100 * statistics.fmean(timed.late):.1f} %",
                )
            )


HEADER = ("model", "plan", "processes have", "predicted ms", "iteration ms", "saved", "its spread", "begun late")

PREFACE = """# Cores of their own, and a malloc that keeps what is freed

What the executor sets up on a host (docs/reference/executor.md), with and without: plans of README's commands on a
fresh profile, two processes, fresh ones for every run, all settings in turns, {rounds} rounds. Predicted: by the
profile, which was measured with both. Iteration: median over rounds of a run's median. Saved: over neither, round by
round, with 95 % confidence intervals. Its spread: quartiles of a run's iterations apart. Begun late: actions taken up
more than 1.5 ms after the one before had ended, waiting for their input aside. Made by
`python -m benchmarks.host_settings -o docs/benchmarks/host_settings.md`.
"""


def parse() -> Namespace:
    """The switches."""
    parser = make_parser(__doc__)
    parser.add_argument("--models", default="", help="of these names only, commas between")
    return parser.parse_args()


def choose_models(names: str) -> Sequence[FlowModel]:
    """All, or those that are named."""
    wanted = [name for name in names.split(",") if name]
    return [model for model in MODELS if not wanted or model.name in wanted]


def main() -> None:
    """The table."""
    given = parse()
    rounds = 2 if given.quick else ROUNDS
    preface = PREFACE.format(rounds=rounds).splitlines()
    table = Table(preface=[*preface, ""], header=HEADER, output=given.output)
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory(prefix="pipeplan-host-") as folder:
        for number, model in enumerate(choose_models(given.models)):
            add_rows(table, Flow(model, Path(folder, str(number))), rounds=rounds)
    table.close()


if __name__ == "__main__":
    main()

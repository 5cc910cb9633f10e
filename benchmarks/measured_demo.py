"""A workload measured here, its plan, and its run beside it: `python -m benchmarks.measured_demo [--quick] -o FOLDER`.

On an idle machine, README's commands on GPT-2 (`--model`): the workload and the plan as they come, the median run as
the executor wrote it, README.md with both timelines as text. `pipeplan compare FOLDER/plan.json FOLDER` works on it.
"""

import json
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from api.reporting.run_comparison import PlanAndRun, compare_run, render_run_picture
from api.tuning.short_run import WARM_UP, ShortRun
from benchmarks.report import describe_commit, describe_machine, make_parser, ms, percent
from benchmarks.timeline_picture import draw_timelines
from benchmarks.user_flow import Flow, FlowModel, spread_of
from planner.document import parse_plan
from planner.simulation.timeline import TimedAction
from profiles.workload import Workload

COLUMNS = 100
"""Of a timeline drawn as text."""

RUNS, PLANNING_S = 5, 5.0
IDLE = "."


def draw_row(actions: Sequence[TimedAction], *, end_ns: int, columns: int = COLUMNS) -> str:
    """A device over time: in each column what runs in its middle; lower case for stages but the device's first."""
    first = min((timed.action.stage for timed in actions), default=0)
    cells = []
    for column in range(columns):
        middle = (2 * column + 1) * end_ns // (2 * columns)
        here = next((timed for timed in actions if timed.start_ns <= middle < timed.end_ns), None)
        kind = IDLE if here is None else here.action.kind
        cells.append(kind.lower() if here is not None and here.action.stage != first else kind)
    return "".join(cells)


def draw_pair(
    planned: Mapping[str, Sequence[TimedAction]], run: Mapping[str, Sequence[TimedAction]], *, columns: int = COLUMNS
) -> str:
    """Prediction above, run below, device by device on one scale."""
    ends = [timed.end_ns for rows in (planned, run) for row in rows.values() for timed in row]
    lines = []
    for device, row in planned.items():
        lines.append(f"{device:>12} planned  {draw_row(row, end_ns=max(ends), columns=columns)}")
        lines.append(f"{'':>12} run      {draw_row(run[device], end_ns=max(ends), columns=columns)}")
    return "\n".join(lines) + "\n"


def choose_run(runs: Sequence[ShortRun]) -> ShortRun:
    """The one of median duration."""
    return sorted(runs, key=lambda run: run.median_ns)[(len(runs) - 1) // 2]


def describe(run: PlanAndRun, *, model: FlowModel, workload: Workload, runs: Sequence[ShortRun]) -> str:
    """README.md of the folder."""
    predicted, measured = run.attribution.predicted_ns, round(statistics.median(each.median_ns for each in runs))
    durations = [duration for each in runs for duration in each.durations_ns]
    parts = ", ".join(f"{name} {percent(part / measured)}" for name, part in run.attribution.parts)
    assert workload.cluster is not None
    return f"""# {model.name}: predicted and measured

Made by `python -m benchmarks.measured_demo` on {describe_machine()}; commit {describe_commit()}. README's three
commands on `{model.factory}`: `workload.json` was measured before any plan existed, `plan.json` is what the planner
prefers, `rank*.json` are its median run of {len(runs)}, each in fresh processes.

| predicted ms | measured ms | quartiles of all iterations apart | error |
|---|---|---|---|
| {ms(predicted)} | {ms(measured)} | {percent(spread_of(durations))} | {percent(predicted / measured - 1)} |

Where measured - predicted of the median iteration comes from, in shares of the measured time
(docs/reference/comparison.md):
{parts}.

![the same to scale](both.svg)

```
{draw_pair(run.comparison.timeline.actions, run.timeline().actions)}```

A column is a hundredth of the time; F, I, W and B as in docs/reference/contract.md, lower case for a second stage.
`pipeplan compare plan.json . --html both.html` draws the same to scale.
"""


def make(model: FlowModel, folder: Path, *, num_runs: int) -> str:
    """Measure, plan, run, write; the answer is README.md. Raises FlowError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pipeplan-demo-") as temporary:
        flow = Flow(model, Path(temporary))
        workload = flow.profile()
        path = flow.plan("plan", "--no-idle-devices", time_limit_s=PLANNING_S)
        evidence = parse_plan(path.read_bytes(), source="plan").evidence
        assert evidence is not None
        runs = [flow.run(path, predicted_ns=evidence.makespan_ns) for _ in range(num_runs)]
        chosen = Path(choose_run(runs).folder)
        for source in (flow.path, path, *sorted(chosen.glob("rank*.json"))):
            shutil.copy(source, folder / source.name)
    run = compare_run(str(folder / "plan.json"), str(folder), workload=None, cluster=None, warm_up=WARM_UP)
    (folder / "both.html").write_text(render_run_picture(run), encoding="utf-8")
    picture = draw_timelines(run.comparison.timeline.actions, run.timeline().actions)
    (folder / "both.svg").write_text(picture, encoding="utf-8")
    text = describe(run, model=model, workload=workload, runs=runs)
    (folder / "README.md").write_text(text, encoding="utf-8")
    return text


def describe_sample(workload: Workload, *, name: str) -> str:
    """What tests/profiles/test_samples.py states of a demo, for when the workload becomes one."""
    profile, cluster = workload.profile, workload.cluster
    costs = [layer.costs[0] for layer in profile.layers]
    figures = (
        len(profile.layers),
        len(profile.edges),
        0 if cluster is None else len(cluster.devices),
        workload.num_microbatches,
        sum(cost.forward_ns for cost in costs),
        sum(cost.input_grad_ns + cost.weight_grad_ns for cost in costs),
        sum(cost.weight_grad_ns for cost in costs),
        sum(layer.parameter_bytes for layer in profile.layers),
        sum(layer.stash_bytes for layer in profile.layers),
    )
    return json.dumps({name: figures})


def main() -> None:
    """Print README.md of what was made."""
    parser = make_parser(__doc__)
    parser.add_argument("--model", help="a model of benchmarks.transformers_models, or module:factory (default gpt2)")
    given = parser.parse_args()
    name = given.model or ("examples.small_gpt:make_training" if given.quick else "gpt2")
    factory = name if ":" in name else f"benchmarks.transformers_models:{name}"
    title = {"gpt2": "GPT-2"}.get(name, name)
    switches = ("-m", "8", "--device-type", "reference")  # as demos call the device that they were measured on
    model = FlowModel(name=title, factory=factory, switches=switches)
    folder = given.output or Path("out", "measured-demo")
    print(make(model, folder, num_runs=1 if given.quick else RUNS))
    from profiles.load import load_workload

    print(describe_sample(load_workload(str(folder / "workload.json")), name=f"{name.split(':')[0]}-two-processes"))


if __name__ == "__main__":
    main()

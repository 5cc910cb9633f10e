"""`pipeplan tune`."""

import sys
from typing import Annotated, NamedTuple

from api.cli.options import arguments as arg
from api.cli.options.declare import on_machine, timed
from api.cli.options.folded_help import Commands
from api.cli.options.option_groups import Reporting
from api.cli.output import make_console, report_event, write_document

commands = Commands()


class _TuningEffort(NamedTuple):
    """Time limit, number of runs and accepted error."""

    time_limit: arg.TimeLimit = 300.0
    runs: Annotated[int, timed("--runs N", "Runs of every plan, in turns, per round.", min=1, max=100)] = 3
    steps: Annotated[
        int | None, timed("--steps N", "Iterations of a run; left out: a few seconds of them.", min=2, max=10_000)
    ] = None
    within: Annotated[
        float, timed("--within PERCENT", "Prediction and run agree if they differ by no more.", min=1e-9, max=99.999)
    ] = 3.0


class _TunedWorkload(NamedTuple):
    """The model or workload to tune."""

    num_microbatches: arg.NumMicrobatches = None
    devices: arg.NumDevices = None
    workload: Annotated[
        str | None, on_machine("--workload -w FILE", "Measured before; left out: the model is profiled first.")
    ] = None


@commands.command(
    "tune",
    epilog="Examples:\n\npipeplan tune my_model:make_training -m 8 --devices 2 -o plan.json\n\n"
    "pipeplan tune my_model:make_training --workload workload.json --time-limit 120 --within 5 -o plan.json",
)
def tune_command(
    *, model: arg.Model, wanted: _TunedWorkload, effort: _TuningEffort, output: arg.Output = None, reporting: Reporting
) -> None:
    """Profile, plan, run the best plans, and repeat: the fastest here.

    Ends when the planner's choice takes what is predicted, or the time is up; Ctrl+C keeps the fastest so far. The
    calibrated workload is written beside the plan.
    """
    from api.inputs import require_writable
    from api.tuning.command import TuningRequest, beside, run_tuning
    from api.tuning.tuning_report import render_result, summarise_result
    from planner.document import render_plan
    from profiles.workload import dump_workload

    kept = beside(output)
    require_writable(output, kept)
    request = TuningRequest(
        model=model,
        **wanted._asdict(),
        keep=kept,
        time_limit_s=effort.time_limit,
        runs=effort.runs,
        steps=effort.steps,
        within_percent=effort.within,
    )
    console = make_console(is_report=False)
    style = reporting.style(console)
    tuned = run_tuning(request, console=console, style=style)
    if output is not None or not sys.stdout.isatty():
        write_document(render_plan(tuned.result.chosen.candidate.plan), output)
    if kept is not None:
        write_document(dump_workload(tuned.result.workload), kept)
    files = {"plan": output, "workload": kept} if output and kept else {}
    if style == "json":
        report_event(summarise_result(tuned.result, files=files, elapsed_s=tuned.elapsed_s))
    elif style != "quiet":
        console.print(render_result(tuned.result, limits=tuned.limits, elapsed_s=tuned.elapsed_s))

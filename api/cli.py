"""The command line: artefacts go to standard output, everything else to standard error; no other file prints."""

# typer fills the parameters by name; plan reads its switches from the context, so most are not mentioned again
# ruff: noqa: ARG001

import json as jsonlib
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api import arguments as arg
from api import serving_arguments as serving
from api.failures import Exit, InputError, describe_failure

if TYPE_CHECKING:  # every command imports what it needs: the help must not wait for solvers
    from rich.console import Console, RenderableType

    from api.progress import Run, Voice
    from planner.plan import Plan
    from planner.problem import Problem

DEBUG = "PIPEPLAN_DEBUG"
"""Environment variable that asks for the traceback of an internal error, as `--debug` does."""

WIDTH_OF_FILES = 120
"""Columns of what is not shown on a terminal."""

app = typer.Typer(
    name="pipeplan",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Try: pipeplan plan demo:resnet50-two-hosts --time-limit 20 -o plan.json --html plan.html\n\n"
    "Exit codes: 0 done, 1 internal error, 2 bad usage or input, 3 proved infeasible, 4 gap not reached, "
    "5 no plan found, 6 plan rejected, 7 server, 130 interrupted.",
)
export_app = typer.Typer(no_args_is_help=True, help="Write a plan in another program's format.")
app.add_typer(export_app, name="export")
keys_app = typer.Typer(no_args_is_help=True, help="Make, list and revoke the API keys of a service.")
app.add_typer(keys_app, name="keys")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the answer is its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        app(args=given, prog_name="pipeplan")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except Exception as error:
        return _fail(error, is_json="--json" in given)
    return Exit.DONE


def _fail(error: Exception, *, is_json: bool) -> int:
    """Say what went wrong, in one message."""
    failure = describe_failure(error)
    if os.environ.get(DEBUG) and not isinstance(error, InputError):
        traceback.print_exception(error)
    if is_json:
        event = {"event": "error", "code": int(failure.code), "message": failure.message}
        print(jsonlib.dumps(event, ensure_ascii=False), file=sys.stderr)
    else:
        print(f"error: {failure.message}", file=sys.stderr)
    return failure.code


def _console(*, is_report: bool) -> "Console":
    """Where people read: standard output for reports that were asked for, standard error for everything else."""
    from rich.console import Console

    stream = sys.stdout if is_report else sys.stderr
    width = None if stream.isatty() or os.environ.get("COLUMNS") else WIDTH_OF_FILES
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def _report(table: "RenderableType") -> None:
    _console(is_report=True).print(table)


def _report_json(summary: Any) -> None:
    print(jsonlib.dumps(summary, ensure_ascii=False, indent=1))


def _report_summary(summary: Any, *, is_json: bool) -> None:
    """What a service answered, as it came or as tables."""
    if is_json:
        _report_json(summary)
    else:
        from api.remote import render_summary

        _report(render_summary(summary))


def _play_there(server: str, plan: "Plan", *, problem: "Problem", what: Any, other: "Plan | None" = None) -> str:
    """What the service makes of a plan."""
    from api.remote import play_remotely

    return play_remotely(server, plan, problem=problem, what=what, other=other)


def _write(text: str, target: str | None) -> None:
    """The artefact: to its file, or to standard output."""
    try:
        if target is None or target == "-":
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            Path(target).write_text(text, encoding="utf-8")
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"{target or '-'}: cannot be written ({error.strerror}); choose another place") from None


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(f"pipeplan {version('pipeline-planner')}")
        raise typer.Exit


@app.callback()
def root(
    debug: arg.Debug = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Turn a measured model profile and a cluster into a verified pipeline-parallel plan, with a proven gap."""
    if debug:
        os.environ[DEBUG] = "1"


@app.command(
    "plan",
    epilog="Examples:\n\n"
    "pipeplan plan demo:resnet50-two-hosts --time-limit 20 -o plan.json --html plan.html --trace trace.json\n\n"
    "pipeplan plan profile.json --cluster cluster.json -m 32 --gap 0.01 > plan.json\n\n"
    "pipeplan plan - --json < workload.json > plan.json",
)
def plan_command(
    context: typer.Context,
    workload: arg.Workload,
    cluster: arg.Cluster = None,
    num_microbatches: arg.NumMicrobatches = None,
    output: arg.Output = None,
    html: arg.Html = None,
    trace: arg.Trace = None,
    json: arg.Json = False,
    quiet: arg.Quiet = False,
    time_limit: arg.TimeLimit = 60.0,
    gap: arg.Gap = None,
    seed: arg.Seed = 0,
    max_rounds: arg.MaxRounds = None,
    server: arg.Server = None,
    objective: arg.Objective = None,
    max_stages_per_device: arg.MaxStages = None,
    max_replicas: arg.MaxReplicas = None,
    no_replication: arg.NoReplication = False,
    max_width: arg.MaxWidth = None,
    no_split_backward: arg.NoSplit = False,
    no_uneven_replication: arg.NoUneven = False,
    no_skip_edges: arg.NoSkips = False,
    no_idle_devices: arg.NoIdle = False,
    recompute: arg.Recompute = False,
    receive_buffers: arg.ReceiveBuffers = None,
    synchronisation: arg.Synchronisation = None,
    pin: arg.Pins = None,
) -> None:
    """Make a plan, verify it, and say how far from the best possible it can be at most.

    Ctrl+C ends the search with the best verified plan, a second one aborts. With --json every step is a line of JSON
    on standard error; the last one has "event": "done".
    """
    from api.planning_run import Wishes, run_plan
    from api.questions import make_problem, parse_changes, read_workload, require_limits, require_writable

    require_writable(output, html, trace)
    require_limits(time_limit_s=time_limit, gap=gap, seed=seed)
    problem = make_problem(
        read_workload(workload, cluster=cluster),
        num_microbatches=num_microbatches,
        changes=parse_changes(context.params),
    )
    console = _console(is_report=False)
    voice = _voice(console, is_json=json, is_quiet=quiet)
    wishes = Wishes(time_limit_s=time_limit, gap=gap, seed=seed, max_rounds=max_rounds, voice=voice)
    if server is None:
        plan, run = run_plan(problem, wishes, console=console)
    else:
        from api.remote import run_remotely

        plan, run = run_remotely(problem, wishes, console=console, url=server)
    pictures = {"picture": html, "trace": trace}
    _deliver(problem, plan, run=run, output=output, pictures=pictures, voice=wishes.voice)
    if wishes.is_missed_by(plan):
        raise typer.Exit(Exit.GAP_MISSED)


def _voice(console: "Console", *, is_json: bool, is_quiet: bool) -> "Voice":
    if is_json:
        return "json"
    if is_quiet:
        return "quiet"
    return "live" if console.is_terminal and not console.is_dumb_terminal else "lines"


def _deliver(
    problem: "Problem", plan: "Plan", *, run: "Run", output: str | None, pictures: dict[str, str | None], voice: "Voice"
) -> None:
    """Write the plan and its pictures, then say what was made."""
    from planner.document import render_plan

    if output is not None or not sys.stdout.isatty():
        _write(render_plan(plan), output)
    files = {"plan": output} if output not in (None, "-") else {}
    for what, target in pictures.items():
        if target is not None:
            _write(_draw(problem, plan, what=what), target)
            files[what] = target
    _tell(problem, plan, run=replace(run, files=files), voice=voice)


def _draw(problem: "Problem", plan: "Plan", *, what: str) -> str:
    from planner.simulate import simulate

    if what == "trace":
        from planner.export.trace import render_trace

        return render_trace(problem, plan, timeline=simulate(problem, plan))
    from api.viewer import render_picture

    return render_picture(problem, plan, timeline=simulate(problem, plan))


def _tell(problem: "Problem", plan: "Plan", *, run: "Run", voice: "Voice") -> None:
    """The closing words of a planning run, on standard error."""
    if voice == "json":
        from api.summaries import summarise_plan

        print(jsonlib.dumps(summarise_plan(plan, run), ensure_ascii=False), file=sys.stderr)
    elif voice != "quiet":
        from api.screen import render_screen

        _console(is_report=False).print(render_screen(problem, plan, run=run))


@app.command(
    "profile",
    epilog="Examples:\n\npipeplan profile my_model:make_training -m 8 -o workload.json\n\n"
    "pipeplan profile gpt:layers=48,width=1600,heads=25 -b 4,2,1 --dtype bf16 --links links.json -o gpt2-xl.json\n\n"
    "pipeplan profile llama:layers=80,width=8192,heads=64,inner=28672 -b 1 --estimate H100 -o llama-70b.json",
)
def profile_command(
    context: typer.Context,
    model: arg.Model,
    num_microbatches: arg.NumMicrobatches = None,
    microbatch_size: arg.MicrobatchSizes = None,
    widths: arg.Widths = "1",
    dtype: arg.Dtype = None,
    clock: arg.Clock = "thread",
    no_recompute: arg.NoRecompute = False,
    each_layer: arg.EachLayer = False,
    device: arg.Device = "auto",
    devices: arg.NumDevices = None,
    device_type: arg.DeviceType = None,
    memory: arg.MemoryGib = None,
    estimate: arg.Estimate = None,
    links: arg.Links = None,
    no_links: arg.NoLinks = False,
    repetitions: arg.Repetitions = 10,
    seconds: arg.SecondsPerLayer = 20.0,
    output: arg.Output = None,
    journal: arg.JournalFile = None,
    json: arg.Json = False,
    quiet: arg.Quiet = False,
) -> None:
    """Measure a model's layers and the links between devices, and write the workload that `plan` takes.

    Layers are timed one at a time, as the executor runs them: F, I, W, B and recomputation; layers that are alike are
    timed once. A run that is killed goes on where it was when it is started again.
    """
    from api.profiling import Wanted, forget_journal, render_summary, run_profile, summarise_profile
    from api.questions import require_writable
    from profiles.workload import dump_workload

    require_writable(output, links, journal)
    wanted = Wanted.of(context.params)
    console = _console(is_report=False)
    voice = _voice(console, is_json=json, is_quiet=quiet)
    outcome = run_profile(wanted, console=console, voice=voice)
    _write(dump_workload(outcome.workload), output)
    forget_journal(wanted)
    if voice == "json":
        print(jsonlib.dumps(summarise_profile(outcome, output=output), ensure_ascii=False), file=sys.stderr)
    elif voice != "quiet":
        print(render_summary(outcome, output=output), file=sys.stderr)


@app.command(
    "verify",
    epilog="Examples:\n\npipeplan verify plan.json demo:resnet50-two-hosts\n\npipeplan verify --certificate plan.json",
)
def verify_command(
    plan: arg.PlanFile,
    workload: arg.PlansWorkload = None,
    cluster: arg.Cluster = None,
    certificate: arg.Certificate = False,
    baselines: arg.WithBaselines = None,
    server: arg.Server = None,
    json: arg.Json = False,
) -> None:
    """Check a plan against every rule; exit with 6 if one is broken.

    With --certificate also derive everything that its evidence states anew, without a solver, and exit with 6 if
    anything is stated otherwise.
    """
    from api.questions import read_plan_and_problem

    answer, problem = read_plan_and_problem(plan, workload, cluster=cluster)
    if server is not None:
        from api.remote import connect

        verdict_there = connect(server).verify(answer, problem, certificate=certificate)
        _report_summary(verdict_there, is_json=json)
        if not verdict_there["passed"]:
            raise typer.Exit(Exit.REJECTED)
        return
    if certificate:
        _verify_evidence(problem, answer, with_baselines=baselines, is_json=json)
        return
    from planner.verify import verify

    verdict = verify(problem, answer)
    if json:
        _report_json(verdict.summary())
    else:
        from api.reports import render_verdict

        _report(render_verdict(problem, verdict))
    if not verdict.passed:
        raise typer.Exit(Exit.REJECTED)


def _verify_evidence(problem: "Problem", plan: "Plan", *, with_baselines: bool | None, is_json: bool) -> None:
    """The verdict on the plan and on every figure of its evidence."""
    from planner.rederivation import rederive

    outcome = rederive(problem, plan, with_baselines=with_baselines)
    if is_json:
        from api.summaries import summarise_rederivation

        _report_json(summarise_rederivation(outcome))
    else:
        from api.reports import render_rederivation

        _report(render_rederivation(problem, outcome))
    if not outcome.passed:
        raise typer.Exit(Exit.REJECTED)


@app.command("simulate", epilog="Example: pipeplan simulate plan.json demo:resnet50-two-hosts --json")
def simulate_command(
    plan: arg.PlanFile,
    workload: arg.PlansWorkload = None,
    cluster: arg.Cluster = None,
    server: arg.Server = None,
    json: arg.Json = False,
) -> None:
    """Play a plan: makespan, work and memory of every device."""
    from api.questions import play, read_plan_and_problem

    answer, problem = read_plan_and_problem(plan, workload, cluster=cluster)
    if server is not None:
        _report_summary(jsonlib.loads(_play_there(server, answer, problem=problem, what="simulation")), is_json=json)
        return
    timeline = play(problem, answer, source=plan)
    if json:
        from api.summaries import summarise_timeline

        _report_json(summarise_timeline(problem, timeline))
    else:
        from api.reports import render_simulation

        _report(render_simulation(problem, timeline))


@app.command(
    "explain",
    epilog="Examples:\n\npipeplan explain plan.json demo:resnet50-two-hosts\n\n"
    "pipeplan explain plan.json --shadow-prices --time-limit 60",
)
def explain_command(
    plan: arg.PlanFile,
    workload: arg.PlansWorkload = None,
    cluster: arg.Cluster = None,
    shadow_prices: arg.ShadowPrices = False,
    time_limit: arg.TimeLimit = 60.0,
    per_kind: arg.PerKind = 2,
    server: arg.Server = None,
    json: arg.Json = False,
) -> None:
    """Say where the time goes and what binds: work, fill and drain, transfers, memory, synchronisation, per device.

    With --shadow-prices also what a little more of each resource is worth: the plan is made again with it, from the
    present one on, for --time-limit seconds in all.
    """
    from api.questions import play, read_plan_and_problem, require_limits
    from planner.explain import explain

    require_limits(time_limit_s=time_limit, gap=None, seed=0)
    answer, problem = read_plan_and_problem(plan, workload, cluster=cluster)
    if server is not None:
        if shadow_prices:
            raise InputError("--shadow-prices are found here, not by a server; leave out --server")
        _report_summary(jsonlib.loads(_play_there(server, answer, problem=problem, what="explanation")), is_json=json)
        return
    timeline = play(problem, answer, source=plan)
    explanation = explain(problem, answer, timeline=timeline)
    prices = []
    if shadow_prices:
        from api.prices import find_prices

        prices = find_prices(
            problem,
            answer,
            timeline=timeline,
            time_limit_s=time_limit,
            per_kind=per_kind,
            hear=_hear_price(is_json=json),
        )
    if json:
        from api.summaries import summarise_explanation, summarise_prices

        _report_json(summarise_explanation(explanation) | (summarise_prices(prices) if shadow_prices else {}))
    else:
        from api.reports import render_explanation, render_prices

        _report(render_explanation(problem, explanation))
        if shadow_prices:
            _report(render_prices(prices))


def _hear_price(*, is_json: bool) -> Callable[[str], None]:
    """Tells, on standard error, what is being asked."""

    def hear(text: str) -> None:
        line = jsonlib.dumps({"event": "progress", "asked": text}, ensure_ascii=False) if is_json else f"asked: {text}"
        print(line, file=sys.stderr, flush=True)

    return hear


@app.command(
    "compare",
    epilog="Examples:\n\npipeplan compare plan.json other.json demo:resnet50-two-hosts --baselines\n\n"
    "pipeplan compare plan.json trace/ --html compare.html --calibrate profile.json -o calibrated.json",
)
def compare_command(
    files: arg.Files,
    workload: arg.WorkloadOption = None,
    cluster: arg.Cluster = None,
    baselines: arg.Baselines = False,
    html: arg.Html = None,
    calibrate: arg.Calibrate = None,
    output: arg.Output = None,
    warm_up: arg.WarmUp = None,
    server: arg.Server = None,
    json: arg.Json = False,
) -> None:
    """Play and verify several plans of one workload, or hold a plan against its run, side by side.

    A run is the folder that the executor's --trace wrote. The difference between predicted and measured iteration is
    told in parts that add up; --calibrate writes the profile with what the run took.
    """
    from api.executed import split_files

    run = split_files(files)
    if run is not None:
        if baselines:
            raise InputError("--baselines compares plans; leave it out to hold a plan against its run")
        targets = {"html": html, "calibrate": calibrate, "output": output}
        _compare_run((run[0], run[1], run[2] or workload), targets, cluster=cluster, warm_up=warm_up, is_json=json)
        return
    if html or calibrate or output or warm_up is not None:
        raise InputError("--html, --calibrate, -o and --warm-up need the folder of a run: compare PLAN FOLDER")
    if server is not None:
        from api.comparison import read_contenders
        from api.remote import compare_remotely

        _report_summary(
            compare_remotely(server, read_contenders(files, workload=workload, cluster=cluster)), is_json=json
        )
        return
    from api.comparison import compare

    problem, contenders = compare(files, workload=workload, cluster=cluster, has_baselines=baselines)
    if json:
        _report_json([asdict(contender) for contender in contenders])
    else:
        from api.reports import render_comparison

        _report(render_comparison(problem, contenders))


def _compare_run(
    run: tuple[str, str, str | None],
    targets: dict[str, str | None],
    *,
    cluster: str | None,
    warm_up: int | None,
    is_json: bool,
) -> None:
    """A plan against its run: the report, and the picture and the calibrated profile where they are asked for."""
    from api.executed import calibrate, compare_run, render_run_picture, summarise_run
    from api.questions import require_writable

    plan, folder, workload = run
    if (targets["calibrate"] is None) != (targets["output"] is None):
        raise InputError("--calibrate PROFILE and -o FILE go together: the profile to start from, and where it goes")
    require_writable(targets["html"], targets["output"])
    made = compare_run(plan, folder, workload=workload, cluster=cluster, warm_up=warm_up)
    if targets["html"] is not None:
        _write(render_run_picture(made), targets["html"])
    if targets["calibrate"] is not None:
        _write(calibrate(made, targets["calibrate"], folder=folder), targets["output"])
        if targets["output"] == "-":
            return
    if is_json:
        _report_json(summarise_run(made))
    else:
        from api.run_report import render_run

        _report(render_run(made))


@export_app.command("trace", epilog="Example: pipeplan export trace plan.json demo:resnet50-two-hosts -o trace.json")
def export_trace_command(
    plan: arg.PlanFile,
    workload: arg.PlansWorkload = None,
    cluster: arg.Cluster = None,
    server: arg.Server = None,
    output: arg.Output = None,
) -> None:
    """Write the timeline as a Chrome trace, for Perfetto or chrome://tracing."""
    from api.questions import play, read_plan_and_problem, require_writable
    from planner.export.trace import render_trace

    require_writable(output)
    answer, problem = read_plan_and_problem(plan, workload, cluster=cluster)
    if server is not None:
        _write(_play_there(server, answer, problem=problem, what="trace"), output)
        return
    _write(render_trace(problem, answer, timeline=play(problem, answer, source=plan)), output)


@export_app.command(
    "torch", epilog="Example: pipeplan export torch plan.json demo:gpt-1.5b-zero-bubble -o schedule.csv"
)
def export_torch_command(
    plan: arg.PlanFile,
    workload: arg.PlansWorkload = None,
    cluster: arg.Cluster = None,
    server: arg.Server = None,
    output: arg.Output = None,
    keep_split: arg.KeepSplit = False,
) -> None:
    """Write the compute-only table that torch.distributed.pipelining loads (torch 2.13); ranks go to standard error."""
    from api.questions import read_plan_and_problem, require_writable
    from planner.export.torch_table import render_torch_table, torch_ranks

    require_writable(output)
    answer, problem = read_plan_and_problem(plan, workload, cluster=cluster)
    if server is not None and keep_split:
        raise InputError("--keep-split is done here, not by a server; leave out --server")
    try:
        if server is not None:
            table = _play_there(server, answer, problem=problem, what="torch")
        else:
            table = render_torch_table(problem, answer, merges_backward=not keep_split)
    except ValueError as refusal:
        raise InputError(str(refusal)) from refusal
    _write(table, output)
    for rank, device in enumerate(torch_ranks(answer)):
        print(f"rank {rank}  {device}", file=sys.stderr)


@app.command("view", epilog="Example: pipeplan view plan.json demo:resnet50-two-hosts -o plan.html --open")
def view_command(
    plan: arg.PlanFile,
    workload: arg.PlansWorkload = None,
    cluster: arg.Cluster = None,
    server: arg.Server = None,
    output: arg.Output = None,
    against: arg.Against = None,
    open_it: arg.OpenIt = False,
) -> None:
    """Draw the timeline of a plan: one HTML file that works offline."""
    from api.questions import play, read_plan, read_plan_and_problem, require_writable
    from api.viewer import render_picture

    if output is None and (open_it or sys.stdout.isatty()):
        raise InputError("the picture needs a file; add -o plan.html (or -o - for standard output)")
    require_writable(output)
    answer, problem = read_plan_and_problem(plan, workload, cluster=cluster)
    second = None if against is None else read_plan(against)
    if server is not None:
        _write(_play_there(server, answer, problem=problem, what="view", other=second), output)
    else:
        other = None if second is None else (second, play(problem, second, source=str(against)))
        _write(render_picture(problem, answer, timeline=play(problem, answer, source=plan), other=other), output)
    if open_it and output not in (None, "-"):
        import webbrowser

        webbrowser.open(Path(str(output)).resolve().as_uri())


@app.command("import", epilog="Example: pipeplan import graph.txt --cluster cluster.json -m 32 -o workload.json")
def import_command(
    source: arg.Workload,
    cluster: arg.Cluster = None,
    num_microbatches: arg.NumMicrobatches = None,
    device_type: arg.DeviceType = None,
    output: arg.Output = None,
) -> None:
    """Turn a workload in any form that is read here into a document in ours."""
    from api.questions import read_workload, rename_device_type, require_writable
    from profiles.workload import dump_workload

    require_writable(output)
    workload = read_workload(source, cluster=cluster)
    if device_type is not None:
        workload = rename_device_type(workload, device_type)
    if num_microbatches is not None:
        workload = replace(workload, num_microbatches=num_microbatches)
    _write(dump_workload(workload), output)


@app.command("demos", epilog="Example: pipeplan plan demo:resnet50-two-hosts --time-limit 20")
def demos_command(server: arg.Server = None, json: arg.Json = False) -> None:
    """List the workloads that come along: measured, published or, where their names say so, estimated."""
    if server is not None:
        from api.remote import connect

        _report_summary({name: f"demo:{name}" for name in connect(server).demos()}, is_json=json)
        return
    from api.questions import describe_demos

    demos = describe_demos()
    if json:
        _report_json(demos)
    else:
        from api.reports import render_demos

        _report(render_demos(demos))


@app.command("doctor")
def doctor_command(server: arg.Server = None, json: arg.Json = False) -> None:
    """Check this installation, or a service: versions, kernels, the machine, and a toy plan made and verified."""
    from api.doctor import run_checks

    if server is not None:
        from api.remote import check_remotely

        checks: list[tuple[str, bool | None, str]] = list(check_remotely(server))
    else:
        checks = list(run_checks())
    if json:
        _report_json({what: {"is_well": is_well, "detail": detail} for what, is_well, detail in checks})
    else:
        from api.reports import render_checks

        _report(render_checks(checks))
    if any(is_well is False for _, is_well, _ in checks):
        raise typer.Exit(Exit.INTERNAL)


@app.command(
    "serve",
    epilog="Examples:\n\npipeplan serve\n\npipeplan serve --host 0.0.0.0 --data /var/lib/pipeplan --workers 4",
)
def serve_command(
    host: serving.Host = "127.0.0.1",
    port: serving.Port = 8765,
    data: serving.Data = serving.DATA,
    workers: serving.Workers = 1,
    database_url: serving.DatabaseUrl = None,
    keys: serving.Keys = None,
    memory_gib: serving.MemoryGib = 4.0,
    max_time_limit: serving.MaxTimeLimit = 3600.0,
    retention_days: serving.RetentionDays = 30.0,
    traces: serving.Traces = False,
    oidc_issuer: serving.OidcIssuer = None,
    oidc_audience: serving.OidcAudience = "pipeplan",
    oidc_jwks: serving.OidcJwks = None,
    openapi: serving.OpenApi = False,
) -> None:
    """Answer questions over HTTP: POST a profile, get a verified plan.

    Jobs are kept in SQLite in the data folder and solved by processes of this machine; with --database-url they are
    kept in PostgreSQL, and `pipeplan worker` solves them, here or on other machines. SIGTERM loses nothing.
    """
    from api import operations

    if openapi:
        print(operations.render_openapi(), end="")
        return
    settings = operations.make_settings(dict(locals()))
    print(f"pipeplan serves http://{host}:{port}", file=sys.stderr)
    operations.run_server(settings, host=host, port=port)


@app.command("worker", epilog="Example: pipeplan worker --database-url postgresql://pipeplan@db/pipeplan --workers 4")
def worker_command(
    database_url: serving.DatabaseUrl = None,
    workers: serving.Workers = 1,
    memory_gib: serving.MemoryGib = 4.0,
    data: serving.Data = serving.DATA,
) -> None:
    """Solve jobs that wait in PostgreSQL; any number of workers on any number of machines."""
    from api import operations

    operations.run_worker(operations.make_settings(dict(locals())))


@keys_app.command("create", epilog="Example: pipeplan keys create --tenant research --scope plans:read")
def create_key_command(
    tenant: serving.Tenant,
    name: serving.KeyName = "",
    scope: serving.Scopes = None,
    expires_days: serving.ExpiresDays = None,
    hourly_jobs: serving.HourlyJobs = None,
    concurrent_jobs: serving.ConcurrentJobs = None,
    data: serving.Data = serving.DATA,
    database_url: serving.DatabaseUrl = None,
) -> None:
    """Make an API key; it is shown once, and only its hash is kept."""
    from api import operations

    with operations.key_ring(data, database_url) as keys:
        key, text = operations.create_key(keys, dict(locals()))
    print(text)
    print(f"key {key.id} of tenant {key.tenant}: {', '.join(key.scopes)}", file=sys.stderr)


@keys_app.command("list", epilog="Example: pipeplan keys list --json")
def list_keys_command(
    data: serving.Data = serving.DATA, database_url: serving.DatabaseUrl = None, json: arg.Json = False
) -> None:
    """List the API keys, without their secrets."""
    from api import operations

    with operations.key_ring(data, database_url) as keys:
        rows = [asdict(key) for key in keys.listed()]
    _report_summary(rows, is_json=json)


@keys_app.command("revoke", epilog="Example: pipeplan keys revoke 0123456789ab")
def revoke_key_command(
    key_id: serving.KeyId, data: serving.Data = serving.DATA, database_url: serving.DatabaseUrl = None
) -> None:
    """End an API key at once."""
    from api import operations

    with operations.key_ring(data, database_url) as keys:
        if not keys.revoke(key_id):
            raise InputError(f"{key_id}: there is no such key that is not revoked yet; see pipeplan keys list")


if __name__ == "__main__":
    sys.exit(main())

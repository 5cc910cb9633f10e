"""The command line: artefacts go to standard output, everything else to standard error; no other file prints."""

# typer fills the parameters by name; plan reads its switches from the context, so most are not mentioned again
# ruff: noqa: ARG001

import json as jsonlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api import arguments as arg
from api import serving_arguments as serving
from api.failures import Exit, InputError, describe_failure

if TYPE_CHECKING:  # every command imports what it needs: the help must not wait for solvers
    from rich.console import Console, RenderableType

    from api.launching import Launch
    from api.planning_run import Effort
    from api.progress import ReportStyle, RunSummary
    from api.replanning import Again
    from planner.export.targets import Target
    from planner.launch.job_commands import Submitted
    from planner.launch.launch_job import LaunchSubmission
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
launch_app = typer.Typer(no_args_is_help=True, help="Run a program under a plan, every process on its device.")
app.add_typer(launch_app, name="launch")
cluster_app = typer.Typer(no_args_is_help=True, help="Describe the machine.")
app.add_typer(cluster_app, name="cluster")
job_app = typer.Typer(no_args_is_help=True, help="Ask about a launched job, read its log, end it.")
app.add_typer(job_app, name="job")
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
    patience: arg.PatienceRounds = None,
    threads: arg.Threads = None,
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
    split_placement: arg.SplitPlacement = False,
    receive_buffers: arg.ReceiveBuffers = None,
    synchronisation: arg.Synchronisation = None,
    pin: arg.Pins = None,
    target: arg.TargetName = None,
) -> None:
    """Make a plan, verify it, and say how far from the best possible it can be at most.

    Ctrl+C ends the search with the best verified plan, a second one aborts. With --json every step is a line of JSON
    on standard error; the last one has "event": "done".
    """
    from api.inputs import make_problem, parse_changes, read_workload, require_limits, require_writable
    from api.planning_run import Effort, run_plan

    require_writable(output, html, trace)
    limits: dict[str, Any] = {"time_limit_s": time_limit, "gap": gap, "seed": seed, "threads": threads}
    require_limits(**limits)
    problem = make_problem(
        read_workload(workload, cluster=cluster),
        num_microbatches=num_microbatches,
        changes=parse_changes(context.params),
    )
    if target is not None and server is not None:
        raise InputError("--target: a service does not fit plans to a program yet; leave --server out")
    problem, program = _restricted(problem, target, decides_chunks=max_stages_per_device is None)
    console = _console(is_report=False)
    style = _report_style(console, is_json=json, is_quiet=quiet)
    effort = Effort(**limits, max_rounds=max_rounds, patience=patience, style=style)
    solve = partial(run_plan, target=program) if server is None else partial(_plan_there, url=server)
    plan, run = solve(problem, effort, console=console)
    _deliver(problem, plan, run=run, output=output, pictures={"picture": html, "trace": trace}, style=effort.style)
    if effort.is_missed_by(plan):
        raise typer.Exit(Exit.GAP_MISSED)


def _restricted(
    problem: "Problem", target: str | None, *, decides_chunks: bool = False
) -> "tuple[Problem, Target | None]":
    """The problem with no more freedom than the program that the plan is for can execute.

    `decides_chunks`: nobody said how many stages a device may hold.
    """
    if target is None:
        return problem, None
    from planner.export.targets import TARGETS, restrict_problem, with_chunks

    program = TARGETS[target]
    options = with_chunks(problem.options, program) if decides_chunks else problem.options
    return restrict_problem(replace(problem, options=options), program), program


def _plan_there(problem: "Problem", effort: "Effort", *, console: "Console", url: str) -> "tuple[Plan, RunSummary]":
    """The service's plan."""
    from api.remote import run_remotely

    return run_remotely(problem, effort, console=console, url=url)


def _report_style(console: "Console", *, is_json: bool, is_quiet: bool) -> "ReportStyle":
    if is_json:
        return "json"
    if is_quiet:
        return "quiet"
    return "live" if console.is_terminal and not console.is_dumb_terminal else "lines"


def _deliver(
    problem: "Problem",
    plan: "Plan",
    *,
    run: "RunSummary",
    output: str | None,
    pictures: dict[str, str | None],
    style: "ReportStyle",
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
    _tell(problem, plan, run=replace(run, files=files), style=style)


def _draw(problem: "Problem", plan: "Plan", *, what: str) -> str:
    from planner.simulate import simulate

    if what == "trace":
        from planner.export.trace import render_trace

        return render_trace(problem, plan, timeline=simulate(problem, plan))
    from api.viewer import render_picture

    return render_picture(problem, plan, timeline=simulate(problem, plan))


def _tell(problem: "Problem", plan: "Plan", *, run: "RunSummary", style: "ReportStyle") -> None:
    """The closing words of a planning run, on standard error."""
    if style == "json":
        from api.summaries import summarise_plan

        print(jsonlib.dumps(summarise_plan(plan, run), ensure_ascii=False), file=sys.stderr)
    elif style != "quiet":
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
    no_split: arg.WholeBackward = False,
    alone: arg.Alone = False,
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

    Layers are timed as the executor runs them: F, I, W, B and recomputation, at every size that a replica may get, by
    as many processes at once as the host has devices; layers that are alike are timed once. A run that is killed goes
    on where it was when it is started again.
    """
    from api.inputs import require_writable
    from api.profiling import Wanted, forget_journal, render_summary, run_profile, summarise_profile
    from profiles.workload import dump_workload

    require_writable(output, links, journal)
    wanted = Wanted.of(context.params)
    console = _console(is_report=False)
    style = _report_style(console, is_json=json, is_quiet=quiet)
    outcome = run_profile(wanted, console=console, style=style)
    _write(dump_workload(outcome.workload), output)
    forget_journal(wanted)
    if style == "json":
        print(jsonlib.dumps(summarise_profile(outcome, output=output), ensure_ascii=False), file=sys.stderr)
    elif style != "quiet":
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
    from api.inputs import read_plan_and_problem

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
    from planner.check_evidence import rederive

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
    from api.inputs import play, read_plan_and_problem

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
    from api.inputs import play, read_plan_and_problem, require_limits
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
        from api.sensitivity import find_prices

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
    for_stages: arg.ForStages = None,
    output: arg.Output = None,
    warm_up: arg.WarmUp = None,
    server: arg.Server = None,
    json: arg.Json = False,
) -> None:
    """Play and verify several plans of one workload, or hold a plan against its run, side by side.

    A run is the folder that the executor's --trace wrote. The difference between predicted and measured iteration is
    told in parts that add up; --calibrate writes the profile with what the run took.
    """
    from api.run_comparison import split_files

    run = split_files(files)
    if run is not None:
        if baselines:
            raise InputError("--baselines compares plans; leave it out to hold a plan against its run")
        targets = {"html": html, "calibrate": calibrate, "output": output}
        settings = {"cluster": cluster, "warm_up": warm_up, "for_stages": for_stages}
        _compare_run((run[0], run[1], run[2] or workload), targets, settings=settings, is_json=json)
        return
    if html or calibrate or output or warm_up is not None or for_stages is not None:
        raise InputError(
            "--html, --calibrate, --for-stages, -o and --warm-up need the folder of a run: compare PLAN FOLDER"
        )
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
    settings: dict[str, Any],
    is_json: bool,
) -> None:
    """A plan against its run: the report, and the picture and the calibrated profile where they are asked for."""
    from api.inputs import require_writable
    from api.run_comparison import calibrate, compare_run, render_run_picture, summarise_run

    plan, folder, workload = run
    if (targets["calibrate"] is None) != (targets["output"] is None):
        raise InputError("--calibrate PROFILE and -o FILE go together: the profile to start from, and where it goes")
    require_writable(targets["html"], targets["output"])
    if settings["for_stages"] is not None and targets["calibrate"] is None:
        raise InputError("--for-stages says what to calibrate for: add --calibrate PROFILE -o FILE")
    cluster, warm_up = settings["cluster"], settings["warm_up"]
    made = compare_run(plan, folder, workload=workload, cluster=cluster, warm_up=warm_up)
    if targets["html"] is not None:
        _write(render_run_picture(made), targets["html"])
    if targets["calibrate"] is not None:
        document = calibrate(made, targets["calibrate"], folder=folder, num_stages=settings["for_stages"])
        _write(document, targets["output"])
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
    from api.inputs import play, read_plan_and_problem, require_writable
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
    communication: arg.Communication = False,
) -> None:
    """Write the compute-only table that torch.distributed.pipelining loads (torch 2.13); ranks go to standard error."""
    from api.inputs import read_plan_and_problem, require_writable
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
    if communication:
        from api.torch_lowering import lower

        table = lower(table)
    _write(table, output)
    for rank, device in enumerate(torch_ranks(answer)):
        print(f"rank {rank}  {device}", file=sys.stderr)


@launch_app.command(
    "torchrun",
    epilog="Examples:\n\npipeplan launch torchrun plan.json --here -- train.py --steps 100\n\n"
    "pipeplan launch torchrun plan.json --dry-run -- -m planner.execute --model my_model:make_training",
)
def launch_torchrun_command(
    plan: arg.PlanFile,
    program: arg.Program,
    dry_run: arg.DryRun = False,
    detach: arg.Detach = False,
    here: arg.IsHere = False,
    cluster: arg.Cluster = None,
    name: arg.JobName = None,
    folder: arg.JobFolder = None,
    host: arg.Hosts = None,
    python: arg.Python = None,
    processors: arg.OnProcessors = False,
    master_addr: arg.Master = None,
    master_port: arg.MasterPort = 29500,
    plan_url: arg.PlanUrl = None,
) -> None:
    """One torchrun agent per host; on other hosts through ssh. Exits with the first bad exit code of an agent."""
    from api.launching import (
        Whereabouts,
        describe_start,
        detach_agents,
        make_launch,
        own_python,
        run_agents,
        start_locally,
    )
    from planner.launch.job_commands import Submitted
    from planner.launch.torchrun import render_torchrun

    where = Whereabouts(cluster=cluster, folder=folder, hosts=host or (), plan_url=plan_url)
    launch = make_launch(plan, program, name=name, where=where, python=python or own_python(), on_processors=processors)
    submission = render_torchrun(launch.job, port=master_port, master=master_addr, is_here=here)
    if dry_run:
        _show_submission(launch, submission)
        return
    commands = start_locally(launch, submission)
    if not detach:
        raise typer.Exit(run_agents(commands))
    submitted = Submitted(launcher="torchrun", name=launch.job.name)
    print(describe_start(detach_agents(commands, submitted=submitted, folder=launch.folder), launch.folder))


@launch_app.command(
    "slurm",
    epilog="Example: pipeplan launch slurm plan.json --sbatch=--time=2:00:00 --dry-run -- train.py --steps 100",
)
def launch_slurm_command(
    plan: arg.PlanFile,
    program: arg.Program,
    dry_run: arg.DryRun = False,
    cluster: arg.Cluster = None,
    name: arg.JobName = None,
    folder: arg.JobFolder = None,
    host: arg.Hosts = None,
    python: arg.Python = None,
    processors: arg.OnProcessors = False,
    master_addr: arg.Master = None,
    plan_url: arg.PlanUrl = None,
    gpus: arg.WithGpus = False,
    sbatch: arg.SbatchOptions = None,
) -> None:
    """One Slurm task per device, each on the node where the plan has it; prints the job's folder."""
    from api.launching import Whereabouts, make_launch
    from planner.launch.job_commands import Submitted
    from planner.launch.slurm import render_slurm

    where = Whereabouts(cluster=cluster, folder=folder, hosts=host or (), plan_url=plan_url)
    launch = make_launch(plan, program, name=name, where=where, python=python, on_processors=processors)
    with _refusals():
        submission = render_slurm(
            launch.job, folder=str(launch.folder), master=master_addr, with_gpus=gpus, options=sbatch or ()
        )
    _hand_over(launch, submission, submitted=Submitted(launcher="slurm", name=launch.job.name), dry_run=dry_run)


@launch_app.command(
    "kubernetes",
    epilog="Example: pipeplan launch kubernetes plan.json --image registry/trainer:1 --gpus --dry-run -- train.py",
)
def launch_kubernetes_command(
    plan: arg.PlanFile,
    program: arg.Program,
    image: arg.Image,
    dry_run: arg.DryRun = False,
    controller: arg.Controller = "jobset",
    namespace: arg.Namespace = "default",
    max_restarts: arg.MaxRestarts = 3,
    cluster: arg.Cluster = None,
    name: arg.JobName = None,
    folder: arg.JobFolder = None,
    host: arg.Hosts = None,
    python: arg.Python = None,
    processors: arg.OnProcessors = False,
    plan_url: arg.PlanUrl = None,
    gpus: arg.WithGpus = False,
) -> None:
    """One pod per host, pinned to its node, with the plan in a ConfigMap; prints the job's folder."""
    from api.launching import Whereabouts, make_launch, render_pods
    from planner.launch.job_commands import Submitted
    from planner.launch.kubernetes import PodNeeds

    where = Whereabouts(cluster=cluster, folder=folder, hosts=host or (), plan_url=plan_url)
    launch = make_launch(plan, program, name=name, where=where, python=python, on_processors=processors)
    needs = PodNeeds(image=image, namespace=namespace, with_gpus=gpus, max_restarts=max_restarts)
    launch, submission = render_pods(launch, kind=controller, needs=needs, is_fetched=plan_url is not None)
    submitted = Submitted(launcher="kubernetes", name=launch.job.name, namespace=namespace, kind=controller)
    _hand_over(launch, submission, submitted=submitted, dry_run=dry_run)


@contextmanager
def _refusals() -> Iterator[None]:
    """What cannot be done for the plan at hand is the user's to mend."""
    try:
        yield
    except ValueError as refusal:
        raise InputError(str(refusal)) from refusal


def _hand_over(launch: "Launch", submission: "LaunchSubmission", *, submitted: "Submitted", dry_run: bool) -> None:
    """To the scheduler, or to the screen."""
    from api.launching import describe_start, submit, write_files

    if dry_run:
        _show_submission(launch, submission)
        return
    write_files(launch, submission)
    print(describe_start(submit(submission, submitted=submitted, folder=launch.folder), launch.folder))


def _show_submission(launch: "Launch", submission: "LaunchSubmission") -> None:
    print(f"# {launch.folder}/plan.json: the plan, {len(launch.plan_text):,} characters")
    print(submission.render(folder=str(launch.folder)), end="")


@job_app.command("status", epilog="Example: pipeplan job status pipeplan-jobs/plan-1a2b3c4d")
def job_status_command(folder: arg.JobPlace) -> None:
    """Say how a job is: what its launcher says, or `ended with N`, or `gone`."""
    from api.launching import describe_status, read_submitted

    print(describe_status(read_submitted(Path(folder)), Path(folder)))


@job_app.command("logs", epilog="Example: pipeplan job logs -f pipeplan-jobs/plan-1a2b3c4d")
def job_logs_command(folder: arg.JobPlace, follow: arg.Follow = False) -> None:
    """Show what the processes of a job have said."""
    from api.launching import read_submitted, show_logs

    raise typer.Exit(show_logs(read_submitted(Path(folder)), Path(folder), follow=follow, to=sys.stdout))


@job_app.command("cancel", epilog="Example: pipeplan job cancel pipeplan-jobs/plan-1a2b3c4d")
def job_cancel_command(folder: arg.JobPlace) -> None:
    """End a job."""
    from api.launching import cancel, read_submitted

    cancel(read_submitted(Path(folder)), Path(folder))


@export_app.command("megatron", epilog="Example: pipeplan export megatron plan.json -o arguments.txt")
def export_megatron_command(
    plan: arg.PlanFile, workload: arg.PlansWorkload = None, cluster: arg.Cluster = None, output: arg.Output = None
) -> None:
    """Write Megatron-LM's layout and flags, one per line; the device of every rank goes to standard error."""
    from api.inputs import read_plan_and_problem, require_writable
    from planner.export.megatron import make_megatron_job, render_megatron

    require_writable(output)
    answer, problem = read_plan_and_problem(plan, workload, cluster=cluster)
    with _refusals():
        job = make_megatron_job(problem, answer)
    _write(render_megatron(job), output)
    for rank, device in enumerate(job.ranks):
        print(f"rank {rank}  {device}", file=sys.stderr)


@export_app.command("torchtitan", epilog="Example: pipeplan export torchtitan plan.json -o folder")
def export_torchtitan_command(
    plan: arg.PlanFile, output: arg.ExportFolder, workload: arg.PlansWorkload = None, cluster: arg.Cluster = None
) -> None:
    """Write config.json (fields of torchtitan's configuration, by section) and schedule.csv into a folder."""
    from api.inputs import read_plan_and_problem
    from planner.export.torchtitan import make_torchtitan_files

    answer, problem = read_plan_and_problem(plan, workload, cluster=cluster)
    with _refusals():
        files = make_torchtitan_files(problem, answer)
    if not Path(output).is_dir():
        raise InputError(f"{output}: is no folder; make it first (mkdir -p {output})")
    for name, text in files.items():
        _write(text, str(Path(output) / name))


@export_app.command("deepspeed", epilog="Example: pipeplan export deepspeed plan.json -o planned_pipeline.py")
def export_deepspeed_command(
    plan: arg.PlanFile, workload: arg.PlansWorkload = None, cluster: arg.Cluster = None, output: arg.Output = None
) -> None:
    """Write a module whose PlannedPipelineModule cuts the layers as planned."""
    from api.inputs import read_plan_and_problem, require_writable
    from planner.export.deepspeed import render_deepspeed

    require_writable(output)
    answer, problem = read_plan_and_problem(plan, workload, cluster=cluster)
    with _refusals():
        text = render_deepspeed(problem, answer)
    _write(text, output)


@export_app.command("zero-bubble", epilog="Example: pipeplan export zero-bubble plan.json -o schedule.json")
def export_zero_bubble_command(plan: arg.PlanFile, output: arg.Output = None) -> None:
    """Write the schedule as nodes of the zero-bubble fork of Megatron, a list per rank."""
    from api.inputs import read_plan, require_writable
    from planner.export.zero_bubble import render_zero_bubble

    require_writable(output)
    with _refusals():
        text = render_zero_bubble(read_plan(plan))
    _write(text, output)


@app.command(
    "watch",
    epilog="Examples:\n\npipeplan watch plan.json traces/\n\npipeplan watch plan.json traces/ -o better.json -t 30\n\n"
    "pipeplan watch plan.json --lost node3 -o rest.json --recipe recipe.json",
)
def watch_command(
    plan: arg.PlanFile,
    timings: arg.Timings = None,
    workload: arg.WorkloadOption = None,
    cluster: arg.Cluster = None,
    lost: arg.Lost = None,
    output: arg.Output = None,
    recipe: arg.RecipeFile = None,
    time_limit: arg.TimeLimit = 10.0,
    tolerance: arg.Tolerance = 0.1,
    seed: arg.Seed = 0,
    target: arg.TargetName = None,
    json: arg.Json = False,
) -> None:
    """Hold a running plan against the traces of all ranks: which device, layers or link are slow, what no plan beats.

    If anything has drifted, or with -o, plans again from the present plan on, on the cluster as measured and without
    what is --lost: that says what the best plan would take, and -o keeps it.
    """
    from api.inputs import read_plan_and_problem, require_limits, require_writable
    from api.run_watch import describe_outlook, look_at, read_timings, summarise_outlook

    require_writable(output, recipe)
    require_limits(time_limit_s=time_limit, gap=None, seed=seed)
    if lost and output is None:
        raise InputError("--lost: a new plan is wanted; add -o FILE")
    present, problem = read_plan_and_problem(plan, workload, cluster=cluster)
    seen = read_timings(timings, present) if timings else None
    outlook = look_at(problem, present, seen=seen, source=plan)
    again = None
    if output is not None or outlook.has_drifted(tolerance):
        limits = (time_limit, seed)
        again = _plan_again(outlook.problem, present, lost=lost or [], program=target, limits=limits)
    if json:
        _report_json(summarise_outlook(outlook, tolerance=tolerance, best=None if again is None else again.plan))
    else:
        for line in describe_outlook(outlook, tolerance=tolerance):
            print(line)
    if again is not None:
        _deliver_again(again, output=output, recipe=recipe)


def _plan_again(
    problem: "Problem", present: "Plan", *, lost: list[str], program: str | None, limits: tuple[float, int]
) -> "Again":
    """A new plan from the present one on, and what has to move for it."""
    from api.planning_run import Effort
    from api.replanning import plan_again

    console = _console(is_report=False)
    effort = Effort(time_limit_s=limits[0], gap=None, seed=limits[1], style="quiet")
    with _refusals():
        return plan_again(problem, present, lost=lost, effort=effort, target=program, console=console)


def _deliver_again(again: "Again", *, output: str | None, recipe: str | None) -> None:
    """The new plan and its recipe where they are wanted; what they save goes to standard error."""
    from planner.document import render_plan
    from planner.replanning.migration import render_recipe

    if output is not None:
        _write(render_plan(again.plan), output)
    if recipe is not None:
        _write(render_recipe(again.recipe), recipe)
    for line in again.describe():
        print(line, file=sys.stderr)


@app.command(
    "advise",
    epilog="Examples:\n\npipeplan advise trace.parquet\n\npipeplan advise trace.parquet --blocks 4 -t 30 -o plan.json",
)
def advise_command(
    trace: arg.TraceFile,
    blocks: arg.BlocksPerStage = 8,
    time_limit: arg.TimeLimit = 10.0,
    output: arg.Output = None,
    json: arg.Json = False,
) -> None:
    """Say what binds a job, by its trace: what is slow, and what other orders, dealings and cuts would bring at most.

    Where all microbatches are alike, a plan that Megatron runs is made, for layers that are assumed equal blocks.
    """
    from api.advising import advise_on, describe_advice, summarise_advice
    from api.inputs import require_limits, require_writable
    from planner.document import render_plan

    require_writable(output)
    require_limits(time_limit_s=time_limit, gap=None, seed=0)
    with _refusals():
        said = advise_on(trace, blocks_per_stage=blocks, time_limit_s=time_limit, console=_console(is_report=False))
    if output is not None:
        if said.plan is None:
            raise InputError(f"{trace}: microbatches differ, so that there is no plan to write; leave -o out")
        _write(render_plan(said.plan), output)
    if json:
        _report_json(summarise_advice(said))
    else:
        for line in describe_advice(said):
            print(line, file=sys.stderr if output == "-" else sys.stdout)


@cluster_app.command(
    "discover",
    epilog="Examples:\n\npipeplan cluster discover slurm --accelerator-gib 80 -o cluster.json\n\n"
    "pipeplan cluster discover hostfile --file hosts --type A100 --accelerator-gib 40",
)
def cluster_discover_command(
    source: arg.DiscoverySource,
    file: arg.DiscoveryFile = None,
    output: arg.Output = None,
    name: arg.ClusterName = None,
    accelerator_gib: arg.AcceleratorGib = None,
    device_type: arg.SlotType = "gpu",
    workers_per_host: arg.WorkersPerHost = 1,
    host_gbps: arg.HostSpeed = 24.0,
    network_gbps: arg.NetworkSpeed = 12.5,
    links: arg.MeasuredLinks = None,
) -> None:
    """Write the cluster that Slurm, Kubernetes, nvidia-smi or a hostfile describes.

    Links have nominal speeds, or with --links those that the link benchmark measured.
    """
    from api.cluster_discovery import discover
    from api.inputs import require_writable
    from profiles.discovery.hosts import DeviceDefaults, NominalSpeeds
    from profiles.workload import dump_cluster

    require_writable(output)
    memory = None if accelerator_gib is None else round(accelerator_gib * 2**30)
    found = discover(
        source,
        file=file,
        sizes=DeviceDefaults(memory_bytes=memory, workers_per_host=workers_per_host),
        speeds=NominalSpeeds(host_bytes_per_s=round(host_gbps * 1e9), network_bytes_per_s=round(network_gbps * 1e9)),
        kind=device_type,
        name=name,
        links=links,
    )
    _write(dump_cluster(found), output)


@app.command("targets")
def targets_command(json: arg.Json = False) -> None:
    """List the programs that plans can be made for (`--target`), and what each can run."""
    from planner.export.targets import TARGETS

    if json:
        _report_json({name: {"runs": target.runs, "limits": dict(target.limits)} for name, target in TARGETS.items()})
        return
    for name, target in TARGETS.items():
        print(f"{name:<11} {target.runs}")


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
    from api.inputs import play, read_plan, read_plan_and_problem, require_writable
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


@app.command(
    "import",
    epilog="Examples:\n\npipeplan import graph.txt --cluster cluster.json -m 32 -o workload.json\n\n"
    "pipeplan import trace traces/ -o workload.json",
)
def import_command(
    source: arg.ImportSource,
    traces: arg.TraceFiles = None,
    cluster: arg.Cluster = None,
    num_microbatches: arg.NumMicrobatches = None,
    device_type: arg.DeviceType = None,
    output: arg.Output = None,
    json: arg.Json = False,
) -> None:
    """Turn a workload in any form that is read here into a document in ours, or traces of a job: `import trace FILE`.

    Of traces a summary is printed; with -o the profile that they give is written, a layer per stage as run.
    """
    from api.inputs import UNKNOWN_SIZE, read_workload, rename_device_type, require_writable
    from profiles.workload import dump_workload

    require_writable(output)
    if traces:
        _import_traces(source, traces, cluster=cluster, output=output, is_json=json)
        return
    workload = read_workload(source, cluster=cluster)
    if device_type is not None:
        workload = rename_device_type(workload, device_type)
    if num_microbatches is not None:
        workload = replace(workload, num_microbatches=num_microbatches)
    if workload.profile.microbatch_size is None:
        print(f"{source}: {UNKNOWN_SIZE}", file=sys.stderr)
    _write(dump_workload(workload), output)


def _import_traces(what: str, traces: list[str], *, cluster: str | None, output: str | None, is_json: bool) -> None:
    """A summary of traces, and the workload that they give where it is wanted."""
    from api.inputs import reading
    from api.traces import describe_trace, summarise_trace
    from profiles.importers.trace_summary import make_traced_workload, summarise_traces
    from profiles.workload import dump_workload

    if what != "trace":
        raise InputError(f"import {what}: takes one workload; for traces of a job: pipeplan import trace FILE")
    if cluster is not None:
        raise InputError("--cluster: traces bring their devices along; leave it out")
    with reading():
        summary = summarise_traces([Path(trace) for trace in traces])
        document = dump_workload(make_traced_workload(summary))
    if output is not None:
        _write(document, output)
    if is_json:
        _report_json(summarise_trace(summary))
    else:
        for line in describe_trace(summary):
            print(line, file=sys.stderr if output == "-" else sys.stdout)


@app.command("demos", epilog="Example: pipeplan plan demo:resnet50-two-hosts --time-limit 20")
def demos_command(server: arg.Server = None, json: arg.Json = False) -> None:
    """List the workloads that come along: measured, published or, where their names say so, estimated."""
    if server is not None:
        from api.remote import connect

        _report_summary({name: f"demo:{name}" for name in connect(server).demos()}, is_json=json)
        return
    from api.inputs import describe_demos

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
    threads: serving.Threads = None,
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
    from api import service_commands

    if openapi:
        print(service_commands.render_openapi(), end="")
        return
    settings = service_commands.make_settings(dict(locals()))
    print(f"pipeplan serves http://{host}:{port}", file=sys.stderr)
    service_commands.run_server(settings, host=host, port=port)


@app.command("worker", epilog="Example: pipeplan worker --database-url postgresql://pipeplan@db/pipeplan --workers 4")
def worker_command(
    database_url: serving.DatabaseUrl = None,
    workers: serving.Workers = 1,
    threads: serving.Threads = None,
    memory_gib: serving.MemoryGib = 4.0,
    data: serving.Data = serving.DATA,
) -> None:
    """Solve jobs that wait in PostgreSQL; any number of workers on any number of machines."""
    from api import service_commands

    service_commands.run_worker(service_commands.make_settings(dict(locals())))


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
    from api import service_commands

    with service_commands.key_ring(data, database_url) as keys:
        key, text = service_commands.create_key(keys, dict(locals()))
    print(text)
    print(f"key {key.id} of tenant {key.tenant}: {', '.join(key.scopes)}", file=sys.stderr)


@keys_app.command("list", epilog="Example: pipeplan keys list --json")
def list_keys_command(
    data: serving.Data = serving.DATA, database_url: serving.DatabaseUrl = None, json: arg.Json = False
) -> None:
    """List the API keys, without their secrets."""
    from api import service_commands

    with service_commands.key_ring(data, database_url) as keys:
        rows = [asdict(key) for key in keys.listed()]
    _report_summary(rows, is_json=json)


@keys_app.command("revoke", epilog="Example: pipeplan keys revoke 0123456789ab")
def revoke_key_command(
    key_id: serving.KeyId, data: serving.Data = serving.DATA, database_url: serving.DatabaseUrl = None
) -> None:
    """End an API key at once."""
    from api import service_commands

    with service_commands.key_ring(data, database_url) as keys:
        if not keys.revoke(key_id):
            raise InputError(f"{key_id}: there is no such key that is not revoked yet; see pipeplan keys list")


if __name__ == "__main__":
    sys.exit(main())

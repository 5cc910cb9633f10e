"""`pipeplan plan`."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import typer

from api.cli.options import arguments as arg
from api.cli.options.declare import argument, decided, option, timed, written
from api.cli.options.folded_help import Commands, folded
from api.cli.options.option_groups import Reporting
from api.cli.output import make_console, report_event, write_document
from api.failures import BrokenOffError, Exit, InputError, as_input_errors
from planner import option_values
from planner.decisions.choices import switches
from planner.decisions.decision import Switch

if TYPE_CHECKING:
    from api.planning_run import Effort
    from api.progress import ReportStyle, RunSummary
    from planner.batch_problem import Question
    from planner.export.targets import Target
    from planner.plan import Plan
    from planner.planning import SearchParams
    from planner.problem import Problem
    from planner.progress import Limits

commands = Commands()


class _WorkloadSource(NamedTuple):
    """The workload and its batch."""

    workload: Annotated[str, argument("WORKLOAD", "A workload file, demo:NAME, or - for standard input.")]
    cluster: arg.Cluster = None
    num_microbatches: arg.NumMicrobatches = None
    global_batch: arg.GlobalBatch = None
    microbatch_sizes: Annotated[
        str | None,
        option("--microbatch-sizes -b N[,N...]", "With a global batch: the sizes to decide among; e.g. 1,2,4."),
    ] = None


class _PlanFiles(NamedTuple):
    """Files and plans to write."""

    output: arg.Output = None
    html: arg.Html = None
    trace: Annotated[str | None, written("--trace FILE", "Also write a Chrome trace for Perfetto.")] = None
    top: Annotated[
        int,
        written(
            "--top K",
            "The best plan and up to K - 1 of other kinds, each verified; -o plan.json also writes plan.2.json, ...",
            min=1,
            max=20,
        ),
    ] = 1


class _SearchLimits(NamedTuple):
    """When to stop."""

    time_limit_s: arg.TimeLimit = 60.0
    gap: Annotated[
        float | None,
        timed("--gap FRACTION", "Stop at this gap to the best possible plan; exit with 4 if it is not reached."),
    ] = None
    seed: arg.Seed = 0
    max_rounds: arg.MaxRounds = None
    patience: Annotated[
        int | None,
        timed(
            "--patience N",
            "Stop after N steps of the search without a better plan (200 unless --max-rounds is given).",
            min=1,
        ),
    ] = None
    threads: Annotated[
        int | None,
        timed("--threads N", "Threads that search at once (left out: all cores that this process may use).", min=1),
    ] = None
    method: Annotated[
        str,
        timed(
            "--method NAME",
            "auto; search: without the complete search; cp-sat or ilp: a solver decides everything at once, for small "
            "problems.",
        ),
    ] = "auto"
    solver: Annotated[
        str | None,
        timed(
            "--solver NAME",
            "PuLP's name of the solver of --method ilp: HiGHS unless given, PULP_CBC_CMD, SCIP_PY, GUROBI, ... as "
            "installed.",
        ),
    ] = None
    search_param: Annotated[
        list[str] | None,
        timed("--search-param NAME=VALUE", "What steers the search, as `pipeplan search-params` lists it; repeatable."),
    ] = None
    workers: Annotated[
        str | None,
        timed(
            "--workers ADDRESS|N",
            "Workers of a Dask scheduler, or N processes of this machine, do tasks of the search.",
        ),
    ] = None
    islands: Annotated[int | None, typer.Option("--islands", hidden=True)] = None


class _DecisionOptions(NamedTuple):
    """What is open, beside the decisions that ask for themselves."""

    decide_all: Annotated[
        bool,
        decided(
            "--decide-all",
            "Decide all that the profile has costs for: devices per stage replica, up to 12 stages per device, "
            "recomputation per layer and microbatch, sharded optimizer.",
        ),
    ] = False
    objective: Annotated[
        option_values.Objective | None,
        decided(
            "--objective WHAT",
            "makespan: end of the iteration; span: longest busy stretch of a device; cost: makespan times the prices "
            "of the devices used.",
        ),
    ] = None
    deadline: Annotated[
        float | None,
        decided("--deadline MS", "With --objective cost: the iteration takes so many milliseconds at most."),
    ] = None
    max_stages_per_device: Annotated[int | None, decided("--max-stages-per-device N", "1: one stage per device.")] = (
        None
    )
    max_replicas: Annotated[int | None, decided("--max-replicas N", "Largest number of replicas of a stage.")] = None
    no_replication: Annotated[bool, decided("--no-replication", "The same as --max-replicas 1.")] = False
    no_split_backward: Annotated[
        bool, decided("--no-split-backward", "Compute input and weight gradients in one action.")
    ] = False
    no_uneven_replication: Annotated[
        bool, decided("--no-uneven-replication", "All stages have equally many replicas.")
    ] = False
    no_skip_edges: Annotated[bool, decided("--no-skip-edges", "Tensors pass between neighbouring stages only.")] = False
    no_idle_devices: Annotated[bool, decided("--no-idle-devices", "Every device holds a stage.")] = False
    receive_buffers: Annotated[
        int | None, decided("--receive-buffers N", "Tensors that may wait at each input of a stage; 0 counts none.")
    ] = None
    synchronisation: Annotated[
        option_values.Synchronisation | None,
        decided(
            "--synchronisation HOW",
            "Reduce gradients of replicas beside other transfers (after), or in one queue with them (bucketed).",
        ),
    ] = None
    pin: Annotated[list[str] | None, decided("--pin LAYER=DEVICE", "Put a layer on this device; repeatable.")] = None


class _OtherOptions(NamedTuple):
    """The service that plans instead of this process, and the program that is to run the plan."""

    server: arg.Server = None
    target: arg.TargetName = None


def _annotation(option: str, switch: Switch) -> Any:
    kind: Any = bool if switch.metavar is None else Literal[switch.values] | None if switch.values else int | None
    flag = f"--{option.replace('_', '-')}"
    return Annotated[
        kind,
        typer.Option(
            flag, metavar=switch.metavar, min=switch.least, help=switch.help, rich_help_panel="What may be decided"
        ),
    ]


class _DecisionSwitches(dict[str, Any]):
    """The switches of `planner.decisions`: values by the option that each sets."""

    _fields = tuple(switches())
    _field_defaults: ClassVar = {option: None if each.metavar else False for option, each in switches().items()}
    __annotations__ = {option: _annotation(option, each) for option, each in switches().items()}


_PlanHelp = folded(
    *("workload", "cluster", "num_microbatches", "global_batch", "output", "html", "json", "quiet"),
    *("time_limit_s", "gap", "seed", "max_rounds", "decide_all", "recompute", "target"),
)


@commands.command(
    "plan",
    cls=_PlanHelp,
    epilog="Examples:\n\n"
    "pipeplan plan demo:resnet50-two-hosts --time-limit 20 -o plan.json --html plan.html\n\n"
    "pipeplan plan workload.json --cluster cluster.json -m 32 --gap 0.01 > plan.json\n\n"
    "pipeplan plan workload.json --decide-all --target megatron -o plan.json",
)
def plan_command(
    *,
    source: _WorkloadSource,
    files: _PlanFiles,
    reporting: Reporting,
    limits: _SearchLimits,
    rest: _OtherOptions,
    decisions: _DecisionOptions,
    asked: _DecisionSwitches,
) -> None:
    """Make a verified plan, and say how far from the best it can be.

    Ctrl+C ends the search with the best verified plan, a second one aborts.
    """
    from api.inputs import require_limits, require_writable
    from api.planning_run import run_plan
    from planner.batch_problem import problem_for

    require_writable(files.output, files.html, files.trace)
    until = require_limits(**limits._asdict())
    question = _question(source, decisions, asked=asked)
    _require_served(limits, files, server=rest.server, target=rest.target)
    question, program = _restricted(question, rest.target, decides_chunks=decisions.max_stages_per_device is None)
    console = make_console(is_report=False)
    effort = replace(_effort(limits, until=until, style=reporting.style(console)), top=files.top)
    if effort.needs_complete_model and rest.server is None:
        from planner.planning.complete.complete_search import require_answerable

        with as_input_errors():
            require_answerable(question, effort.limits)
    if rest.server is None:
        plan, run = run_plan(question, effort, console=console, target=program)
    else:
        from api.remote import run_remotely

        plan, run = run_remotely(question, effort, console=console, url=rest.server)
    problem = problem_for(question, plan)
    _deliver(problem, plan, run=run, files=files, style=effort.style)
    _require_unbroken(plan)
    if effort.is_missed_by(plan):
        raise typer.Exit(Exit.GAP_MISSED)


def _require_unbroken(plan: "Plan") -> None:
    """Raise BrokenOffError, once the plan is written, if the search for it broke off."""
    evidence = plan.evidence
    if evidence is not None and evidence.stopped_by == "solver_failed":
        reason = evidence.solver_versions.get("complete model", "the solver failed")
        raise BrokenOffError(f"{reason}; the plan is that of {evidence.source!r}", code=Exit.NOT_FOUND)
    if evidence is not None and evidence.stopped_by == "internal_error":
        text = f"the search broke off, not your fault; the plan is that of {evidence.source!r}; please report it"
        raise BrokenOffError(text, code=Exit.INTERNAL)


def _require_served(limits: _SearchLimits, files: _PlanFiles, *, server: str | None, target: str | None) -> None:
    """Refuse what a service does not do, and what only a service does."""
    if limits.islands is not None:
        raise InputError(f"--islands {limits.islands}: was replaced in this release; use --workers ADDRESS, or N here")
    if server is None:
        return
    if limits.workers is not None:
        raise InputError("--workers: a service has workers of its own (pipeplan serve --scheduler); leave --server out")
    if files.top > 1:
        raise InputError("--top: a service returns one plan; leave --server out")
    if target is not None:
        raise InputError("--target: a service does not fit plans to a program yet; leave --server out")
    if limits.search_param:
        raise InputError("--search-param: a service searches with its own parameters; leave --server out")


def _question(source: _WorkloadSource, decisions: _DecisionOptions, *, asked: _DecisionSwitches) -> "Question":
    from api.inputs import choose_batch, make_question, parse_changes, read_workload

    workload = choose_batch(
        read_workload(source.workload, cluster=source.cluster),
        num_microbatches=source.num_microbatches,
        global_batch=source.global_batch,
        sizes=source.microbatch_sizes,
    )
    return make_question(
        workload, changes=parse_changes({**decisions._asdict(), **asked}), opens_all=decisions.decide_all
    )


def _effort(limits: _SearchLimits, *, until: "Limits", style: "ReportStyle") -> "Effort":
    from api.planning_run import Effort

    return Effort(
        limits=until,
        wants_gap=limits.gap is not None,
        workers=limits.workers,
        params=_search_params(limits.search_param) if limits.search_param else None,
        style=style,
    )


def _search_params(assignments: list[str]) -> "SearchParams":
    from planner.planning.named_params import parse_assignments

    try:
        return parse_assignments(assignments)
    except ValueError as error:
        raise InputError(f"--search-param: {error}") from None


@commands.command("search-params", hidden=True)
def search_params_command() -> None:
    """List what steers the search and can be set by --search-param NAME=VALUE."""
    from api.reporting.params_table import render_params_table

    write_document(render_params_table(), None)


def _restricted(question: "Question", target: str | None, *, decides_chunks: bool) -> "tuple[Question, Target | None]":
    """The question with no more freedom than the program that the plan is for can execute.

    `decides_chunks`: nobody said how many stages a device may hold.
    """
    if target is None:
        return question, None
    from planner.export.targets import TARGETS, restrict_question, with_chunks

    program = TARGETS[target]
    options = with_chunks(question.options, program) if decides_chunks else question.options
    with as_input_errors():
        return restrict_question(replace(question, options=options), program), program


def _deliver(problem: "Problem", plan: "Plan", *, run: "RunSummary", files: _PlanFiles, style: "ReportStyle") -> None:
    """Write the plan and its pictures, then say what was made."""
    from api.reporting.alternative_plans import file_names
    from planner.document import render_plan

    if files.output is not None or not sys.stdout.isatty():
        write_document(render_plan(plan), files.output)
    names = file_names(files.output, count=1 + len(run.others))
    written = {f"plan {number}" if number > 1 else "plan": name for number, name in enumerate(names, 1) if name}
    for plan_of_kind, name in zip(run.others, names[1:], strict=True):
        if name is not None:
            write_document(render_plan(plan_of_kind), name)
    for what, target in {"picture": files.html, "trace": files.trace}.items():
        if target is not None:
            write_document(_draw(problem, plan, what=what), target)
            written[what] = target
    _tell(problem, plan, run=replace(run, files=written), style=style)


def _draw(problem: "Problem", plan: "Plan", *, what: str) -> str:
    from planner.simulation.simulate import simulate

    if what == "trace":
        from planner.export.trace import render_trace

        return render_trace(problem, plan, timeline=simulate(problem, plan))
    from api.viewer import render_picture

    return render_picture(problem, plan, timeline=simulate(problem, plan))


def _tell(problem: "Problem", plan: "Plan", *, run: "RunSummary", style: "ReportStyle") -> None:
    """The closing words of a planning run, on standard error."""
    if style == "json":
        from api.reporting.kinds_of_plan import summarise_kinds
        from api.reporting.summaries import summarise_plan

        best = {"best_of_each_kind": summarise_kinds(problem, plan, program=run.target)}
        report_event(summarise_plan(plan, run) | best | _summarise_others(problem, plan, run=run))
    elif style != "quiet":
        from api.reporting.screen import render_screen

        console = make_console(is_report=False)
        console.print(render_screen(problem, plan, run=run))
        if run.top > 1:
            from api.reporting.alternative_plans import make_rows, render_kinds

            console.print("\nOther kinds of plan")
            console.print(render_kinds(make_rows(problem, [plan, *run.others]), wanted=run.top))


def _summarise_others(problem: "Problem", plan: "Plan", *, run: "RunSummary") -> dict[str, Any]:
    """The plans of several kinds, where they were asked for."""
    from api.reporting.alternative_plans import file_names, make_rows, summarise_kinds

    if run.top == 1:
        return {}
    plans = [plan, *run.others]
    files = file_names((run.files or {}).get("plan"), count=len(plans))
    return {"kinds": summarise_kinds(make_rows(problem, plans), files)}

"""`pipeplan watch`."""

import sys
from typing import TYPE_CHECKING, Annotated, NamedTuple

from api.cli.options import arguments as arg
from api.cli.options.declare import argument, option, timed, written
from api.cli.options.folded_help import Commands, folded
from api.cli.output import make_console, report_json, write_document
from api.failures import InputError, as_input_errors

if TYPE_CHECKING:
    from api.running.replanning import Replanned
    from api.running.run_watch import Outlook
    from planner.plan import Plan
    from planner.problem import Problem

commands = Commands()


class _RunningPlan(NamedTuple):
    """The running plan and its timings."""

    plan: arg.PlanFile
    timings: Annotated[
        list[str] | None, argument("[TIMINGS...]", "Folders of the executor's --trace, or traces of torch's profiler.")
    ] = None
    workload: arg.WorkloadOption = None
    cluster: arg.Cluster = None


class _ReplanOptions(NamedTuple):
    """When and how to plan again."""

    lost: arg.Lost = None
    output: arg.Output = None
    recipe: Annotated[str | None, written("--recipe FILE", "Also write which state moves where (JSON).")] = None
    time_limit: arg.TimeLimit = 10.0
    tolerance: Annotated[
        float, option("--tolerance FRACTION", "Differences up to this fraction count as none.", min=0, max=1000)
    ] = 0.1
    steps_left: Annotated[
        int, timed("--steps-left N", "Iterations under a new plan, over which it has to earn what moves for it.", min=1)
    ] = 1_000
    storage_rate: arg.StorageRate = 1.0
    seed: arg.Seed = 0
    target: arg.TargetName = None
    notify: Annotated[
        str | None,
        option(
            "--notify URL",
            "The plan's URL at a service, which reports drift and losses to webhooks; key: PIPEPLAN_KEY.",
            envvar="PIPEPLAN_NOTIFY",
        ),
    ] = None


@commands.command(
    "watch",
    cls=folded(
        *("plan", "timings", "workload", "cluster", "lost", "output", "recipe", "time_limit", "steps_left", "notify"),
        "json",
    ),
    epilog="Examples:\n\npipeplan watch plan.json traces/\n\npipeplan watch plan.json traces/ -o better.json -t 30\n\n"
    "pipeplan watch plan.json --lost node3 -o rest.json --recipe recipe.json",
)
def watch_command(*, source: _RunningPlan, options: _ReplanOptions, json: arg.Json = False) -> None:
    """Hold a running plan against its traces: what is slow.

    If a device, layer or link has drifted, or with -o, it plans again for the cluster as measured, without what is
    --lost.
    """
    from api.inputs import read_plan_and_problem, require_limits, require_writable
    from api.running.run_watch import describe_outlook, look_at, read_timings, summarise_outlook

    require_writable(options.output, options.recipe)
    require_limits(time_limit_s=options.time_limit, seed=options.seed)
    if options.lost and options.output is None:
        raise InputError("--lost: the new plan has no file; add -o FILE")
    if not (source.timings or options.lost or options.output):
        raise InputError("nothing to hold the plan against; add the folder of a --trace, or --lost NAME -o FILE")
    present, problem = read_plan_and_problem(source.plan, source.workload, cluster=source.cluster)
    seen = read_timings(source.timings, present) if source.timings else None
    outlook = look_at(problem, present, seen=seen, source=source.plan, timings=source.timings or ())
    _tell_service(outlook, options=options)
    again = None
    if options.output is not None or outlook.has_drifted(options.tolerance):
        again = _plan_again(outlook.problem, present, options=options)
    if json:
        report_json(summarise_outlook(outlook, tolerance=options.tolerance, again=again))
    else:
        for line in describe_outlook(outlook, tolerance=options.tolerance):
            print(line)
    if again is not None:
        _deliver_again(again, options=options)


def _tell_service(outlook: "Outlook", *, options: _ReplanOptions) -> None:
    """What is new about the plan goes to the service that made it, and from there to webhooks."""
    from api.running.notices import notify_service
    from api.running.run_watch import summarise_outlook

    if options.lost:
        notify_service("device_lost", {"lost": options.lost}, url=options.notify)
    if outlook.has_drifted(options.tolerance):
        found = summarise_outlook(outlook, tolerance=options.tolerance, again=None)
        told = {name: found[name] for name in ("planned_ns", "measured_ns", "limit_ns", "most_gain_ns", "culprits")}
        notify_service("drifted", told, url=options.notify)


def _plan_again(problem: "Problem", present: "Plan", *, options: _ReplanOptions) -> "Replanned":
    """A new plan from the present one on, and what has to move for it."""
    from api.planning_run import Effort
    from api.running.replanning import Rest, plan_again
    from planner.progress import Limits

    rest = Rest(steps_left=options.steps_left, bytes_per_s=options.storage_rate * 1e9)
    console = make_console(is_report=False)
    effort = Effort(limits=Limits(time_limit_s=options.time_limit, seed=options.seed), style="quiet")
    with as_input_errors():
        return plan_again(
            problem, present, lost=options.lost or [], effort=effort, target=options.target, console=console, rest=rest
        )


def _deliver_again(again: "Replanned", *, options: _ReplanOptions) -> None:
    """The new plan and its recipe where they are wanted; what they save goes to standard error."""
    from planner.document import render_plan
    from planner.replanning.migration import render_recipe

    if options.output is not None:
        write_document(render_plan(again.plan), options.output)
    if options.recipe is not None:
        write_document(render_recipe(again.recipe, again.plan), options.recipe)
    for line in again.describe():
        print(line, file=sys.stderr)

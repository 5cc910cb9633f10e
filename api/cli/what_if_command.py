"""`pipeplan what-if`."""

from typing import Annotated, NamedTuple

from api.cli.options import arguments as arg
from api.cli.options.declare import argument, option
from api.cli.options.folded_help import Commands
from api.cli.options.option_groups import Reporting
from api.cli.output import make_console, report_json, write_document

commands = Commands()


class _QuestionSource(NamedTuple):
    """A plan, or a workload that is planned first."""

    question: Annotated[
        str,
        argument(
            "PLAN|WORKLOAD", "A plan, or a workload (a file, demo:NAME, or - for standard input) that is planned first."
        ),
    ]
    workload: arg.PlansWorkload = None
    cluster: arg.Cluster = None
    num_microbatches: arg.NumMicrobatches = None


class _ShortLimits(NamedTuple):
    """When to stop."""

    time_limit_s: arg.TimeLimit = 20.0
    seed: arg.Seed = 0
    max_rounds: arg.MaxRounds = None


@commands.command(
    "what-if",
    epilog="Examples:\n\npipeplan what-if plan.json --change memory_bytes=8GiB\n\n"
    "pipeplan what-if demo:vgg16-ethernet --change devices=1 --change link_speed=2 -t 30\n\n"
    "pipeplan what-if plan.json --change lost=node3 --json -o rest.json",
)
def what_if_command(
    *,
    source: _QuestionSource,
    change: Annotated[
        list[str] | None,
        option(
            "--change FIELD=VALUE",
            "devices=N more (or -N), memory_bytes=8GiB more per device (or -8GiB), link_speed=FACTOR, "
            "num_microbatches=N, lost=DEVICE or HOST; repeatable.",
        ),
    ] = None,
    limits: _ShortLimits,
    output: arg.Output = None,
    reporting: Reporting,
) -> None:
    """Say what other devices, memory, links or batches would gain.

    Plans the changed question from the present plan on. For a workload that plan is made first, in half of the time.
    """
    from api.inputs import require_limits, require_writable
    from api.planning_run import Effort
    from api.reporting.what_if import ask_what_if, parse_change, read_base
    from planner.document import render_plan

    wanted = parse_change(change or [])
    require_writable(output)
    asked = require_limits(**limits._asdict())
    problem, plan = read_base(
        source.question, source.workload, cluster=source.cluster, num_microbatches=source.num_microbatches
    )
    console = make_console(is_report=False)
    effort = Effort(limits=asked, style=reporting.style(console))
    answer = ask_what_if(problem, plan, change=wanted, effort=effort, console=console)
    if output is not None:
        write_document(render_plan(answer.plan), output)
    if reporting.json:
        report_json(answer.summarise())
    else:
        from api.reporting.command_reports import render_what_if

        make_console(is_report=output != "-").print(render_what_if(answer))

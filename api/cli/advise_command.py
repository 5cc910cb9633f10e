"""`pipeplan advise`."""

import sys
from typing import Annotated

from api.cli.options import arguments as arg
from api.cli.options.declare import argument, option
from api.cli.options.folded_help import Commands
from api.cli.output import make_console, report_json, write_document
from api.failures import InputError, as_input_errors

commands = Commands()


@commands.command(
    "advise",
    epilog="Examples:\n\npipeplan advise trace.parquet\n\npipeplan advise trace.parquet --blocks 4 -t 30 -o plan.json",
)
def advise_command(
    *,
    trace: Annotated[
        str, argument("TRACE", "All operations of all ranks (.parquet), or the folder of a trace per rank.")
    ],
    blocks: Annotated[
        int,
        option(
            "--blocks N",
            "Equal blocks that a stage is assumed to consist of, since a trace does not show layers.",
            min=1,
            max=64,
        ),
    ] = 8,
    time_limit: arg.TimeLimit = 10.0,
    output: arg.Output = None,
    json: arg.Json = False,
) -> None:
    """Say what slows a job down, by its trace, and what would help.

    Tried are other orders, other microbatches per pipeline and other partitions; each gain has an upper bound.

    Where all microbatches are alike, a plan that Megatron runs is made, for layers that are assumed equal blocks.
    """
    from api.inputs import require_limits, require_writable
    from api.running.advising import advise_on, describe_advice, summarise_advice
    from planner.document import render_plan

    require_writable(output)
    require_limits(time_limit_s=time_limit)
    console = make_console(is_report=False)
    with as_input_errors():
        said = advise_on(trace, blocks_per_stage=blocks, time_limit_s=time_limit, console=console)
    if output is not None:
        if said.plan is None:
            raise InputError(f"{trace}: its microbatches differ, so no plan can be written; leave -o out")
        write_document(render_plan(said.plan), output)
    if json:
        report_json(summarise_advice(said))
    else:
        for line in describe_advice(said):
            print(line, file=sys.stderr if output == "-" else sys.stdout)

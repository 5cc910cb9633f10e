"""The command line: artefacts go to standard output, everything else to standard error; no other folder prints.

Each module holds a command, or commands of one subject. It imports what it needs when it is called: the help must not
wait for solvers.
"""

import json
import os
import sys
import traceback
from typing import Annotated

import typer

from api.cli import (
    advise_command,
    audit_command,
    cluster_commands,
    compare_command,
    document_commands,
    explain_command,
    export_commands,
    import_command,
    installation_commands,
    launch_commands,
    plan_command,
    profile_command,
    serving_commands,
    tune_command,
    verify_commands,
    view_command,
    watch_command,
    what_if_command,
)
from api.cli.agents import agent_commands
from api.cli.options import arguments
from api.failures import Exit, InputError, describe_failure

_DEBUG = "PIPEPLAN_DEBUG"
"""Environment variable that asks for the traceback of an internal error, as `--debug` does."""

app = typer.Typer(
    name="pipeplan",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Try: pipeplan plan demo:resnet50-two-hosts -t 20 --html plan.html\n\n"
    "Exit codes: 0 done, 1 internal error, 2 bad usage or input, 3 proved infeasible, 4 gap not reached, "
    "5 no plan found, 6 plan rejected, 7 server, 130 interrupted.",
)
for commands in (  # in the order of the help
    plan_command.commands,
    profile_command.commands,
    tune_command.commands,
    verify_commands.commands,
    explain_command.commands,
    what_if_command.commands,
    compare_command.commands,
    watch_command.commands,
    advise_command.commands,
    audit_command.commands,
    export_commands.targets,
    view_command.commands,
    import_command.commands,
    document_commands.commands,
    installation_commands.commands,
    serving_commands.commands,
    agent_commands.commands,
):
    app.add_typer(commands)
app.add_typer(export_commands.commands, name="export")
app.add_typer(launch_commands.commands, name="launch")
app.add_typer(cluster_commands.commands, name="cluster")
app.add_typer(launch_commands.jobs, name="job")
app.add_typer(serving_commands.keys, name="keys")
app.add_typer(serving_commands.stores, name="store")


def main(given: list[str] | None = None) -> int:
    """Run one command; the answer is its exit code."""
    arguments = sys.argv[1:] if given is None else given
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        app(args=arguments, prog_name="pipeplan")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except Exception as error:
        return _fail(error, is_json="--json" in arguments)
    return Exit.DONE


def _fail(error: Exception, *, is_json: bool) -> int:
    """Say what went wrong, in one message."""
    failure = describe_failure(error)
    if os.environ.get(_DEBUG) and not isinstance(error, InputError):
        traceback.print_exception(error)
    if is_json:
        event = {"event": "error", "code": int(failure.code), "message": failure.message}
        print(json.dumps(event, ensure_ascii=False), file=sys.stderr)
    else:
        print(f"error: {failure.message}", file=sys.stderr)
    return failure.code


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from planner.release import RELEASE

        print(f"pipeplan {RELEASE}")
        raise typer.Exit


@app.callback()
def root(
    debug: arguments.Debug = False,
    version: Annotated[  # noqa: ARG001 its callback has answered
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Plan pipeline-parallel training: verified plans, with a proved gap."""
    if debug:
        os.environ[_DEBUG] = "1"

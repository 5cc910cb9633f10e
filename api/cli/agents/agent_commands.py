"""`pipeplan mcp` and `pipeplan skills`: what a coding agent plans with."""

import sys
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from api.cli.options import serving_arguments as serving
from api.cli.options.declare import option
from api.cli.options.folded_help import Commands
from api.cli.output import write_folder

commands = Commands()

_Data = Annotated[
    Path | None,
    option(
        "--data DIR",
        f"Folder of the plans (left out: a temporary one; with --http {serving.DATA}).",
        envvar="PIPEPLAN_DATA",
    ),
]
_OverHttp = Annotated[bool, option("--http", "Serve over HTTP instead of standard input and output.")]
_Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the agent looks for skills.")]


class _ToolStoreOptions(NamedTuple):
    """Where plans are kept, and how many are searched for at once."""

    data: _Data = None
    workers: serving.Workers = 1
    threads: serving.Threads = None
    memory_gib: serving.MemoryGib = None
    database_url: serving.DatabaseUrl = None
    wait_for_database: serving.WaitForDatabase = 60.0


class _ToolLimits(NamedTuple):
    """Limits of what is served."""

    max_time_limit: serving.MaxTimeLimit = 3600.0
    limit: serving.ClientLimit = None


@commands.command(
    "mcp",
    epilog="Examples:\n\npipeplan mcp\n\npipeplan mcp --data plans\n\n"
    "pipeplan mcp --http --host 0.0.0.0 --data /var/lib/pipeplan",
)
def mcp_command(
    *,
    http: _OverHttp = False,
    store: _ToolStoreOptions,
    address: serving.AddressOptions,
    access: serving.AccessOptions,
    ceilings: _ToolLimits,
) -> None:
    """Give agents tools (Model Context Protocol).

    They audit, plan, verify, explain and answer what-if.

    Over standard input and output for one agent; with --http for a team, at /mcp beside the whole service of `pipeplan
    serve`, with its keys.
    """
    from api import service_commands
    from api.agents.transports import PATH, run_http, run_stdio

    switches = address._asdict() | access._asdict() | ceilings._asdict() | store._asdict()
    service_commands.begin_logs("text")
    settings = service_commands.make_settings(switches | {"data": store.data or serving.DATA})
    if http:
        print(f"pipeplan serves http://{address.host}:{address.port}{PATH}", file=sys.stderr)
        run_http(settings, host=address.host, port=address.port, wait_s=store.wait_for_database)
    else:
        run_stdio(settings, data=store.data)


@commands.command("skills", epilog="Examples:\n\npipeplan skills\n\npipeplan skills ~/.claude/skills")
def skills_command(folder: _Folder = Path(".agents/skills")) -> None:
    """Write the skills for coding agents.

    They say how to profile, plan, audit, and explain a gap.
    """
    from api.agents.skill_files import NAMES, read_skill

    for name in NAMES:
        write_folder({"SKILL.md": read_skill(name)}, folder / name)
        print(folder / name / "SKILL.md")

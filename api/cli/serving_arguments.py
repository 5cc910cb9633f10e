"""What the commands that run a service accept, with their help texts."""

from pathlib import Path
from typing import Annotated

import typer

DATA = Path("pipeplan-data")
"""Where a service keeps its jobs unless told otherwise."""

_LIMITS = "Limits"
_DOORS = "Who may come in"

Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on; all: 0.0.0.0.")]
Port = Annotated[int, typer.Option("--port", metavar="N", help="Port to listen on.", min=1, max=65535)]
Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="Folder of the jobs.", envvar="PIPEPLAN_DATA", show_envvar=False)
]
Workers = Annotated[int, typer.Option("--workers", metavar="N", help="Jobs solved at once.", min=1, max=256)]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        help="Keep jobs in PostgreSQL instead of SQLite.",
        envvar="PIPEPLAN_DATABASE_URL",
        show_envvar=False,
        show_default=False,
    ),
]
Keys = Annotated[
    bool | None,
    typer.Option(
        "--keys/--no-keys",
        help="Ask for API keys (left out: unless only this machine can reach the address).",
        rich_help_panel=_DOORS,
        show_default=False,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        help="Threads of one solver process (left out: the usable cores, divided by the workers).",
        min=1,
        show_default=False,
        rich_help_panel=_LIMITS,
    ),
]
MemoryGib = Annotated[
    float, typer.Option("--memory-gib", metavar="X", help="Memory of one solver process.", rich_help_panel=_LIMITS)
]
MaxTimeLimit = Annotated[
    float,
    typer.Option("--max-time-limit", metavar="S", help="Longest time limit of a job.", rich_help_panel=_LIMITS),
]
RetentionDays = Annotated[
    float,
    typer.Option("--retention-days", metavar="X", help="Finished jobs are kept so long.", rich_help_panel=_LIMITS),
]
ClientLimit = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=VALUE",
        help="A limit of clients, e.g. header_timeout_s=5 (docs/service.md lists them); repeatable.",
        rich_help_panel=_LIMITS,
    ),
]
WaitForDatabase = Annotated[
    float,
    typer.Option(
        "--wait-for-database",
        metavar="S",
        help="Seconds to wait for a PostgreSQL server that starts later.",
        envvar="PIPEPLAN_WAIT_FOR_DATABASE",
        show_envvar=False,
        min=0,
        max=86400,
    ),
]
Traces = Annotated[bool, typer.Option("--traces", help="Make OpenTelemetry spans (needs opentelemetry-sdk).")]
OidcIssuer = Annotated[
    str | None,
    typer.Option(
        "--oidc-issuer", metavar="URL", help="Also take bearer tokens of this issuer.", rich_help_panel=_DOORS
    ),
]
OidcAudience = Annotated[
    str, typer.Option("--oidc-audience", metavar="NAME", help="Audience of those tokens.", rich_help_panel=_DOORS)
]
OidcJwks = Annotated[
    Path | None,
    typer.Option("--oidc-jwks", metavar="FILE", help="The issuer's public keys (JWKS).", rich_help_panel=_DOORS),
]
OpenApi = Annotated[bool, typer.Option("--openapi", help="Print the OpenAPI document and end.")]

Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose key it is.")]
KeyName = Annotated[str, typer.Option("--name", metavar="TEXT", help="What it is for.")]
Scopes = Annotated[
    list[str] | None,
    typer.Option("--scope", metavar="SCOPE", help="plans:read, plans:write or metrics; repeatable; left out: all."),
]
ExpiresDays = Annotated[float | None, typer.Option("--expires-days", metavar="X", help="Ends by itself after so long.")]
HourlyJobs = Annotated[int | None, typer.Option("--hourly-jobs", metavar="N", help="Jobs in an hour.", min=1)]
ConcurrentJobs = Annotated[
    int | None, typer.Option("--concurrent-jobs", metavar="N", help="Jobs queued or running.", min=1)
]
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="The key's id, as `keys list` shows it.", show_default=False)]

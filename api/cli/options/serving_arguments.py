"""What the commands that run a service accept, with their help texts."""

from pathlib import Path
from typing import Annotated, Literal

import typer

DATA = Path("pipeplan-data")
"""Where a service keeps its jobs unless told otherwise."""

_LIMITS = "Limits"
_DOORS = "Who may come in"

Host = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        envvar="PIPEPLAN_HOST",
        show_envvar=False,
        help="Address to listen on; all: 0.0.0.0.",
    ),
]
Port = Annotated[
    int,
    typer.Option(
        "--port", metavar="N", envvar="PIPEPLAN_PORT", show_envvar=False, help="Port to listen on.", min=1, max=65535
    ),
]
Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="Folder of the jobs.", envvar="PIPEPLAN_DATA", show_envvar=False)
]
Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        metavar="N",
        envvar="PIPEPLAN_WORKERS",
        show_envvar=False,
        help="Jobs solved at once.",
        min=1,
        max=256,
    ),
]
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
        envvar="PIPEPLAN_THREADS",
        show_envvar=False,
        help="Threads of one solver process (left out: the usable cores, divided by the workers).",
        min=1,
        show_default=False,
        rich_help_panel=_LIMITS,
    ),
]
MemoryGib = Annotated[
    float | None,
    typer.Option(
        "--memory-gib",
        metavar="X",
        help="Memory of one solver process (left out: 4, or less where the container has less).",
        envvar="PIPEPLAN_MEMORY_GIB",
        show_envvar=False,
        show_default=False,
        rich_help_panel=_LIMITS,
    ),
]
MaxTimeLimit = Annotated[
    float,
    typer.Option(
        "--max-time-limit",
        metavar="S",
        envvar="PIPEPLAN_MAX_TIME_LIMIT",
        show_envvar=False,
        help="Longest time limit of a job.",
        rich_help_panel=_LIMITS,
    ),
]
RetentionDays = Annotated[
    float,
    typer.Option(
        "--retention-days",
        metavar="X",
        envvar="PIPEPLAN_RETENTION_DAYS",
        show_envvar=False,
        help="Finished jobs are kept so long.",
        rich_help_panel=_LIMITS,
    ),
]
ClientLimit = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=VALUE",
        help="A limit, e.g. header_timeout_s=5 (docs/how-to/serve-a-team.md lists them); repeatable.",
        rich_help_panel=_LIMITS,
    ),
]
WebhookHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--webhook-host",
        metavar="HOST",
        help="A host that webhooks may speak to, e.g. hooks.example.com or *.example.com; repeatable.",
        envvar="PIPEPLAN_WEBHOOK_HOSTS",
        show_envvar=False,
        rich_help_panel=_DOORS,
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
LogForm = Annotated[
    Literal["text", "json"],
    typer.Option(
        "--log-format",
        metavar="FORM",
        help="text: warnings only; json: every request, job and solve, one object a line.",
        envvar="PIPEPLAN_LOG_FORMAT",
        show_envvar=False,
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="N",
        help="Answer /metrics and /livez on this port.",
        envvar="PIPEPLAN_METRICS_PORT",
        show_envvar=False,
        show_default=False,
        min=0,
        max=65535,
    ),
]
MetricsHost = Annotated[
    str,
    typer.Option(
        "--metrics-host",
        metavar="ADDRESS",
        help="Address of that port.",
        envvar="PIPEPLAN_METRICS_HOST",
        show_envvar=False,
    ),
]
Traces = Annotated[bool, typer.Option("--traces", help="Make OpenTelemetry spans (needs opentelemetry-sdk).")]
OidcIssuer = Annotated[
    str | None,
    typer.Option(
        "--oidc-issuer",
        metavar="URL",
        envvar="PIPEPLAN_OIDC_ISSUER",
        show_envvar=False,
        help="Also take bearer tokens of this issuer.",
        rich_help_panel=_DOORS,
    ),
]
OidcAudience = Annotated[
    str,
    typer.Option(
        "--oidc-audience",
        metavar="NAME",
        envvar="PIPEPLAN_OIDC_AUDIENCE",
        show_envvar=False,
        help="Audience of those tokens.",
        rich_help_panel=_DOORS,
    ),
]
OidcJwks = Annotated[
    Path | None,
    typer.Option(
        "--oidc-jwks",
        metavar="FILE",
        envvar="PIPEPLAN_OIDC_JWKS",
        show_envvar=False,
        help="The issuer's public keys (JWKS).",
        rich_help_panel=_DOORS,
    ),
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
OverlapHours = Annotated[
    float,
    typer.Option("--overlap-hours", metavar="X", help="How long the old key is still good.", min=0, max=10_000),
]
BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.", show_default=False)]
Entries = Annotated[int, typer.Option("-n", "--entries", metavar="N", help="The latest so many.", min=1, max=100_000)]
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="The key's id, as `keys list` shows it.", show_default=False)]

"""What the commands that run a service accept, with their help texts."""

from pathlib import Path
from typing import Annotated, Literal

from api.cli.options.declare import argument, option

DATA = Path("pipeplan-data")
"""Where a service keeps its jobs unless told otherwise."""

_LIMITS = "Limits"
_DOORS = "Who may come in"

Host = Annotated[str, option("--host ADDRESS", "Address to listen on; all: 0.0.0.0.", envvar="PIPEPLAN_HOST")]
Port = Annotated[int, option("--port N", "Port to listen on.", envvar="PIPEPLAN_PORT", min=1, max=65535)]
Data = Annotated[Path, option("--data DIR", "Folder of the jobs.", envvar="PIPEPLAN_DATA")]
Workers = Annotated[int, option("--workers N", "Jobs solved at once.", envvar="PIPEPLAN_WORKERS", min=1, max=256)]
DatabaseUrl = Annotated[
    str | None,
    option("--database-url URL", "Keep jobs in PostgreSQL instead of SQLite.", envvar="PIPEPLAN_DATABASE_URL"),
]
Keys = Annotated[
    bool | None,
    option(
        "--keys/--no-keys", "Ask for API keys (left out: unless only this machine can reach the address).", panel=_DOORS
    ),
]
Threads = Annotated[
    int | None,
    option(
        "--threads N",
        "Threads of one solver process (left out: the usable cores, divided by the workers).",
        panel=_LIMITS,
        envvar="PIPEPLAN_THREADS",
        min=1,
    ),
]
MemoryGib = Annotated[
    float | None,
    option(
        "--memory-gib X",
        "Memory of one solver process (left out: 4, or less where the container has less).",
        panel=_LIMITS,
        envvar="PIPEPLAN_MEMORY_GIB",
        min=0.001,
    ),
]
MaxTimeLimit = Annotated[
    float,
    option(
        "--max-time-limit S",
        "Longest time limit of a job.",
        panel=_LIMITS,
        envvar="PIPEPLAN_MAX_TIME_LIMIT",
        min=0.001,
    ),
]
RetentionDays = Annotated[
    float,
    option(
        "--retention-days X",
        "Finished jobs are kept so long.",
        panel=_LIMITS,
        envvar="PIPEPLAN_RETENTION_DAYS",
        min=0.0,
    ),
]
ClientLimit = Annotated[
    list[str] | None,
    option(
        "--limit NAME=VALUE",
        "A limit, e.g. header_timeout_s=5 (docs/how-to/serve-a-team.md lists them); repeatable.",
        panel=_LIMITS,
    ),
]
WebhookHosts = Annotated[
    list[str] | None,
    option(
        "--webhook-host HOST",
        "A host that webhooks may speak to, e.g. hooks.example.com or *.example.com; repeatable.",
        panel=_DOORS,
        envvar="PIPEPLAN_WEBHOOK_HOSTS",
    ),
]
WaitForDatabase = Annotated[
    float,
    option(
        "--wait-for-database S",
        "Seconds to wait for a PostgreSQL server that starts later.",
        envvar="PIPEPLAN_WAIT_FOR_DATABASE",
        min=0,
        max=86400,
    ),
]
LogForm = Annotated[
    Literal["text", "json"],
    option(
        "--log-format FORM",
        "text: warnings only; json: every request, job and solve, one object a line.",
        envvar="PIPEPLAN_LOG_FORMAT",
    ),
]
MetricsPort = Annotated[
    int | None,
    option(
        "--metrics-port N", "Answer /metrics and /livez on this port.", envvar="PIPEPLAN_METRICS_PORT", min=0, max=65535
    ),
]
MetricsHost = Annotated[str, option("--metrics-host ADDRESS", "Address of that port.", envvar="PIPEPLAN_METRICS_HOST")]
Traces = Annotated[bool, option("--traces", "Make OpenTelemetry spans (needs opentelemetry-sdk).")]
OidcIssuer = Annotated[
    str | None,
    option("--oidc-issuer URL", "Also take bearer tokens of this issuer.", panel=_DOORS, envvar="PIPEPLAN_OIDC_ISSUER"),
]
OidcAudience = Annotated[
    str, option("--oidc-audience NAME", "Audience of those tokens.", panel=_DOORS, envvar="PIPEPLAN_OIDC_AUDIENCE")
]
OidcJwks = Annotated[
    Path | None,
    option("--oidc-jwks FILE", "The issuer's public keys (JWKS).", panel=_DOORS, envvar="PIPEPLAN_OIDC_JWKS"),
]
OpenApi = Annotated[bool, option("--openapi", "Print the OpenAPI document and end.")]

Tenant = Annotated[str, option("--tenant NAME", "Whose key it is.")]
KeyName = Annotated[str, option("--name TEXT", "What it is for.")]
Scopes = Annotated[
    list[str] | None, option("--scope SCOPE", "plans:read, plans:write or metrics; repeatable; left out: all.")
]
ExpiresDays = Annotated[float | None, option("--expires-days X", "Ends by itself after so long.")]
HourlyJobs = Annotated[int | None, option("--hourly-jobs N", "Jobs in an hour.", min=1)]
ConcurrentJobs = Annotated[int | None, option("--concurrent-jobs N", "Jobs queued or running.", min=1)]
OverlapHours = Annotated[float, option("--overlap-hours X", "How long the old key is still good.", min=0, max=10_000)]
BackupFile = Annotated[Path, argument("FILE", "The backup.")]
Entries = Annotated[int, option("-n --entries N", "The latest so many.", min=1, max=100_000)]
KeyId = Annotated[str, argument("KEY", "The key's id, as `keys list` shows it.")]

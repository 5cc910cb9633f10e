"""What the commands that run a service accept, with their help texts."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from api.cli.options.declare import argument, option

DATA = Path("pipeplan-data")
"""Where a service keeps its jobs unless told otherwise."""

limited = partial(option, panel="Limits")
guarded = partial(option, panel="Who may come in")

Data = Annotated[Path, option("--data DIR", "Folder of the jobs.", envvar="PIPEPLAN_DATA")]
Workers = Annotated[int, option("--workers N", "Jobs solved at once.", envvar="PIPEPLAN_WORKERS", min=1, max=256)]
DatabaseUrl = Annotated[
    str | None,
    option("--database-url URL", "Keep jobs in PostgreSQL instead of SQLite.", envvar="PIPEPLAN_DATABASE_URL"),
]
Threads = Annotated[
    int | None,
    limited(
        "--threads N",
        "Threads of one solver process (left out: the usable cores, divided by the workers).",
        envvar="PIPEPLAN_THREADS",
        min=1,
    ),
]
MemoryGib = Annotated[
    float | None,
    limited(
        "--memory-gib X",
        "Memory of one solver process (left out: 4, or less where the container has less).",
        envvar="PIPEPLAN_MEMORY_GIB",
        min=0.001,
    ),
]
MaxTimeLimit = Annotated[
    float, limited("--max-time-limit S", "Longest time limit of a job.", envvar="PIPEPLAN_MAX_TIME_LIMIT", min=0.001)
]
ClientLimit = Annotated[
    list[str] | None,
    limited(
        "--limit NAME=VALUE", "A limit, e.g. header_timeout_s=5 (docs/how-to/serve-a-team.md lists them); repeatable."
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

BackupFile = Annotated[Path, argument("FILE", "The backup.")]
KeyId = Annotated[str, argument("KEY", "The key's id, as `keys list` shows it.")]


class StorePlace(NamedTuple):
    """Where a service keeps what it keeps."""

    data: Data = DATA
    database_url: DatabaseUrl = None


class AddressOptions(NamedTuple):
    """Host and port of the service."""

    host: Annotated[str, option("--host ADDRESS", "Address to listen on; all: 0.0.0.0.", envvar="PIPEPLAN_HOST")] = (
        "127.0.0.1"
    )
    port: Annotated[int, option("--port N", "Port to listen on.", envvar="PIPEPLAN_PORT", min=1, max=65535)] = 8765


class AccessOptions(NamedTuple):
    """API keys, and the identity provider whose tokens count."""

    keys: Annotated[
        bool | None,
        guarded("--keys/--no-keys", "Ask for API keys (left out: unless only this machine can reach the address)."),
    ] = None
    oidc_issuer: Annotated[
        str | None,
        guarded("--oidc-issuer URL", "Also take bearer tokens of this issuer.", envvar="PIPEPLAN_OIDC_ISSUER"),
    ] = None
    oidc_audience: Annotated[
        str, guarded("--oidc-audience NAME", "Audience of those tokens.", envvar="PIPEPLAN_OIDC_AUDIENCE")
    ] = "pipeplan"
    oidc_jwks: Annotated[
        Path | None, guarded("--oidc-jwks FILE", "The issuer's public keys (JWKS).", envvar="PIPEPLAN_OIDC_JWKS")
    ] = None

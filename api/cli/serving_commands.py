"""`pipeplan serve`, `pipeplan worker` and `pipeplan keys`: what operates a service."""

import sys
from dataclasses import asdict
from typing import NamedTuple

import typer

from api.cli import arguments as arg
from api.cli import serving_arguments as serving
from api.cli.option_groups import takes_groups
from api.cli.output import report_summary
from api.failures import InputError

commands = typer.Typer()
keys = typer.Typer(no_args_is_help=True, help="Make, list and revoke the API keys of a service.")


class AddressOptions(NamedTuple):
    """Where a service listens."""

    host: serving.Host = "127.0.0.1"
    port: serving.Port = 8765


class StoreOptions(NamedTuple):
    """Where jobs are kept, and how many are solved at once."""

    data: serving.Data = serving.DATA
    workers: serving.Workers = 1
    threads: serving.Threads = None
    database_url: serving.DatabaseUrl = None
    wait_for_database: serving.WaitForDatabase = 60.0


class AccessOptions(NamedTuple):
    """Who may come in."""

    keys: serving.Keys = None
    oidc_issuer: serving.OidcIssuer = None
    oidc_audience: serving.OidcAudience = "pipeplan"
    oidc_jwks: serving.OidcJwks = None


class CeilingOptions(NamedTuple):
    """Limits of a service."""

    memory_gib: serving.MemoryGib = 4.0
    max_time_limit: serving.MaxTimeLimit = 3600.0
    retention_days: serving.RetentionDays = 30.0
    limit: serving.ClientLimit = None


class KeyOptions(NamedTuple):
    """What a new key may do."""

    tenant: serving.Tenant
    name: serving.KeyName = ""
    scope: serving.Scopes = None
    expires_days: serving.ExpiresDays = None
    hourly_jobs: serving.HourlyJobs = None
    concurrent_jobs: serving.ConcurrentJobs = None


@commands.command(
    "serve",
    epilog="Examples:\n\npipeplan serve\n\npipeplan serve --host 0.0.0.0 --data /var/lib/pipeplan --workers 4",
)
@takes_groups
def serve_command(
    *,
    address: AddressOptions,
    store: StoreOptions,
    access: AccessOptions,
    ceilings: CeilingOptions,
    traces: serving.Traces = False,
    openapi: serving.OpenApi = False,
) -> None:
    """Answer questions over HTTP: POST a profile, get a verified plan.

    Jobs are kept in SQLite in the data folder and solved by processes of this machine; with --database-url they are
    kept in PostgreSQL, and `pipeplan worker` solves them, here or on other machines. SIGTERM loses nothing.
    """
    from api import service_commands

    if openapi:
        print(service_commands.render_openapi(), end="")
        return
    switches = address._asdict() | store._asdict() | access._asdict() | ceilings._asdict() | {"traces": traces}
    settings = service_commands.make_settings(switches)
    print(f"pipeplan serves http://{address.host}:{address.port}", file=sys.stderr)
    service_commands.run_server(settings, host=address.host, port=address.port, wait_s=store.wait_for_database)


@commands.command(
    "worker", epilog="Example: pipeplan worker --database-url postgresql://pipeplan@db/pipeplan --workers 4"
)
def worker_command(
    *,
    database_url: serving.DatabaseUrl = None,
    workers: serving.Workers = 1,
    threads: serving.Threads = None,
    memory_gib: serving.MemoryGib = 4.0,
    data: serving.Data = serving.DATA,
    wait_for_database: serving.WaitForDatabase = 60.0,
) -> None:
    """Solve jobs that wait in PostgreSQL; any number of workers on any number of machines."""
    from api import service_commands

    store = StoreOptions(data=data, workers=workers, threads=threads, database_url=database_url)
    settings = service_commands.make_settings(store._asdict() | {"memory_gib": memory_gib})
    service_commands.run_worker(settings, wait_s=wait_for_database)


@keys.command("create", epilog="Example: pipeplan keys create --tenant research --scope plans:read")
@takes_groups
def create_key_command(
    *, wanted: KeyOptions, data: serving.Data = serving.DATA, database_url: serving.DatabaseUrl = None
) -> None:
    """Make an API key; it is shown once, and only its hash is kept."""
    from api import service_commands

    with service_commands.key_ring(data, database_url) as ring:
        key, text = service_commands.create_key(ring, wanted._asdict())
    print(text)
    print(f"key {key.id} of tenant {key.tenant}: {', '.join(key.scopes)}", file=sys.stderr)


@keys.command("list", epilog="Example: pipeplan keys list --json")
def list_keys_command(
    *, data: serving.Data = serving.DATA, database_url: serving.DatabaseUrl = None, json: arg.Json = False
) -> None:
    """List the API keys, without their secrets."""
    from api import service_commands

    with service_commands.key_ring(data, database_url) as ring:
        rows = [asdict(key) for key in ring.listed()]
    report_summary(rows, is_json=json)


@keys.command("revoke", epilog="Example: pipeplan keys revoke 0123456789ab")
def revoke_key_command(
    *, key_id: serving.KeyId, data: serving.Data = serving.DATA, database_url: serving.DatabaseUrl = None
) -> None:
    """End an API key at once."""
    from api import service_commands

    with service_commands.key_ring(data, database_url) as ring:
        if not ring.revoke(key_id):
            raise InputError(f"{key_id}: there is no such key that is not revoked yet; see pipeplan keys list")

"""`pipeplan serve`, `pipeplan worker` and `pipeplan keys`: what operates a service."""

import sys
from typing import Annotated, NamedTuple

from api.cli.options import arguments as arg
from api.cli.options import serving_arguments as serving
from api.cli.options.declare import option
from api.cli.options.folded_help import Commands
from api.cli.output import report_rows
from api.failures import InputError

commands = Commands()
stores = Commands(no_args_is_help=True, help="Back up and restore what a service keeps; read its audit log.")
keys = Commands(no_args_is_help=True, help="Make, list and revoke the API keys of a service.")


class _StoreOptions(NamedTuple):
    """Where jobs are kept, and how many are solved at once."""

    data: serving.Data = serving.DATA
    workers: serving.Workers = 1
    threads: serving.Threads = None
    scheduler: Annotated[
        str | None,
        option(
            "--scheduler ADDRESS", "A Dask scheduler whose workers do tasks of every job.", envvar="PIPEPLAN_SCHEDULER"
        ),
    ] = None
    database_url: serving.DatabaseUrl = None
    wait_for_database: serving.WaitForDatabase = 60.0


class _CeilingOptions(NamedTuple):
    """Limits of a service."""

    memory_gib: serving.MemoryGib = None
    max_time_limit: serving.MaxTimeLimit = 3600.0
    retention_days: Annotated[
        float,
        serving.limited(
            "--retention-days X", "Finished jobs are kept so long.", envvar="PIPEPLAN_RETENTION_DAYS", min=0.0
        ),
    ] = 30.0
    limit: serving.ClientLimit = None
    webhook_host: Annotated[
        list[str] | None,
        serving.guarded(
            "--webhook-host HOST",
            "A host that webhooks may speak to, e.g. hooks.example.com or *.example.com; repeatable.",
            envvar="PIPEPLAN_WEBHOOK_HOSTS",
        ),
    ] = None


class _KeyOptions(NamedTuple):
    """What a new key may do."""

    tenant: Annotated[str, option("--tenant NAME", "Whose key it is.")]
    name: Annotated[str, option("--name TEXT", "What it is for.")] = ""
    scope: Annotated[
        list[str] | None, option("--scope SCOPE", "plans:read, plans:write or metrics; repeatable; left out: all.")
    ] = None
    expires_days: Annotated[float | None, option("--expires-days X", "Ends by itself after so long.")] = None
    hourly_jobs: Annotated[int | None, option("--hourly-jobs N", "Jobs in an hour.", min=1)] = None
    concurrent_jobs: Annotated[int | None, option("--concurrent-jobs N", "Jobs queued or running.", min=1)] = None


@commands.command(
    "serve", epilog="Examples:\n\npipeplan serve\n\npipeplan serve --host 0.0.0.0 --data /var/lib/pipeplan --workers 4"
)
def serve_command(
    *,
    address: serving.AddressOptions,
    store: _StoreOptions,
    access: serving.AccessOptions,
    ceilings: _CeilingOptions,
    traces: Annotated[bool, option("--traces", "Make OpenTelemetry spans (needs opentelemetry-sdk).")] = False,
    log_format: serving.LogForm = "text",
    openapi: Annotated[bool, option("--openapi", "Print the OpenAPI document and end.")] = False,
) -> None:
    """Answer questions over HTTP: POST a profile, get a verified plan.

    Jobs are kept in SQLite in the data folder and solved by processes of this machine; with --database-url they are
    kept in PostgreSQL, and `pipeplan worker` solves them, here or on other machines. SIGTERM loses nothing.
    """
    from api import service_commands

    if openapi:
        from api.service.openapi import render_document

        print(render_document(), end="")
        return
    switches = address._asdict() | store._asdict() | access._asdict() | ceilings._asdict() | {"traces": traces}
    service_commands.begin_logs(log_format)
    settings = service_commands.make_settings(switches)
    print(f"pipeplan serves http://{address.host}:{address.port}", file=sys.stderr)
    service_commands.run_server(settings, host=address.host, port=address.port, wait_s=store.wait_for_database)


class _WorkerOptions(NamedTuple):
    """What a worker says about itself."""

    log_format: serving.LogForm = "text"
    metrics_port: Annotated[
        int | None,
        option(
            "--metrics-port N",
            "Answer /metrics and /livez on this port.",
            envvar="PIPEPLAN_METRICS_PORT",
            min=0,
            max=65535,
        ),
    ] = None
    metrics_host: Annotated[
        str, option("--metrics-host ADDRESS", "Address of that port.", envvar="PIPEPLAN_METRICS_HOST")
    ] = "127.0.0.1"


@commands.command(
    "worker", epilog="Example: pipeplan worker --database-url postgresql://pipeplan@db/pipeplan --workers 4"
)
def worker_command(*, store: _StoreOptions, memory_gib: serving.MemoryGib = None, says: _WorkerOptions) -> None:
    """Solve jobs that wait in PostgreSQL, on any number of machines."""
    from api import service_commands

    service_commands.begin_logs(says.log_format)
    settings = service_commands.make_settings(store._asdict() | {"memory_gib": memory_gib})
    address = None if says.metrics_port is None else (says.metrics_host, says.metrics_port)
    service_commands.run_worker(settings, wait_s=store.wait_for_database, metrics=address)


@keys.command("create", epilog="Example: pipeplan keys create --tenant research --scope plans:read")
def create_key_command(*, wanted: _KeyOptions, store: serving.StorePlace) -> None:
    """Make an API key; it is shown once, and only its hash is kept."""
    from api import service_commands

    with service_commands.key_ring(*store) as ring:
        key, text = ring.create(
            wanted.tenant,
            name=wanted.name,
            scopes=wanted.scope or None,
            expires_in_s=None if wanted.expires_days is None else wanted.expires_days * 24 * 3600.0,
            hourly_jobs=wanted.hourly_jobs,
            concurrent_jobs=wanted.concurrent_jobs,
        )
    print(text)
    print(f"key {key.id} of tenant {key.tenant}: {', '.join(key.scopes)}", file=sys.stderr)


@keys.command("list", epilog="Example: pipeplan keys list --json")
def list_keys_command(*, store: serving.StorePlace, json: arg.Json = False) -> None:
    """List the API keys, without their secrets."""
    from api import service_commands

    with service_commands.key_ring(*store) as ring:
        rows = service_commands.key_entries(ring)
    report_rows(rows if json else service_commands.key_rows(rows), is_json=json)


@keys.command("rotate", epilog="Example: pipeplan keys rotate 0123456789ab --overlap-hours 24")
def rotate_key_command(
    *,
    key_id: serving.KeyId,
    overlap_hours: Annotated[
        float, option("--overlap-hours X", "How long the old key is still good.", min=0, max=10_000)
    ] = 24.0,
    store: serving.StorePlace,
) -> None:
    """Replace a key: the new one has the same rights."""
    from api import service_commands

    with service_commands.key_ring(*store) as ring:
        key, text = ring.rotate(key_id, overlap_s=3600.0 * overlap_hours)
    print(text)
    print(f"key {key.id} of tenant {key.tenant}; {key_id} is good for {overlap_hours:g} h more", file=sys.stderr)


@keys.command("revoke", epilog="Example: pipeplan keys revoke 0123456789ab")
def revoke_key_command(*, key_id: serving.KeyId, store: serving.StorePlace) -> None:
    """End an API key at once."""
    from api import service_commands

    with service_commands.key_ring(*store) as ring:
        if not ring.revoke(key_id):
            raise InputError(f"{key_id}: there is no such key that is not revoked yet; see pipeplan keys list")


@stores.command("backup", epilog="Example: pipeplan store backup monday.gz")
def backup_command(*, file: serving.BackupFile, store: serving.StorePlace) -> None:
    """Write all that a service keeps into one file, while it works."""
    from api import service_commands

    counts = service_commands.back_up_store(file, **store._asdict())
    print(f"{file}: {counts['jobs']} plans, {counts['api_keys']} keys", file=sys.stderr)


@stores.command("restore", epilog="Example: pipeplan store restore monday.gz --data new-folder")
def restore_command(*, file: serving.BackupFile, store: serving.StorePlace) -> None:
    """Fill an empty store, of either engine, from a backup.

    Jobs that were running wait again.
    """
    from api import service_commands

    counts = service_commands.restore_store(file, **store._asdict())
    print(f"{counts['jobs']} plans and {counts['api_keys']} keys are back", file=sys.stderr)


@stores.command("audit", epilog="Example: pipeplan store audit --json")
def audit_command(
    *,
    entries: Annotated[int, option("-n --entries N", "The latest so many.", min=1, max=100_000)] = 100,
    store: serving.StorePlace,
    json: arg.Json = False,
) -> None:
    """Show who made keys, deleted plans, and took backups."""
    from api import service_commands

    with service_commands.opened(*store) as database:
        rows = service_commands.audit_entries(database, limit=entries, is_table=not json)
    report_rows(rows, is_json=json)

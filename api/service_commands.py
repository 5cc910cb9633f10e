"""What the commands that run a service do: settings from switches, keys, the server, the worker."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api.failures import InputError, as_input_errors
from api.jobs.job import DamagedError
from api.jobs.logs import VARIABLE, LogFormat, configure
from api.jobs.moments import moment
from api.jobs.request import Ceilings
from api.jobs.stores.database import FILE, await_server, open_database
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.sqlite import FolderLock
from api.jobs.stores.store import StoreFullError
from api.jobs.stores.transactions import Database
from api.jobs.workers.container import Shares, available_bytes, share_out
from api.jobs.workers.solver_handle import ProcessLimits
from api.service.audit import AuditLog, operator
from api.service.keys import KeyRing
from api.settings import ClientLimits, Oidc, Settings, is_loopback
from planner.progress import usable_cores

if TYPE_CHECKING:
    from fastapi import FastAPI

_PREFIX = "PIPEPLAN_LIMIT_"
"""Of environment variables that set limits."""

MOST = 2**50
"""No limit is larger."""

FIRST_KEY, FIRST_TENANT = "PIPEPLAN_FIRST_KEY", "PIPEPLAN_FIRST_TENANT"
"""Environment variables: the API key of a fresh installation, and whose it is."""

_INSPECTION_S = 10.0
"""How long a check or a drawing may take, unless it is set."""

_KEYS_WAIT_S = 5.0
"""So long the commands about keys wait for a database."""


def make_settings(switches: Mapping[str, Any]) -> Settings:
    """The settings that the switches of `serve` or `worker` ask for."""
    shares, workers, threads = _share_out(switches), switches["workers"], switches["threads"]
    limits = read_limits(switches.get("limit") or (), os.environ)
    ceilings = {"max_time_limit_s": switches.get("max_time_limit", 3600.0)} | _those_of(Ceilings, limits)
    return Settings(
        data=switches["data"],
        database_url=switches["database_url"],
        num_workers=workers,
        needs_keys=_needs_keys(switches),
        retention_s=24 * 3600.0 * switches.get("retention_days", 30.0),
        traces=switches.get("traces", False),
        ceilings=Ceilings(**ceilings),
        traffic=ClientLimits(**_those_of(ClientLimits, limits)),
        inspection_s=limits.get("inspection_s", _INSPECTION_S),
        process=ProcessLimits(
            memory_bytes=shares.solver_bytes,
            num_threads=threads or max(1, usable_cores() // max(1, workers)),
            scheduler=switches.get("scheduler"),
        ),
        helper=ProcessLimits(memory_bytes=shares.helper_bytes, num_threads=1),
        num_helpers=shares.num_helpers,
        oidc=_oidc(switches),
        webhook_hosts=tuple(switches.get("webhook_host") or ()),
        first_key=os.environ.get(FIRST_KEY) or None,
        first_tenant=os.environ.get(FIRST_TENANT) or "default",
    )


def _share_out(switches: Mapping[str, Any]) -> Shares:
    """The memory of this machine or container; solvers run here unless jobs are kept in PostgreSQL."""
    asked, is_serving = switches["memory_gib"], "host" in switches
    solves_elsewhere = is_serving and switches["database_url"] is not None
    try:
        return share_out(
            available_bytes(),
            asked_bytes=None if asked is None else int(asked * 2**30),
            num_solvers=0 if solves_elsewhere else switches["workers"],
            num_helpers=usable_cores() + 1 if is_serving else 0,
        )
    except ValueError as error:
        raise InputError(f"--memory-gib: {error}") from None


def _those_of(kind: type, limits: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: limits[field.name] for field in fields(kind) if field.name in limits}


def read_limits(limits: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Limits by name: `PIPEPLAN_LIMIT_NAME` of the environment, and over it NAME=VALUE of the command line."""
    known: dict[str, Any] = {field.name: field.default for kind in (ClientLimits, Ceilings) for field in fields(kind)}
    known["inspection_s"] = _INSPECTION_S
    asked = {
        variable.removeprefix(_PREFIX).lower(): (variable, value)
        for variable, value in environment.items()
        if variable.startswith(_PREFIX)
    }
    for limit in limits:
        name, _, value = limit.partition("=")
        asked[name] = (f"--limit {limit[:80]}", value)
    values: dict[str, Any] = {}
    for name, (source, value) in asked.items():
        if name not in known:
            raise InputError(f"{source}: there is no limit {name[:40]!r}; choose from {', '.join(known)}")
        kind = int if isinstance(known[name], int) else float
        try:
            values[name] = kind(value)
        except ValueError:
            values[name] = 0
        if not 0 < values[name] <= MOST:
            what = "a whole number" if kind is int else "a number"
            raise InputError(f"{source}: {value[:40]!r} is not allowed; give {what} above 0, e.g. {name}=10")
    return values


def _needs_keys(switches: Mapping[str, Any]) -> bool:
    """As asked for; else wherever others can reach the address."""
    keys: bool | None = switches.get("keys")
    return not is_loopback(switches.get("host", "127.0.0.1")) if keys is None else keys


def _oidc(switches: Mapping[str, Any]) -> Oidc | None:
    issuer, keys = switches.get("oidc_issuer"), switches.get("oidc_jwks")
    if issuer is None and keys is None:
        return None
    if issuer is None or keys is None or not keys.is_file():
        raise InputError(
            "--oidc-issuer and --oidc-jwks belong together; give the issuer and a file with its public keys"
        )
    from api.service.auth import read_key_set

    with as_input_errors():
        read_key_set(keys)
    return Oidc(issuer=issuer, audience=switches["oidc_audience"], jwks_file=keys)


def run_server(
    settings: Settings, *, host: str, port: int, wait_s: float, make: Callable[[Settings], "FastAPI"] | None = None
) -> None:
    """Serve until a signal ends it; `wait_s`: for a database that is not there yet; `make`: another application."""
    from api.service.app import make_app
    from api.service.serving import make_server

    if settings.database_url is not None:
        _await(settings.database_url, wait_s)
    with as_input_errors():
        server = make_server(settings, host=host, port=port, make=make or make_app)
    server.run()


def begin_logs(form: LogFormat) -> None:
    """Log in this form from now on; solver processes do the same."""
    os.environ[VARIABLE] = form
    configure(form)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _await(url: str, wait_s: float) -> None:
    with as_input_errors():
        await_server(url, wait_s=wait_s, tell=_say)


def run_worker(settings: Settings, *, wait_s: float, metrics: tuple[str, int] | None = None) -> None:
    """Work until a signal ends it; `wait_s`: for a database that is not there yet; `metrics`: host and port."""
    if settings.database_url is None:
        raise InputError(
            "--database-url is missing; give it, or none of both: with SQLite the service itself solves jobs"
        )
    from api.jobs.workers.postgres_worker import work

    _await(settings.database_url, wait_s)
    with as_input_errors():
        work(settings, metrics_address=metrics)


@contextmanager
def key_ring(data: Path, database_url: str | None) -> Iterator[KeyRing]:
    """The keys of a store, which is made if there is none yet."""
    with opened(data, database_url) as database:
        yield KeyRing(database)


@contextmanager
def opened(data: Path, database_url: str | None) -> Iterator[Database]:
    """A store's database, up to date, made if there is none yet; raises InputError for what is no store."""
    if database_url is not None:
        _await(database_url, _KEYS_WAIT_S)
    with as_input_errors():
        database = open_database(data, database_url)
    try:
        with as_input_errors():
            SqlStore(database)
            yield database
    except DamagedError as error:
        raise InputError(f"{error} is damaged; restore a backup into another --data") from None
    except StoreFullError:
        raise InputError("the disk of the store is full; make room on it, or revoke keys and delete plans") from None
    finally:
        database.close_all()


def back_up_store(file: Path, *, data: Path, database_url: str | None) -> dict[str, int]:
    """Rows by table of the backup that was written."""
    from api.jobs.stores.backup import back_up

    if database_url is None and not (data / FILE).exists():
        raise InputError(f"{data / FILE}: there is no store; give its folder with --data")
    with opened(data, database_url) as database:
        try:
            counts = back_up(database, file)
        except OSError as error:
            raise InputError(str(error)) from None
        AuditLog(database).add(actor=operator(), action="store.backed_up", subject=file.name)
    return counts


def restore_store(file: Path, *, data: Path, database_url: str | None) -> dict[str, int]:
    """Rows by table of the backup that was put into an empty store; no service may work on it meanwhile."""
    from api.jobs.stores.backup import restore

    if not file.is_file():
        raise InputError(f"{file}: there is no such file; give the name of a backup")
    with opened(data, database_url) as database:
        lock = None if database_url is not None else FolderLock(data)
        try:
            counts = restore(database, file)
            AuditLog(database).add(actor=operator(), action="store.restored", subject=file.name)
        finally:
            if lock is not None:
                lock.close()
    return counts


def audit_entries(database: Database, *, limit: int, is_table: bool) -> list[dict[str, Any]]:
    """The latest entries of the audit log, for programs or as a table that people read."""
    shown = _to_the_second if is_table else str
    return [asdict(entry) | {"at": shown(str(moment(entry.at)))} for entry in AuditLog(database).listed(limit=limit)]


def key_entries(ring: KeyRing) -> list[dict[str, Any]]:
    """Every key without its secret, for programs: whatever ends in `_at` is a time."""
    rows = [asdict(key) for key in ring.listed()]
    return [{name: moment(value) if name.endswith("_at") else value for name, value in row.items()} for row in rows]


def key_rows(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The entries as a table that people read, without columns in which nothing stands."""
    times = {"created": "created_at", "expires": "expires_at", "revoked": "revoked_at", "last used": "last_used_at"}
    limits = {"jobs an hour": "hourly_jobs", "jobs at once": "concurrent_jobs"}
    rows = [
        {name: entry[name] for name in ("id", "tenant", "name")}
        | {"scopes": " ".join(entry["scopes"])}
        | {head: entry[name] and _to_the_second(entry[name]) for head, name in times.items()}
        | {head: entry[name] for head, name in limits.items()}
        for entry in entries
    ]
    stated = {head for row in rows for head, value in row.items() if value not in (None, "")}
    return [{head: value for head, value in row.items() if head in stated} for row in rows]


def _to_the_second(text: str) -> str:
    """A moment with a blank, at which a narrow table breaks it."""
    return re.sub(r"T([\d:]+)\.\d+\+00:00", r" \1Z", text)

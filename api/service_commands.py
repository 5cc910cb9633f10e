"""What the commands that run a service do: settings from switches, keys, the server, the worker."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from api.failures import InputError
from api.jobs.process import ProcessLimits
from api.jobs.request import Ceilings
from api.jobs.sql_store import SqlStore
from api.service.keys import SCOPES, ApiKey, KeyRing
from api.service.settings import Oidc, Settings, is_loopback
from planner.progress import usable_cores


def make_settings(switches: Mapping[str, Any]) -> Settings:
    """The settings that the switches of `serve` or `worker` ask for."""
    if switches["memory_gib"] <= 0:
        raise InputError(f"--memory-gib {switches['memory_gib']}: give GiB above 0")
    workers, threads = switches["workers"], switches["threads"]
    return Settings(
        data=switches["data"],
        database_url=switches["database_url"],
        num_workers=workers,
        needs_keys=_needs_keys(switches),
        retention_s=24 * 3600.0 * switches.get("retention_days", 30.0),
        traces=switches.get("traces", False),
        ceilings=Ceilings(max_time_limit_s=switches.get("max_time_limit", 3600.0)),
        process=ProcessLimits(
            memory_bytes=int(switches["memory_gib"] * 2**30),
            num_threads=threads or max(1, usable_cores() // max(1, workers)),
        ),
        oidc=_oidc(switches),
    )


def _needs_keys(switches: Mapping[str, Any]) -> bool:
    """As asked for; else wherever others can reach the address."""
    keys: bool | None = switches.get("keys")
    return not is_loopback(switches.get("host", "127.0.0.1")) if keys is None else keys


def _oidc(switches: Mapping[str, Any]) -> Oidc | None:
    issuer, keys = switches.get("oidc_issuer"), switches.get("oidc_jwks")
    if issuer is None and keys is None:
        return None
    if issuer is None or keys is None or not keys.is_file():
        raise InputError("--oidc-issuer and --oidc-jwks go together; give the issuer and a file with its public keys")
    return Oidc(issuer=issuer, audience=switches["oidc_audience"], jwks_file=keys)


def run_server(settings: Settings, *, host: str, port: int) -> None:
    """Serve until a signal ends it."""
    from api.service.serving import make_server

    try:
        server = make_server(settings, host=host, port=port)
    except ValueError as error:
        raise InputError(str(error)) from None
    server.run()


def run_worker(settings: Settings) -> None:
    """Work until a signal ends it."""
    if settings.database_url is None:
        raise InputError("--database-url is missing; with SQLite the service itself works")
    from api.jobs.postgres_worker import work

    work(settings)


def render_openapi() -> str:
    """The interface, as `docs/openapi.json` states it."""
    from api.service.openapi import render_document

    return render_document()


@contextmanager
def key_ring(data: Path, database_url: str | None) -> Iterator[KeyRing]:
    """The keys of a store, which is made if there is none yet."""
    from api.service.core import open_database

    database = open_database(Settings(data=data, database_url=database_url))
    try:
        SqlStore(database)
        yield KeyRing(database)
    finally:
        database.close_all()


def create_key(keys: KeyRing, switches: Mapping[str, Any]) -> tuple[ApiKey, str]:
    """A key as the switches of `keys create` ask for it, and its text."""
    days = switches["expires_days"]
    try:
        return keys.create(
            switches["tenant"],
            name=switches["name"],
            scopes=switches["scope"] or SCOPES,
            expires_in_s=None if days is None else days * 24 * 3600.0,
            hourly_jobs=switches["hourly_jobs"],
            concurrent_jobs=switches["concurrent_jobs"],
        )
    except ValueError as error:
        raise InputError(str(error)) from None

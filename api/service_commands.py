"""What the commands that run a service do: settings from switches, keys, the server, the worker."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from api.failures import InputError
from api.jobs.database import await_server, open_database
from api.jobs.process import ProcessLimits
from api.jobs.request import Ceilings
from api.jobs.sql_store import SqlStore
from api.service.keys import SCOPES, ApiKey, KeyRing
from api.service.settings import ClientLimits, Oidc, Settings, is_loopback
from planner.progress import usable_cores

PREFIX = "PIPEPLAN_LIMIT_"
"""Of environment variables that set limits of clients."""

MOST = 2**50
"""No limit is larger."""

KEYS_WAIT_S = 5.0
"""So long the commands about keys wait for a database."""


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
        traffic=make_traffic(switches.get("limit") or (), os.environ),
        process=ProcessLimits(
            memory_bytes=int(switches["memory_gib"] * 2**30),
            num_threads=threads or max(1, usable_cores() // max(1, workers)),
        ),
        oidc=_oidc(switches),
    )


def make_traffic(limits: Sequence[str], environment: Mapping[str, str]) -> ClientLimits:
    """The limits of clients: `PIPEPLAN_LIMIT_NAME` of the environment, and over it NAME=VALUE of the command line."""
    known = {field.name: field for field in fields(ClientLimits)}
    asked = {
        variable.removeprefix(PREFIX).lower(): (variable, value)
        for variable, value in environment.items()
        if variable.startswith(PREFIX)
    }
    for limit in limits:
        name, _, value = limit.partition("=")
        asked[name] = (f"--limit {limit[:80]}", value)
    values: dict[str, Any] = {}
    for name, (source, value) in asked.items():
        if name not in known:
            raise InputError(f"{source}: there is no limit {name[:40]!r}; choose from {', '.join(known)}")
        kind = int if isinstance(known[name].default, int) else float
        try:
            values[name] = kind(value)
        except ValueError:
            values[name] = 0
        if not 0 < values[name] <= MOST:
            what = "a whole number" if kind is int else "a number"
            raise InputError(f"{source}: {value[:40]!r} will not do; give {what} above 0, e.g. {name}=10")
    return ClientLimits(**values)


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


def run_server(settings: Settings, *, host: str, port: int, wait_s: float) -> None:
    """Serve until a signal ends it; `wait_s`: for a database that is not there yet."""
    from api.service.serving import make_server

    if settings.database_url is not None:
        _await(settings.database_url, wait_s)
    try:
        server = make_server(settings, host=host, port=port)
    except ValueError as error:
        raise InputError(str(error)) from None
    server.run()


def _say(words: str) -> None:
    sys.stderr.write(words + "\n")
    sys.stderr.flush()


def _await(url: str, wait_s: float) -> None:
    try:
        await_server(url, wait_s=wait_s, tell=_say)
    except ValueError as error:
        raise InputError(str(error)) from None


def run_worker(settings: Settings, *, wait_s: float) -> None:
    """Work until a signal ends it; `wait_s`: for a database that is not there yet."""
    if settings.database_url is None:
        raise InputError("--database-url is missing; with SQLite the service itself works")
    from api.jobs.postgres_worker import work

    _await(settings.database_url, wait_s)
    work(settings)


def render_openapi() -> str:
    """The interface, as `docs/openapi.json` states it."""
    from api.service.openapi import render_document

    return render_document()


@contextmanager
def key_ring(data: Path, database_url: str | None) -> Iterator[KeyRing]:
    """The keys of a store, which is made if there is none yet."""
    if database_url is not None:
        _await(database_url, KEYS_WAIT_S)
    try:
        database = open_database(data, database_url)
    except ValueError as error:
        raise InputError(str(error)) from None
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

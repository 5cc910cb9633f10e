"""The server around the application: refuses an open bind without keys, and drains at SIGTERM before it closes."""

import signal
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from api.jobs.stores.database import open_database
from api.service.app import make_app
from api.service.core import Service
from api.service.http.listener import make_protocol
from api.service.keys import KeyRing
from api.settings import Settings, is_loopback

GRACE_S = 20
"""Seconds from SIGTERM to the end."""


class Server(uvicorn.Server):
    """Tells the service about the end as soon as the signal comes, not when the last connection is gone."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins to drain; a second interrupt ends at once. The exit code is 0 either way."""
        del frame
        self._service.begin_drain()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def require_safe(settings: Settings, host: str) -> None:
    """Raise ValueError for a bind that others could reach without a key, or that nobody could use."""
    if not settings.needs_keys and not is_loopback(host):
        raise ValueError(f"--host {host}: other machines could reach this service, so it needs keys; add --keys")
    if not settings.needs_keys or (is_loopback(host) and not settings.first_key):
        return
    if settings.oidc is not None and not settings.first_key:
        return
    database = open_database(settings.data, settings.database_url)
    try:
        from api.jobs.stores.sql_store import SqlStore

        SqlStore(database)
        ring = KeyRing(database)
        if settings.first_key:
            ring.adopt(settings.first_key, tenant=settings.first_tenant)
        if not ring.has_any():
            raise ValueError(
                f"--host {host}: there are no API keys; make one first: pipeplan keys create --tenant NAME, or give "
                "the first one as PIPEPLAN_FIRST_KEY"
            )
    finally:
        database.close_all()


def make_server(settings: Settings, *, host: str, port: int, make: Callable[[Settings], FastAPI] = make_app) -> Server:
    """A server of the application that `make` makes, ready to run; raises ValueError as `require_safe` does."""
    require_safe(settings, host)
    app = make(settings)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,  # its warnings go where ours go
        log_level="warning",
        access_log=False,
        server_header=False,
        http=make_protocol(settings.traffic),
        ws="none",
        h11_max_incomplete_event_size=32 * 1024,
        backlog=4096,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=5,
        lifespan="on",
    )
    return Server(config, app.state.service)

"""Services in threads of the test process, on ports of the loopback interface."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from api.client import Client
from api.jobs.workers.runner import Patience
from api.service import core
from api.service.app import make_app
from api.service.core import Service
from api.service.keys import SCOPES
from api.service.serving import Server, make_server
from api.settings import ClientLimits, Settings
from tests.free_ports import free_port
from tests.long_runs import shortened

core.TOY_LIMITS = replace(core.TOY_LIMITS, max_rounds=shortened(0, whole=1))
"""A service of the tests is ready without a round of search: dozens start, and forks have loaded the kernels."""

PATIENCE = Patience(lease_s=20.0, look_s=0.1, report_s=0.1, drain_s=20.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A service that listens."""

    url: str
    port: int
    service: Service
    server: Server
    thread: threading.Thread
    """In which the event loop runs."""

    def client(self, key: str | None = None) -> Client:
        return Client(self.url, key=key, num_tries=2)

    def key(self, tenant: str, **more: Any) -> str:
        """A new key of the tenant."""
        return self.service.keys.create(tenant, **{"scopes": SCOPES, **more})[1]

    def worked_s(self) -> float:
        """Processor time that requests have cost so far: the event loop, its threads, the processes of the checks."""
        service = self.service
        threads = [self.thread, *service.threads._threads, *service.inspector._threads._threads]
        clocks = [time.pthread_getcpuclockid(thread.ident) for thread in threads if thread.ident is not None]
        return sum(map(time.clock_gettime, clocks)) + sum(map(process_s, service.inspector.pids))


def process_s(pid: int | None) -> float:
    """Processor time of a process that may be gone."""
    try:
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0.0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def serving(folder: Path, *, make: Callable[[Settings], FastAPI] = make_app, **changes: Any) -> Iterator[Running]:
    """A service for as long as the context lasts."""
    values: dict[str, Any] = {"needs_keys": False, "patience": PATIENCE, "traffic": ClientLimits(), **changes}
    port = free_port()
    server = make_server(Settings(data=folder, **values), host="127.0.0.1", port=port, make=make)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < until, "the server does not start"
        time.sleep(0.02)
    try:
        yield Running(url=f"http://127.0.0.1:{port}", port=port, service=server._service, server=server, thread=thread)
    finally:
        server._service.begin_drain()
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def wait_ready(running: Running) -> None:
    """Until the toy plan is solved."""
    until = time.monotonic() + 180
    while not running.service.is_ready:
        assert time.monotonic() < until, "not ready"
        time.sleep(0.05)


def fill(folder: Path, name: str) -> Path:
    """A file that takes all the room that is left."""
    file = folder / name
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as filler:
        while True:
            filler.write(b"\0" * 512)
    return file

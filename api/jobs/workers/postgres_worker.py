"""`pipeplan worker`: takes procrastinate's tickets and solves the jobs whose turn it is, until a signal ends it."""

import asyncio
import contextlib
import logging
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue

import procrastinate
from prometheus_client import start_http_server

from api.jobs.job_metrics import JobMetrics
from api.jobs.stores.postgres import QUEUE, TASK, PostgresDatabase, prepare
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.store import OPENING_S, STORE_FAILURES, persistently
from api.jobs.workers.pool import make_worker_name
from api.jobs.workers.runner import JobRunner, Patience
from api.jobs.workers.solver_handle import Child, ProcessLimits
from api.jobs.workers.worker_registry import BEAT_S, WorkerRegistry
from api.settings import Settings

logger = logging.getLogger(__name__)

LOOK_AROUND = "* * * * * */20"
"""When tickets that got lost are put up again: every twenty seconds."""

_AWAY: tuple[type[Exception], ...] = (
    *STORE_FAILURES,
    procrastinate.exceptions.ConnectorException,
    TimeoutError,
)
"""What is raised while the database is away."""

_RECONNECT_S = 1.0
"""How long to wait for a database that went away."""

_SILENT_S = 5.0
"""Who opens the port of the metrics and asks for nothing keeps a thread so long."""


class _TicketWorker:
    """One worker process: so many solver processes, one queue."""

    def __init__(self, url: str, *, num_workers: int, limits: ProcessLimits, patience: Patience) -> None:
        self.store = SqlStore(PostgresDatabase(url))
        self.patience, self.num_workers, self._url = patience, num_workers, url
        self._stalled_s = patience.lease_s
        """A ticket whose worker's heart has not beaten for so long is taken from it, as a job is."""
        self.metrics = JobMetrics()
        self._registry, self._name = WorkerRegistry(self.store.database), make_worker_name()
        self._draining, self._over = threading.Event(), threading.Event()
        self._children = [Child(limits) for _ in range(num_workers)]
        self._runners: SimpleQueue[JobRunner] = SimpleQueue()
        runner_of = partial(
            JobRunner, self.store, patience=patience, is_draining=self._draining.is_set, metrics=self.metrics
        )
        for child in self._children:
            self._runners.put(runner_of(child))
        self.app = self._make_app()

    def _make_app(self) -> procrastinate.App:
        """The queue, with its tasks; a connection that broke for good needs a new one."""
        app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(conninfo=self._url, min_size=1, max_size=self.num_workers + 3)
        )

        @app.task(name=TASK, queue=QUEUE)
        async def solve_next() -> None:
            await asyncio.to_thread(self.solve_next)

        @app.periodic(cron=LOOK_AROUND)
        @app.task(name="pipeplan.look_around", queue=QUEUE, queueing_lock="look_around", pass_context=False)
        async def look_around(timestamp: int) -> None:
            del timestamp
            await self.look_around()

        return app

    def solve_next(self) -> None:
        """Claim the job whose turn it is and bring it to its end; a ticket without any is spent."""
        if self._draining.is_set():
            return
        runner = self._runners.get()
        try:
            runner.run_next(make_worker_name())
        except BaseException:
            runner.child.kill()
            raise
        finally:
            self._runners.put(runner)

    async def look_around(self) -> None:
        """Take tickets from dead workers, put lost jobs back, and see that no waiting job is without a ticket."""
        manager = self.app.job_manager
        await manager.prune_stalled_workers(self._stalled_s)
        for job in await manager.get_stalled_jobs(seconds_since_heartbeat=self._stalled_s):
            await manager.retry_job(job)
        num_waiting = await asyncio.to_thread(self._count_waiting)
        tickets = await manager.list_jobs_async(queue=QUEUE, task=TASK, status="todo")
        for _ in range(num_waiting - len(list(tickets))):
            await self.app.configure_task(TASK, queue=QUEUE).defer_async()

    def _count_waiting(self) -> int:
        self.store.put_back()
        return self.store.count_states().get("queued", 0)

    async def run(self) -> None:
        """Work until `drain`; a database that went away is waited for."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(self.num_workers + 2))  # one more ticket waits; one looks around
        heart = threading.Thread(target=self._beat, name="heart", daemon=True)
        heart.start()
        try:
            while not self._draining.is_set():
                try:
                    await self._run_once()
                except _AWAY:
                    logger.warning("the database went away; trying again", exc_info=True)
                    await asyncio.sleep(_RECONNECT_S)
        finally:
            self._over.set()
            heart.join()
            with contextlib.suppress(*STORE_FAILURES):  # its silence says the same, later
                await asyncio.to_thread(self._registry.leave, self._name)

    def _beat(self) -> None:
        """Say again and again that this worker lives; a store that is away is told later."""
        while not self._over.is_set():
            try:
                self._registry.beat(self._name, num_slots=self.num_workers)
            except STORE_FAILURES as error:
                logger.warning("the store did not hear that this worker lives: %r", error)
            self._over.wait(BEAT_S)

    async def _run_once(self) -> None:
        self.app = self._make_app()
        async with self.app.open_async():
            await self.look_around()
            worker = asyncio.create_task(
                self.app.run_worker_async(
                    queues=[QUEUE],
                    concurrency=self.num_workers + 1,
                    install_signal_handlers=False,
                    wait=True,
                    delete_jobs="successful",
                    update_heartbeat_interval=self._stalled_s / 6,
                    stalled_worker_timeout=self._stalled_s,
                    shutdown_graceful_timeout=self.patience.drain_s + 5.0,
                )
            )
            while not self._draining.is_set() and not worker.done():
                await asyncio.sleep(0.1)
            if not worker.done():
                worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await worker
            with contextlib.suppress(Exception):
                await self.look_around()  # what this worker gave back needs a ticket again

    def drain(self) -> None:
        """Claim nothing more, ask the solvers to stop, and end."""
        self._draining.set()

    def close(self) -> None:
        """End the solver processes."""
        for child in self._children:
            child.kill()
        self.store.close_all()


def _make_worker(settings: Settings) -> _TicketWorker:
    assert settings.database_url is not None
    prepare(settings.database_url)
    return _TicketWorker(
        settings.database_url, num_workers=settings.num_workers, limits=settings.process, patience=settings.patience
    )


def work(settings: Settings, *, metrics_address: tuple[str, int] | None = None) -> None:
    """Work until SIGTERM or SIGINT; at `metrics_address`, host and port, the metrics are told."""
    worker = persistently(lambda: _make_worker(settings), seconds=OPENING_S)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.drain())
    if metrics_address is not None:
        host, port = metrics_address
        try:
            server, _ = start_http_server(port, host, registry=worker.metrics.registry)  # ends with the process
        except OSError as error:
            raise ValueError(f"--metrics-port {port}: {error.strerror}; give one that is free") from None
        server.RequestHandlerClass.timeout = _SILENT_S  # type: ignore[attr-defined]
        server.handle_error = lambda *_: logger.warning("a look at the metrics failed", exc_info=True)  # type: ignore
    try:
        asyncio.run(worker.run())
    finally:
        worker.close()

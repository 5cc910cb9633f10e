"""The service itself, without its doors: store, engine, inspector, hub, gate and what they share."""

import asyncio
import contextlib
import logging
from asyncio import to_thread
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from api.doctor import make_toy_problem
from api.jobs.job import DamagedError
from api.jobs.request import PlanRequest
from api.jobs.stores.database import open_database
from api.jobs.stores.sql_store import SqlStore, freeing
from api.jobs.stores.sqlite import FolderLock
from api.jobs.stores.store import OPENING_S, STORE_FAILURES, persistently
from api.jobs.workers.pool import Pool
from api.jobs.workers.worker_registry import Strength, WorkerRegistry
from api.service.artifact_cache import Gallery
from api.service.audit import AuditLog
from api.service.auth import Gate
from api.service.fair_queue import FairQueue
from api.service.http.problem_json import ServiceError
from api.service.http.request_body import OpenRequests
from api.service.inspector import Inspector
from api.service.keys import KeyRing
from api.service.metrics import Metrics
from api.service.notifier import Hub
from api.service.streams import OpenStreams
from api.service.webhooks import Webhooks, WebhookSender
from api.settings import Settings
from planner.progress import Limits

if TYPE_CHECKING:
    from api.jobs.stores.postgres import PostgresEngine

logger = logging.getLogger(__name__)

HOUSEKEEPING_S = 60.0
"""How often old jobs are removed and lost ones are put back."""

_THREADS = 16
"""Calls of the store and other things that block, at once."""

_READY_S = 120.0
"""How long the toy plan may take when the service starts: kernels may have to be compiled."""

TOY_LIMITS = Limits(time_limit_s=20.0, max_rounds=1)
"""Of that plan: a round of search loads what every search needs."""


OWN = ""
"""No tenant: the service's own checks."""


class Service:
    """Everything that lives as long as the process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = open_database(settings.data, settings.database_url)
        self._lock = None if settings.database_url else FolderLock(settings.data)
        self.store = persistently(lambda: SqlStore(self.database), seconds=OPENING_S if settings.database_url else 0.0)
        self.keys = KeyRing(self.database)
        self.gate = Gate(settings, self.keys)
        self.audit = AuditLog(self.database)
        self.webhooks = Webhooks(self.database, hosts=settings.webhook_hosts)
        self._webhook_sender = WebhookSender(self.webhooks)
        self.metrics = Metrics()
        self.registry = WorkerRegistry(self.database)
        self.inspector = Inspector(
            settings.helper,
            num_processes=settings.num_helpers,
            seconds=settings.inspection_s,
            queue=FairQueue(
                num_slots=settings.num_helpers,
                most=settings.traffic.inspections,
                most_of_tenant=min(settings.traffic.tenant_inspections, settings.traffic.inspections),
            ),
        )
        self.engine = self._make_engine()
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="service")
        """Of everything that blocks; those of `asyncio.to_thread` while the service lives."""
        self.gallery = Gallery(self.store)
        self.open_requests = OpenRequests(settings.traffic)
        self.hub = Hub(self.store.versions)
        self.streams = OpenStreams(settings.traffic, self.keys, hub=self.hub)
        self.is_draining = False
        self.is_ready = False

    def _make_engine(self) -> "Pool | PostgresEngine":
        settings = self.settings
        if settings.database_url is not None:
            from api.jobs.stores.postgres import PostgresDatabase, PostgresEngine

            assert isinstance(self.database, PostgresDatabase)
            return PostgresEngine(self.database)
        return Pool(self.store, num_workers=settings.num_workers, limits=settings.process, patience=settings.patience)

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """From the first claim to the last word."""
        asyncio.get_running_loop().set_default_executor(self.threads)
        if self.settings.database_url is None:
            freeing(self.database, lambda: self.store.put_back(all_running=True))
        with contextlib.suppress(OSError, *STORE_FAILURES):
            self.database.keep_reserve()
        self.engine.start()
        if self.webhooks.is_on:
            self._webhook_sender.start()
        with contextlib.suppress(*STORE_FAILURES):
            await to_thread(self.database.connections.warm_up, _THREADS)  # the first requests find them open
        lasting = (self.hub.run(), self.streams.run(), self._get_ready(), self._keep_house())
        tasks = [asyncio.create_task(work) for work in lasting]
        try:
            yield
        finally:
            self.begin_drain()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await to_thread(self._end_work)
            self.close()

    def begin_drain(self) -> None:
        """Not ready any more; nothing more is claimed; solvers are asked to stop; streams end."""
        self.is_draining = True
        self.is_ready = False
        self.engine.drain()
        self.hub.close()

    def _end_work(self) -> None:
        """Wait for the workers and for what they say."""
        self.engine.close()
        self._webhook_sender.stop()
        self.inspector.close()

    def close(self) -> None:
        """Wait for calls under way, then release everything."""
        self.threads.shutdown(wait=True, cancel_futures=True)
        self.store.close_all()
        if self._lock is not None:
            self._lock.close()

    async def _get_ready(self) -> None:
        """Ready is a service that solves and verifies a toy plan."""
        request = PlanRequest(problem=make_toy_problem(), limits=TOY_LIMITS)
        while not self.is_draining:
            try:
                order = {"op": "solve", "request": request.render(), "start": None}
                solved = await self.inspector.ask(OWN, order.copy, seconds=_READY_S)
                check = {"what": "verdict", "plan": solved["plan"]}
                judged = await self.inspector.ask(OWN, check.copy)
                self.is_ready = bool(judged["verdict"]["passed"])
            except ServiceError:
                logger.warning("the toy plan failed; trying again", exc_info=True)
            if self.is_ready:
                return
            await asyncio.sleep(5.0)

    async def _keep_house(self) -> None:
        keep_s, should_stop = self.settings.retention_s, lambda: self.is_draining
        expire = partial(self.store.expire, older_than_s=keep_s, should_stop=should_stop)
        expire_audit = partial(freeing, self.database, self.audit.expire)
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            for work in (expire, self.store.put_back, expire_audit, self.database.keep_reserve):
                try:
                    await to_thread(work)
                except Exception as error:  # it comes again in a minute, and the others do not wait for it
                    logger.warning("housekeeping failed: %r", error)

    def strength(self) -> Strength:
        """Who works: workers elsewhere that the store hears of, or threads of this process."""
        if self.settings.database_url is not None:
            return self.registry.strength()
        return Strength(num_workers=int(self.settings.num_workers > 0), num_slots=self.settings.num_workers)

    async def check_ready(self, *, least_workers: int = 0) -> Strength:
        """Who works; raises ServiceError 503 unless the service can take work now, and as many workers live."""
        if not self.is_ready:
            detail = "shutting down" if self.is_draining else "the toy plan is not solved yet"
            raise ServiceError(503, "not_ready", detail=detail, headers={"Retry-After": "5"})
        if await to_thread(self.database.is_full):
            detail = "the store's disk is full; delete plans, or make room on it"
            raise ServiceError(503, "store_full", detail=detail, headers={"Retry-After": "30"})
        try:
            strength = await to_thread(self.strength)
        except DamagedError:
            raise
        except Exception:
            raise ServiceError(503, "not_ready", detail="the store does not answer; check the database") from None
        if strength.num_workers < least_workers:
            detail = f"{strength.num_workers} workers live, {least_workers} are required"
            raise ServiceError(503, "too_few_workers", detail=detail, headers={"Retry-After": "5"})
        return strength

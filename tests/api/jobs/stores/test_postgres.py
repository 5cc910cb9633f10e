"""What procrastinate does by itself, by which it is decided what stands in our rows (`api.jobs.stores.postgres`)."""

import asyncio
from collections.abc import Awaitable, Callable

import procrastinate
import psycopg
import pytest
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job, Status

from api.jobs.stores.postgres import QUEUE, TASK, prepare
from tests.api.postgres import PostgresServer


def with_queue(url: str, act: Callable[[procrastinate.App], Awaitable[None]]) -> None:
    """Open the queue of a database that has one, and do something with it."""

    async def run() -> None:
        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=1, max_size=1))
        async with app.open_async():
            await act(app)

    prepare(url)
    asyncio.run(run())


async def put(app: procrastinate.App, *tenants: str) -> None:
    """A ticket for each, which carries whose job it is."""
    for tenant in tenants:
        await app.configure_task(TASK, queue=QUEUE).defer_async(tenant=tenant)


async def take(app: procrastinate.App, worker: int) -> Job:
    """The next ticket for a worker."""
    job = await app.job_manager.fetch_job([QUEUE], worker)
    assert job is not None
    return job


def test_tickets_that_carry_jobs_are_not_fair(postgres: PostgresServer):
    """Tests that a ticket comes after all that were put up before it, however many one tenant has under way."""

    async def act(app: procrastinate.App) -> None:
        await put(app, "a", "a", "a", "b")
        worker = await app.job_manager.register_worker()
        taken = [(await take(app, worker)).task_kwargs["tenant"] for _ in range(4)]
        assert taken == ["a", "a", "a", "b"]  # the store's claim, asked so, gives a, b, a, a

    with_queue(postgres.fresh_database(), act)


def test_tickets_have_no_fence(postgres: PostgresServer):
    """Tests that a worker that was frozen, and lost its ticket, ends it all the same while another one works on it."""

    async def act(app: procrastinate.App) -> None:
        manager = app.job_manager
        await put(app, "a")
        frozen, other = await manager.register_worker(), await manager.register_worker()
        before = await take(app, frozen)
        await app.connector.execute_query_async(
            "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 hour' WHERE id = %(id)s", id=frozen
        )
        assert list(await manager.prune_stalled_workers(30)) == [frozen]
        (stalled,) = await manager.get_stalled_jobs(seconds_since_heartbeat=30)
        await manager.retry_job(stalled)
        after = await take(app, other)
        assert after.id == before.id
        await manager.finish_job(before, status=Status.SUCCEEDED, delete_job=True)
        with pytest.raises(ConnectorException):
            await manager.finish_job(after, status=Status.SUCCEEDED, delete_job=True)

    url = postgres.fresh_database()
    with_queue(url, act)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT COUNT(*) FROM procrastinate_jobs").fetchone() == (0,)

"""Tenants take the processes for checks in rotation, within a limit each; traces are weighed before they are read."""

import asyncio
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from api.service.fair_queue import FairQueue
from api.settings import ClientLimits
from tests.api.service.servers import Running, serving, wait_ready
from tests.api.service.test_http import request

TRACES = Path("benchmarks/traces")


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 30))


async def settle() -> None:
    """Until nothing happens any more."""
    for _ in range(20):
        await asyncio.sleep(0)


class Site:
    """A queue, who is at work in it, and who began in which order."""

    def __init__(self, *, num_slots: int, most: int = 100, most_of_tenant: int = 50) -> None:
        self.queue = FairQueue(num_slots=num_slots, most=most, most_of_tenant=most_of_tenant)
        self.begun: list[str] = []
        self.ends: dict[str, list[asyncio.Event]] = {}
        self.tasks: list[asyncio.Task[None]] = []

    def come(self, *tenants: str) -> None:
        self.tasks += [asyncio.create_task(self._work(tenant)) for tenant in tenants]

    async def _work(self, tenant: str) -> None:
        async with self.queue.slot(tenant):
            self.begun.append(tenant)
            end = asyncio.Event()
            self.ends.setdefault(tenant, []).append(end)
            await end.wait()

    async def end_one(self, tenant: str) -> None:
        self.ends[tenant].pop(0).set()
        await settle()


@pytest.mark.parametrize(
    ("num_slots", "begun"),
    [(1, "abcabaa"), (2, "abcabaa"), (3, "aabcabaa"), (4, "aaabcabaaa")],
)
def test_tenants_are_served_in_rotation(num_slots: int, begun: str):
    """Tests that beside a tenant that came first with many, others find a slot free or get the next ones.

    Each time whoever began first ends: `begun` names who begins, in order.
    """

    async def work() -> str:
        site = Site(num_slots=num_slots)
        site.come(*"aaaaaaaa")
        await settle()
        site.come(*"bbc")
        await settle()
        for number in range(len(begun)):
            await site.end_one(site.begun[number])
            if len(site.begun) >= len(begun):
                break
        return "".join(site.begun[: len(begun)])

    assert run(work()) == begun


def test_a_slot_is_free_beside_a_busy_tenant():
    """Tests that a tenant with twenty that never end leaves a slot to whoever comes, each time anew."""

    async def work() -> None:
        site = Site(num_slots=3)
        site.come(*"a" * 20)
        await settle()
        assert site.begun == ["a", "a"]
        for number in range(1, 4):
            site.come("b")
            await settle()
            assert site.begun.count("b") == number
            await site.end_one("b")
        assert site.begun.count("a") == 2

    run(work())


class Busy:
    """Twenty connections of a tenant, each of which asks again as soon as it is answered."""

    def __init__(self, running: Running, key: str, *, path: str, body: bytes) -> None:
        self._asked = (running, "POST", path, body, {"Authorization": f"Bearer {key}"})
        self.statuses: list[int] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(20)]

    def _ask(self) -> None:
        while not self._over.is_set():
            self.statuses.append(request(*self._asked)[0])

    def __enter__(self) -> "Busy":
        for thread in self._threads:
            thread.start()
        time.sleep(1.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.slow
def test_a_tenant_beside_a_busy_one(tmp_path: Path):
    """Tests that beside twenty connections of a tenant that checks, another's takes twice as long + 1 s at most."""
    traffic = ClientLimits(requests_per_s=1e6, burst=10**6)
    with serving(tmp_path, needs_keys=True, num_workers=0, traffic=traffic) as running:
        wait_ready(running)
        busy, other = running.key("busy"), {"Authorization": f"Bearer {running.key('other')}"}
        trace = (TRACES / "trace-ST.parquet").read_bytes()

        def ask() -> float:
            begin = time.monotonic()
            assert request(running, "POST", "/v1/traces", trace, other)[0] == 200
            return time.monotonic() - begin

        idle_s = min(ask() for _ in range(3))
        with Busy(running, busy, path="/v1/traces", body=trace) as held:
            times = [ask() for _ in range(3)]
        assert max(times) <= 2 * idle_s + 1.0, (idle_s, times)
        assert set(held.statuses) <= {200, 422}

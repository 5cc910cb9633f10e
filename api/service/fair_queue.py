"""Fair queuing of tenants: who has least under way, and was served longest ago, is next; each has its limit."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator
from itertools import count

from api.service.http.problem_json import ServiceError

_FIRST_ONES = 2
"""Times as many as may wait: so many may be there when one comes whose tenant has none yet."""


class FairQueue:
    """`num_slots` at once, of one tenant one fewer, so that the one that else comes need not wait for it."""

    def __init__(self, *, num_slots: int, most: int, most_of_tenant: int) -> None:
        """`most` may wait or be under way, `most_of_tenant` of one tenant; a tenant's only one stands beyond that."""
        self._num_free, self._most_at_once = num_slots, max(1, num_slots - 1)
        self._most, self._most_of_tenant = most, most_of_tenant
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._num_at_work: Counter[str] = Counter()
        self._num_present: Counter[str] = Counter()
        self._served: dict[str, int] = {}
        self._numbers = count()

    @contextlib.asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """One of the slots, once it is the tenant's; raises ServiceError 503 or 429 if too many wait already."""
        if self._num_present[tenant] >= self._most_of_tenant:
            detail = f"{self._most_of_tenant} checks of yours wait or are under way; try again"
            raise ServiceError(429, "too_many_checks", detail=detail, headers={"Retry-After": "2"})
        most = self._most if self._num_present[tenant] else _FIRST_ONES * self._most
        if self._num_present.total() >= most:
            raise ServiceError(503, "busy", detail="too many checks wait; try again", headers={"Retry-After": "2"})
        self._num_present[tenant] += 1
        try:
            await self._wait(tenant)
            try:
                yield
            finally:
                self._free(tenant)
        finally:
            self._num_present[tenant] -= 1
            if not self._num_present[tenant]:
                del self._num_present[tenant]
                self._served.pop(tenant, None)

    async def _wait(self, tenant: str) -> None:
        """Until a slot is the tenant's; the one that is given up meanwhile leaves it to others."""
        given = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(given)
        self._give()
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self._free(tenant)
            raise

    def _give(self) -> None:
        """Slots to those that are next."""
        while self._num_free and (able := [name for name in self._waiting if self._may_begin(name)]):
            tenant = min(able, key=lambda name: (self._num_at_work[name], self._served.get(name, -1)))
            given = self._waiting[tenant].popleft()
            if not self._waiting[tenant]:
                del self._waiting[tenant]
            if given.done():
                continue  # it was given up while it waited
            self._num_free -= 1
            self._num_at_work[tenant] += 1
            self._served[tenant] = next(self._numbers)
            given.set_result(None)

    def _may_begin(self, tenant: str) -> bool:
        return self._num_at_work[tenant] < self._most_at_once

    def _free(self, tenant: str) -> None:
        self._num_free += 1
        self._num_at_work[tenant] -= 1
        if not self._num_at_work[tenant]:
            del self._num_at_work[tenant]
        self._give()

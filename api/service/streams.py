"""Those who stay: places for event streams and waiting requests, which end when the key that they came with does."""

import asyncio
import contextlib
import time
from asyncio import to_thread
from collections.abc import Iterator
from dataclasses import dataclass

from api.jobs.stores.store import STORE_FAILURES
from api.service.auth import Caller
from api.service.http.problem_json import ServiceError
from api.service.keys import KeyRing
from api.service.notifier import Hub
from api.settings import ClientLimits

LOOK_S = 1.0
"""How often the keys of those who stay are looked at."""


@dataclass(slots=True, kw_only=True, eq=False)
class Stream:
    """One who stays."""

    caller: Caller
    job_id: str
    """Job whose events are sent."""
    is_over: bool = False
    """Whether its key, or its token, is good no more."""


class OpenStreams:
    """The places; `run` is a task of the event loop."""

    def __init__(self, traffic: ClientLimits, keys: KeyRing, *, hub: Hub) -> None:
        self._traffic, self._keys, self._hub = traffic, keys, hub
        self._streams: set[Stream] = set()

    def __len__(self) -> int:
        return len(self._streams)

    def has_room(self, tenant: str) -> bool:
        """Whether one more is within the service's and the tenant's places."""
        num_own = sum(stream.caller.tenant == tenant for stream in self._streams)
        return len(self) < self._traffic.streams and num_own < self._traffic.tenant_streams

    @contextlib.contextmanager
    def place(self, caller: Caller, job_id: str) -> Iterator[Stream]:
        """One of the places; raises ServiceError 429 if all are taken."""
        if not self.has_room(caller.tenant):
            raise ServiceError(
                429, "too_many_streams", detail="too many wait for events; try again", headers={"Retry-After": "5"}
            )
        stream = Stream(caller=caller, job_id=job_id)
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)

    async def run(self) -> None:
        """Look for as long as the service lives."""
        while True:
            await asyncio.sleep(LOOK_S)
            with contextlib.suppress(*STORE_FAILURES):  # a store that is away says nothing of keys
                await self.look()

    async def look(self) -> None:
        """End the streams whose key was revoked or has expired, and wake them."""
        asked = {key_id for stream in self._streams if (key_id := stream.caller.key_id) is not None}
        good = await to_thread(self._keys.good_among, asked) if asked else set()
        for stream in tuple(self._streams):
            key_id, until = stream.caller.key_id, stream.caller.expires_at
            is_gone = key_id in asked and key_id not in good
            if is_gone or (until is not None and until <= time.time()):
                stream.is_over = True
                self._hub.wake(stream.job_id)

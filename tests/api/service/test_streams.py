"""Streams and waiting requests end with the key or the token that they came with."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.sqlite import SqliteDatabase
from api.service.keys import KeyRing
from api.settings import Oidc
from tests.api.jobs.stores.test_store import submit
from tests.api.service.servers import Running, serving
from tests.api.service.test_auth import GOOD, key_set, token
from tests.api.service.test_http import request

MOST_S = 20.0
"""A stream that nothing ends says something every 15 seconds, and then looks for itself."""


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with keys and tokens, without workers: its jobs wait for ever."""
    folder: Path = tmp_path_factory.mktemp("streams")
    oidc = Oidc(issuer="https://id.example", audience="pipeplan", jwks_file=key_set(folder))
    with serving(folder / "data", needs_keys=True, num_workers=0, oidc=oidc) as started:
        yield started


class Stay(threading.Thread):
    """A request that stays; `answer` is what it was answered once it is over."""

    def __init__(self, running: Running, job_id: str, *, key: str, is_waiting: bool) -> None:
        super().__init__()
        self.sent = {"Authorization": f"Bearer {key}"} | ({"Prefer": "wait=60"} if is_waiting else {})
        self.path = f"/v1/plans/{job_id}" if is_waiting else f"/v1/plans/{job_id}/events"
        self.running, before = running, len(running.service.streams)
        self.start()
        until = time.monotonic() + MOST_S
        while len(running.service.streams) == before:
            assert time.monotonic() < until
            time.sleep(0.01)

    def run(self) -> None:
        self.answer = request(self.running, "GET", self.path, headers=self.sent)

    def ended(self) -> tuple[int, bytes]:
        """Status and body, long before it would have ended by itself."""
        begin = time.monotonic()
        self.join(MOST_S)
        assert not self.is_alive()
        assert time.monotonic() - begin < 6.0
        return self.answer[0], self.answer[2]


@pytest.mark.parametrize("is_waiting", [False, True], ids=["stream", "wait"])
def test_a_revoked_key_ends_what_stays(keyed: Running, is_waiting: bool):
    """Tests that revoking a key, by another process here, ends its stream or wait, and nobody else's of the job."""
    job_id = submit(SqlStore(keyed.service.database), "a").id
    key, text = keyed.service.keys.create("a")
    other, other_text = keyed.service.keys.create("a")
    stays = [Stay(keyed, job_id, key=each, is_waiting=is_waiting) for each in (text, other_text)]
    elsewhere = SqliteDatabase(keyed.service.settings.data / "pipeplan.sqlite")
    KeyRing(elsewhere).revoke(key.id)
    elsewhere.close_all()
    status, body = stays[0].ended()
    assert status == (401 if is_waiting else 200)
    assert (json.loads(body)["code"] == "unauthenticated") if is_waiting else body.startswith(b"id: 1\nevent: queued\n")
    assert stays[1].is_alive()
    assert len(keyed.service.streams) == 1
    keyed.service.keys.revoke(other.id)
    stays[1].ended()
    assert request(keyed, "GET", stays[0].path, headers=stays[0].sent)[0] == 401


@pytest.mark.parametrize("kind", ["expiring key", "rotated key", "expiring token"])
def test_a_key_that_ends_by_itself_ends_its_stream(keyed: Running, kind: str):
    """Tests that the same holds for a key or token whose time is over, and a key that was rotated."""
    ring = keyed.service.keys
    tenant = "oidc:research" if kind == "expiring token" else "a"
    job_id = submit(SqlStore(keyed.service.database), tenant).id
    key, text = ring.create("a", expires_in_s=1.0 if kind == "expiring key" else None)
    text = token({**GOOD, "exp": time.time() + 1.5}) if kind == "expiring token" else text
    stay = Stay(keyed, job_id, key=text, is_waiting=False)
    if kind == "rotated key":
        ring.rotate(key.id, overlap_s=0.5)
    assert stay.ended()[0] == 200

"""Clients of a soak: each posts, follows, looks and asks by turns, and writes down what every request cost."""

import http.client
import itertools
import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from api.client import Client, ServerError, workload_document
from api.doctor import make_toy_problem
from planner.document import parse_plan
from planner.progress import Limits
from planner.verify import verify
from profiles.documents.canonical_json import to_plain

NUM_CLIENTS = 6
PAUSE_S = 0.4
"""Between two requests of a client, on average."""

FETCHES = ("plan", "view", "trace", "report", "picture", "history", "export/torch")
"""What clients fetch of a plan."""

CHECKED = 5
"""Of so many plans one is verified here."""

END_S = 420.0
"""A job that has not ended so long after it was posted counts as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request and what became of it."""

    kind: str
    at_s: float
    """Since the soak began."""
    took_s: float
    status: int
    """0: no answer, because the connection was refused or broke."""


@dataclass
class Ledger:
    """What all clients saw."""

    begin: float = field(default_factory=time.monotonic)
    sent: list[Sent] = field(default_factory=list)
    posted: int = 0
    ended: int = 0
    verified: int = 0
    lost: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def now(self) -> float:
        """Seconds since the soak began."""
        return time.monotonic() - self.begin


class SoakClient:
    """One client: a thread that continues until it is told that it is over."""

    def __init__(self, port: int, ledger: Ledger, *, number: int, is_over: threading.Event) -> None:
        self._client = Client(f"http://127.0.0.1:{port}", num_tries=1, timeout_s=60.0)
        self._ledger, self._is_over = ledger, is_over
        self._chance = random.Random(number)
        self._seeds = itertools.count(number * 1_000_000)
        self._problem = make_toy_problem()
        self.thread = threading.Thread(target=self._run, name=f"client-{number}")

    def _run(self) -> None:
        while not self._is_over.is_set():
            job_id = self._post()
            if job_id is None:
                continue
            if self._follow_to_end(job_id):
                for _ in range(self._chance.randint(2, 6)):
                    self._look(job_id)

    def _timed(self, kind: str, act: Callable[[], Any]) -> Any:
        """What the request answers, or None if it failed; either is written down."""
        at_s, begin, status, found = self._ledger.now(), time.monotonic(), 200, None
        try:
            found = act()
        except ServerError as error:
            status = error.status
        except (OSError, http.client.HTTPException):
            status = 0
        sent = Sent(kind=kind, at_s=at_s, took_s=time.monotonic() - begin, status=status)
        self._ledger.sent.append(sent)
        time.sleep(self._chance.uniform(0.0, 2 * PAUSE_S) if status != 0 else 1.0)
        return found

    def _post(self) -> str | None:
        """The id of a new small question; sent again under its idempotency key until it is answered."""
        labels = {"project": "soak", "tags": [f"t{self._chance.randint(0, 9)}"]}
        limits = to_plain(_small(next(self._seeds)))
        body = {"workload": workload_document(self._problem), "limits": limits, **labels}
        key = {"Idempotency-Key": uuid.uuid4().hex}
        while not self._is_over.is_set():
            job = self._timed("post", lambda: self._client._json("POST", "/v1/plans", body=body, headers=key))
            if job is not None:
                self._ledger.posted += 1
                return str(job["id"])
        return None

    def _follow_to_end(self, job_id: str) -> bool:
        """Whether the job succeeded; a job that is not there any more, or does not end, was lost."""
        until = time.monotonic() + END_S
        if self._chance.random() < 0.3:
            self._timed("events", lambda: list(self._events(job_id)))
        while time.monotonic() < until:
            state = self._state(job_id)
            if state == "gone":
                break
            if state in ("succeeded", "failed", "cancelled"):
                self._ledger.ended += 1
                if state != "succeeded":
                    self._ledger.failed.append(job_id)
                return state == "succeeded"
        self._ledger.lost.append(job_id)
        return False

    def _state(self, job_id: str) -> str:
        """As the service tells it; `gone` where there is no such job, `unknown` without an answer."""
        gone: list[str] = []

        def ask() -> Any:
            try:
                return self._client.job(job_id)
            except ServerError as error:
                gone.extend(["gone"] if error.status == 404 else [])
                raise

        job = self._timed("poll", ask)
        return gone[0] if gone else "unknown" if job is None else str(job["state"])

    def _events(self, job_id: str) -> Iterator[Any]:
        """The story, until its end or until the connection breaks."""
        for event in self._client._events(job_id, after=0):
            yield event
            if event["kind"] == "done":
                return

    def _look(self, job_id: str) -> None:
        """One of the things that people do with a plan."""
        ranges = {"base": job_id, "changes": [{"devices": -1}, {"memory_bytes": -(2**20)}, {"link_speed": 0.5}]}
        acts: dict[str, Callable[[], Any]] = {
            **{what: lambda what=what: self._fetch(job_id, what) for what in FETCHES},  # type: ignore[misc]
            "list": lambda: self._client.jobs(limit=50),
            "search": lambda: self._client._json("GET", "/v1/plans?project=soak&tag=t3&limit=20"),
            "projects": lambda: self._client._json("GET", "/v1/projects"),
            "page": lambda: self._client._bytes("GET", "/"),
            "what-if ranges": lambda: self._client._json("POST", "/v1/what-if/ranges", body=ranges),
            "what-if": lambda: self._client.what_if(
                job_id, limits=_small(0), num_microbatches=self._chance.randint(2, 12)
            ),
            "delete": lambda: self._client.delete(job_id),
        }
        kind = self._chance.choice(sorted(acts))
        self._timed(kind, acts[kind])

    def _fetch(self, job_id: str, what: str) -> bytes:
        text = self._client._bytes("GET", f"/v1/plans/{job_id}/{what}")
        if what == "plan" and self._chance.randrange(CHECKED) == 0:
            assert verify(self._problem, parse_plan(text)).passed, "a plan that does not pass"
            self._ledger.verified += 1
        if what == "picture":
            json.loads(text)
        return text


def _small(seed: int) -> Limits:
    """A question that is answered in a fraction of a second; another seed is another question for the cache."""
    return Limits(time_limit_s=60.0, max_rounds=1, seed=seed)

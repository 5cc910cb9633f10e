"""Webhooks: when a job ends, or somebody tells what became of its plan, its tenant's addresses hear of it, signed.

They hear at least once. What is to be said of an end is written down in the transaction that ends the job
(`deliveries`), so it survives every crash; any door says it, again and again with longer pauses, until the other side
answers with 2xx or it has been said too often.
Only hosts that the operator allows are contacted, and redirects are not followed.
"""

import http.client
import ipaddress
import logging
import re
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from api.jobs.job import DamagedError, Job
from api.jobs.logs import tell
from api.jobs.stores.hashes import hash_of_row, is_row_of
from api.jobs.stores.job_rows import is_object
from api.jobs.stores.sql_store import announce, freeing
from api.jobs.stores.store import STORE_FAILURES
from api.jobs.stores.transactions import Database
from api.signatures import HEADER, sign

logger = logging.getLogger(__name__)

MOST_PER_TENANT = 8

MOST_LETTERS = 500
"""Of an address."""

MOST_WAITING = 1000
"""Deliveries of a tenant beyond which notices are refused."""

MOST_ATTEMPTS = 12
"""Tries before a delivery is given up; with the pauses between them almost a day."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 4 * 3600.0
"""After the first try that failed, and at most."""

LEASE_S = 60.0
"""So long a delivery is one door's."""

ANSWER_S = 10.0
"""How long the other side may take."""

BATCH = 20

LOOK_S = 1.0
"""How often a door looks for deliveries."""


URL = re.compile(r"[Hh][Tt][Tt][Pp][Ss]?://([A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+", re.ASCII)
"""The letters that an address may have (RFC 3986)."""

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)


def is_host(host: str) -> bool:
    """Whether there can be a host of that name, in small letters, or with that address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        labels = host.removesuffix(".").split(".")
        return len(host) <= 253 and all(_LABEL.fullmatch(label) for label in labels)
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Webhook:
    """An address that hears when a tenant's jobs end."""

    id: str
    url: str
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delivery:
    """One thing to be said to one address."""

    webhook_id: str
    job_id: str
    """The job whose end it tells; of a notice, the job and a number of the notice's own."""
    body: str
    attempts: int
    """Tries before this one."""
    url: str
    secret: str


_COLUMNS = "id, tenant, url, secret, created_at, row_sha256"
"""Of a webhook, which never changes; the last one is the hash of the others."""


def _require_whole(row: Sequence[Any]) -> None:
    """Raise DamagedError for a webhook's row that is not as it was written."""
    *values, stated = row
    if not all(isinstance(text, str) for text in values[:4]) or not is_row_of(stated, values):
        raise DamagedError(f"the webhook {values[0]!s:.16}")


class Webhooks:
    """The webhooks of a store."""

    def __init__(self, database: Database, *, hosts: Sequence[str]) -> None:
        """`hosts`: patterns of hosts that may be contacted (`*.example.com`)."""
        self._database, self._hosts = database, tuple(hosts)

    @property
    def is_on(self) -> bool:
        """Whether any host may be contacted."""
        return bool(self._hosts)

    def allows(self, url: str) -> bool:
        """Whether the address may be contacted."""
        return self._complaint_about(url) is None

    def _complaint_about(self, url: str) -> str | None:
        """Why the address may not be contacted."""
        if not URL.fullmatch(url):
            return "is not an address; give http:// or https://, a host, and a path without blanks (write them as %20)"
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            return "has an invalid host or port; correct it"
        if "@" in parts.netloc:
            return "names a user; leave that out, messages are signed instead"
        if port == 0 or not is_host(host):
            return "has an invalid host or port; correct it"
        if not any(fnmatchcase(host, pattern.lower()) for pattern in self._hosts):
            return "is not one that this service may speak to; the operator allows hosts"
        return None

    def create(self, tenant: str, url: str) -> tuple[_Webhook, str]:
        """A webhook and the secret that its messages are signed with; raises ValueError for what cannot be."""
        complaint = self._complaint_about(url)
        if complaint is not None:
            raise ValueError(f"url: {complaint}")
        made = _Webhook(id=secrets.token_hex(8), url=url, created_at=self._database.now())
        secret = f"whsec_{secrets.token_hex(24)}"
        with self._database.transaction() as cursor:
            self._database.lock_tenant(cursor, tenant)
            cursor.execute("SELECT COUNT(*) FROM webhooks WHERE tenant = ?", (tenant,))
            row = cursor.fetchone()
            if row is not None and row[0] >= MOST_PER_TENANT:
                raise ValueError(f"url: this tenant has {MOST_PER_TENANT} webhooks, the maximum; delete one")
            values = (made.id, tenant, url, secret, made.created_at)
            cursor.execute(
                f"INSERT INTO webhooks ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", (*values, hash_of_row(values))
            )
        return made, secret

    def listed(self, tenant: str) -> list[_Webhook]:
        """The tenant's webhooks, without their secrets."""
        rows = self._database.read(f"SELECT {_COLUMNS} FROM webhooks WHERE tenant = ? ORDER BY created_at", (tenant,))
        for row in rows:
            _require_whole(row)
        return [_Webhook(id=row[0], url=row[2], created_at=row[4]) for row in rows]

    def remove(self, webhook_id: str, tenant: str) -> bool:
        """Say nothing to it any more; False if there is none."""
        return freeing(self._database, lambda: self._remove(webhook_id, tenant))

    def _remove(self, webhook_id: str, tenant: str) -> bool:
        with self._database.transaction() as cursor:
            cursor.execute("DELETE FROM webhooks WHERE id = ? AND tenant = ?", (webhook_id, tenant))
            is_gone = cursor.rowcount == 1
            if is_gone:
                cursor.execute("DELETE FROM deliveries WHERE webhook_id = ?", (webhook_id,))
            return is_gone

    def notify(self, job: Job, *, event: str, detail: Mapping[str, Any]) -> int | None:
        """How many addresses will hear what became of the plan; None if too much waits to be said already."""
        now = self._database.now()
        told: dict[str, Any] = {"event": f"plan.{event}", "id": job.id, "href": f"/v1/plans/{job.id}", "name": job.name}
        told |= {"project": job.project, "tags": job.tags.split(), "detail": dict(detail)}
        with self._database.transaction() as cursor:
            self._database.lock_tenant(cursor, job.tenant)
            cursor.execute(
                "SELECT COUNT(*) FROM deliveries JOIN webhooks ON webhooks.id = webhook_id WHERE tenant = ?",
                (job.tenant,),
            )
            row = cursor.fetchone()
            if row is not None and row[0] >= MOST_WAITING:
                return None
            return announce(cursor, job, subject=f"{job.id}.{secrets.token_hex(8)}", told=told, now=now)

    def take_due(self) -> list[_Delivery]:
        """Deliveries that are this door's for `LEASE_S`."""
        now = self._database.now()
        rows = self._database.read(
            "SELECT webhook_id, job_id, due_at FROM deliveries "
            "JOIN webhooks ON webhooks.id = deliveries.webhook_id WHERE due_at <= ? OR due_at > ? "
            "ORDER BY due_at LIMIT ?",
            (now, now + 2 * LONGEST_PAUSE_S, BATCH),  # later than any pause: the clock was set back
        )
        return [delivery for row in rows if (delivery := self._take_or_drop(row, now=now)) is not None]

    def _take_or_drop(self, row: Any, *, now: float) -> _Delivery | None:
        """None if another door was faster; what is damaged can never be said, and others wait behind it."""
        webhook_id, job_id, due_at = row
        try:
            return self._take(webhook_id, job_id, due_at=due_at, now=now)
        except DamagedError:
            logger.error("what the webhook %s is to hear of %s is damaged; it is dropped", webhook_id, job_id)
        with self._database.transaction() as cursor:
            cursor.execute("DELETE FROM deliveries WHERE webhook_id = ? AND job_id = ?", (webhook_id, job_id))
        return None

    def _take(self, webhook_id: str, job_id: str, *, due_at: float, now: float) -> _Delivery | None:
        with self._database.transaction() as cursor:
            cursor.execute(
                f"SELECT body, attempts, {_COLUMNS} FROM deliveries "
                "JOIN webhooks ON webhooks.id = webhook_id WHERE webhook_id = ? AND job_id = ?",
                (webhook_id, job_id),
            )
            row = cursor.fetchone()
            if row is None:
                return None  # somebody has said it, or the webhook is gone
            body, attempts, *webhook = row
            _require_whole(webhook)
            url, secret = webhook[2:4]
            if not is_object(body):
                raise DamagedError("a delivery")
            cursor.execute(
                "UPDATE deliveries SET attempts = attempts + 1, due_at = ? "
                "WHERE webhook_id = ? AND job_id = ? AND due_at = ?",
                (now + LEASE_S, webhook_id, job_id, due_at),
            )
            if cursor.rowcount != 1:
                return None  # another door was faster
        return _Delivery(webhook_id=webhook_id, job_id=job_id, body=body, attempts=attempts, url=url, secret=secret)

    def settle(self, delivery: _Delivery, *, is_heard: bool) -> None:
        """It was heard, or has been said often enough, or will be said again later."""
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 3**delivery.attempts)
        with self._database.transaction() as cursor:
            where = (delivery.webhook_id, delivery.job_id)
            if is_heard or delivery.attempts + 1 >= MOST_ATTEMPTS:
                cursor.execute("DELETE FROM deliveries WHERE webhook_id = ? AND job_id = ?", where)
            else:
                cursor.execute(
                    "UPDATE deliveries SET due_at = ? WHERE webhook_id = ? AND job_id = ?",
                    (self._database.now() + pause_s, *where),
                )


class WebhookSender:
    """A thread that delivers for as long as the service lives."""

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            try:
                self.deliver_due()
            except STORE_FAILURES as error:
                logger.warning("webhooks wait, the store failed: %r", error)

    def deliver_due(self) -> None:
        """Deliver every notification that is due, all at once: one side that is slow keeps no other waiting."""
        if self._over.is_set():
            return
        due = self._webhooks.take_due()
        with ThreadPoolExecutor(BATCH, thread_name_prefix="courier") as threads:
            statuses = threads.map(lambda each: post(each) if self._webhooks.allows(each.url) else 0, due)
        for delivery, status in zip(due, statuses, strict=True):
            is_heard = 200 <= status < 300
            tell("webhook", job=delivery.job_id, webhook=delivery.webhook_id, status=status, is_heard=is_heard)
            self._webhooks.settle(delivery, is_heard=is_heard)

    def stop(self) -> None:
        """Stop delivering, and wait for the thread to end."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(ANSWER_S + LOOK_S)


def post(delivery: _Delivery) -> int:
    """The status of the answer, 0 without one within `ANSWER_S`, however it trickles."""
    parts, data = urlsplit(delivery.url), delivery.body.encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "pipeplan",
        HEADER: sign(delivery.secret, data, moment=int(time.time())),
    }
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        is_secret = parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_secret else http.client.HTTPConnection
        with closing(kind(parts.hostname or "", parts.port)) as connection:
            plain = socket.create_connection((connection.host, connection.port), timeout=ANSWER_S)
            with plain, _ending(plain):
                secret = ssl.create_default_context() if is_secret else None
                connection.sock = secret.wrap_socket(plain, server_hostname=connection.host) if secret else plain
                connection.request("POST", path, body=data, headers=headers)
                return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0


@contextmanager
def _ending(plain: socket.socket) -> Iterator[None]:
    """Both ways of a connection end after `ANSWER_S`, in the middle of an answer or of a handshake."""
    with plain.dup() as handle:
        timer = threading.Timer(ANSWER_S, partial(_end, handle))
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def _end(handle: socket.socket) -> None:
    with suppress(OSError):  # the other side was faster
        handle.shutdown(socket.SHUT_RDWR)

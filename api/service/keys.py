"""API keys: made once, shown once, stored as a hash; who brings one is its tenant, within its scopes."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from api.jobs.sql_store import Database

SCOPES = ("plans:read", "plans:write", "metrics")
"""What a key may allow: looking; submitting, stopping, deleting, checking; reading the metrics."""

_KEY = re.compile(r"pp_([0-9a-f]{12})_([0-9a-f]{48})", re.ASCII)
_TICKET = re.compile(r"([0-9a-f]{12})\.(\d{1,12})\.([0-9a-f]{64})", re.ASCII)
_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
_COLUMNS = "id, tenant, name, scopes, created_at, expires_at, revoked_at, hourly_jobs, concurrent_jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key without its secret."""

    id: str
    tenant: str
    name: str
    scopes: tuple[str, ...]
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    hourly_jobs: int | None
    concurrent_jobs: int | None

    def is_valid(self, now: float) -> bool:
        """Neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class KeyRing:
    """The keys of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self,
        tenant: str,
        *,
        name: str = "",
        scopes: Sequence[str] = SCOPES,
        expires_in_s: float | None = None,
        hourly_jobs: int | None = None,
        concurrent_jobs: int | None = None,
    ) -> tuple[ApiKey, str]:
        """A new key and its text, which is not kept; raises ValueError for a tenant or scope that cannot be."""
        if not _TENANT.fullmatch(tenant):
            raise ValueError(f"tenant {tenant[:70]!r}: use lower case letters, digits, dots and dashes, at most 63")
        for scope in scopes:
            if scope not in SCOPES:
                raise ValueError(f"scope {scope[:70]!r} is not known; use {', '.join(SCOPES)}")
        now = self._database.now()
        key = ApiKey(
            id=secrets.token_hex(6),
            tenant=tenant,
            name=name[:100],
            scopes=tuple(scopes),
            created_at=now,
            expires_at=None if expires_in_s is None else now + expires_in_s,
            revoked_at=None,
            hourly_jobs=hourly_jobs,
            concurrent_jobs=concurrent_jobs,
        )
        text = f"pp_{key.id}_{secrets.token_hex(24)}"
        self._insert(key, digest=_digest(text))
        return key, text

    def _insert(self, key: ApiKey, *, digest: str) -> None:
        values = (key.id, key.tenant, key.name, " ".join(key.scopes), key.created_at, key.expires_at, None)
        with self._database.transaction() as cursor:
            cursor.execute(
                f"INSERT INTO api_keys ({_COLUMNS}, sha256) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*values, key.hourly_jobs, key.concurrent_jobs, digest),
            )

    def listed(self) -> list[ApiKey]:
        """Every key ever made, latest last."""
        with self._database.transaction(is_writing=False) as cursor:
            cursor.execute(f"SELECT {_COLUMNS} FROM api_keys ORDER BY created_at, id")
            return [_key(row) for row in cursor.fetchall()]

    def revoke(self, key_id: str) -> bool:
        """End a key; False if there is none of that id that is not revoked yet."""
        with self._database.transaction() as cursor:
            cursor.execute(
                "UPDATE api_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL",
                (self._database.now(), key_id),
            )
            return cursor.rowcount == 1

    def has_any(self) -> bool:
        """Whether at least one key is valid."""
        now = self._database.now()
        return any(key.is_valid(now) for key in self.listed())

    def find(self, text: str) -> ApiKey | None:
        """The valid key that `text` is; secrets are compared in constant time."""
        match = _KEY.fullmatch(text)
        if match is None:
            return None
        with self._database.transaction(is_writing=False) as cursor:
            cursor.execute(f"SELECT {_COLUMNS}, sha256 FROM api_keys WHERE id = ?", (match[1],))
            row = cursor.fetchone()
        digest = row[-1] if row is not None else "0" * 64
        if not hmac.compare_digest(digest, _digest(text)) or row is None:
            return None
        key = _key(row[:-1])
        return key if key.is_valid(self._database.now()) else None

    def sign(self, key_id: str, plan_id: str, *, seconds: float) -> str:
        """A ticket with which a frame may load the picture of one plan for a while, in the name of the key."""
        until = int(self._database.now() + seconds)
        return f"{key_id}.{until}.{_seal(self._digest_of(key_id), plan_id, until=until)}"

    def redeem(self, ticket: str, plan_id: str) -> ApiKey | None:
        """The key in whose name the ticket was signed, if it is good for the plan now."""
        match = _TICKET.fullmatch(ticket)
        if match is None or int(match[2]) < self._database.now():
            return None
        digest = self._digest_of(match[1])
        if not hmac.compare_digest(match[3], _seal(digest, plan_id, until=int(match[2]))):
            return None
        found = [key for key in self.listed() if key.id == match[1]]
        return found[0] if found and found[0].is_valid(self._database.now()) else None

    def _digest_of(self, key_id: str) -> str:
        with self._database.transaction(is_writing=False) as cursor:
            cursor.execute("SELECT sha256 FROM api_keys WHERE id = ?", (key_id,))
            row = cursor.fetchone()
        return secrets.token_hex(32) if row is None else str(row[0])


def _seal(digest: str, plan_id: str, *, until: int) -> str:
    return hmac.new(bytes.fromhex(digest), f"{plan_id}|{until}".encode(), "sha256").hexdigest()


def _key(row: Any) -> ApiKey:
    key_id, tenant, name, scopes, *rest = row
    created_at, expires_at, revoked_at, hourly_jobs, concurrent_jobs = rest
    return ApiKey(
        id=key_id,
        tenant=tenant,
        name=name,
        scopes=tuple(scopes.split()),
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
        hourly_jobs=hourly_jobs,
        concurrent_jobs=concurrent_jobs,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

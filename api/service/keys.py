"""API keys: made once, shown once, stored as a hash; who brings one is its tenant, within its scopes."""

import contextlib
import hmac
import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from api.jobs.job import DamagedError
from api.jobs.stores.hashes import hash_of_row, is_row_of, is_sha256, sha256_of
from api.jobs.stores.sql_store import freeing
from api.jobs.stores.store import STORE_FAILURES
from api.jobs.stores.transactions import Cursor, Database
from api.service.audit import AuditEntry, operator, record

SCOPES = ("plans:read", "plans:write", "metrics")
"""What a key may allow: looking; submitting, stopping, deleting, checking; reading the metrics."""

_KEY = re.compile(r"pp_([0-9a-f]{12})_([0-9a-f]{48})", re.ASCII)
_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
_FIXED = "id, tenant, name, scopes, created_at, hourly_jobs, concurrent_jobs, sha256"
"""Columns that never change; the row states their hash."""

_COLUMNS = f"{_FIXED}, row_sha256, expires_at, revoked_at, last_used_at"

USE_NOTED_S = 60.0
"""A key's last use is known to so many seconds."""

LONGEST_S = 36_500 * 24 * 3600.0
"""A key that is to end by itself ends within a hundred years."""

_FINAL = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key without its secret."""

    id: str
    tenant: str
    name: str
    scopes: tuple[str, ...]
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    hourly_jobs: int | None = None
    concurrent_jobs: int | None = None
    last_used_at: float | None = None

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
        scopes: Sequence[str] | None = None,
        expires_in_s: float | None = None,
        hourly_jobs: int | None = None,
        concurrent_jobs: int | None = None,
    ) -> tuple[ApiKey, str]:
        """A new key, of every scope unless some are given, and its text, which is not kept.

        Raises ValueError for a tenant or scope that cannot be.
        """
        _require_tenant(tenant)
        scopes = SCOPES if scopes is None else scopes
        for scope in scopes:
            if scope not in SCOPES:
                raise ValueError(f"scope {scope[:70]!r} is not known; use {', '.join(SCOPES)}")
        if expires_in_s is not None and not 0 < expires_in_s <= LONGEST_S:
            raise ValueError(f"a key cannot end in {expires_in_s:g} s; give days above 0, at most 36,500")
        now = self._database.now()
        key = ApiKey(
            id=secrets.token_hex(6),
            tenant=tenant,
            name=name[:100],
            scopes=tuple(scopes),
            created_at=now,
            expires_at=None if expires_in_s is None else now + expires_in_s,
            hourly_jobs=hourly_jobs,
            concurrent_jobs=concurrent_jobs,
        )
        text = f"pp_{key.id}_{secrets.token_hex(24)}"
        with self._database.transaction() as cursor:
            _insert(cursor, key, digest=sha256_of(text))
            self._note(
                cursor, "key.created", subject=key.id, detail=f"tenant {key.tenant}, scopes {' '.join(key.scopes)}"
            )
        return key, text

    def adopt(self, text: str, *, tenant: str) -> bool:
        """Let a key that the operator made up be the first one; False if the store has, or had, any key.

        Raises ValueError for a text that is no key.
        """
        match = _KEY.fullmatch(text)
        if match is None:
            raise ValueError(
                "the first key is malformed; give pp_, 12 hexadecimal digits, _, and 48 of them (docker/first-key.sh)"
            )
        _require_tenant(tenant)
        with self._database.transaction() as cursor:
            self._database.lock_tenant(cursor, "")
            cursor.execute("SELECT COUNT(*) FROM api_keys")
            row = cursor.fetchone()
            if row is not None and row[0]:
                return False
            now = self._database.now()
            key = ApiKey(id=match[1], tenant=tenant, name="first", scopes=SCOPES, created_at=now)
            _insert(cursor, key, digest=sha256_of(text))
            self._note(cursor, "key.adopted", subject=key.id, detail=f"tenant {tenant}")
            return True

    def rotate(self, key_id: str, *, overlap_s: float) -> tuple[ApiKey, str]:
        """A new key that may do what the old one may, which ends after the overlap; raises ValueError without one.

        The new key ends when the old one would have ended.
        """
        now = self._database.now()
        old = next((key for key in self.listed() if key.id == key_id and key.is_valid(now)), None)
        if old is None:
            raise ValueError(f"{key_id[:40]}: there is no such key that is valid; see pipeplan keys list")
        key = replace(old, id=secrets.token_hex(6), created_at=now, last_used_at=None)
        text = f"pp_{key.id}_{secrets.token_hex(24)}"
        with self._database.transaction() as cursor:
            cursor.execute(
                f"UPDATE api_keys SET expires_at = ? WHERE id = ? AND {_FINAL}",
                (min(now + overlap_s, old.expires_at or now + overlap_s), old.id, now),
            )
            if cursor.rowcount != 1:
                raise ValueError(f"{key_id[:40]}: was revoked meanwhile; see pipeplan keys list")
            _insert(cursor, key, digest=sha256_of(text))
            self._note(cursor, "key.rotated", subject=old.id, detail=f"to {key.id}, both good for {overlap_s:g} s")
        return key, text

    def _note(self, cursor: Cursor, action: str, *, subject: str, detail: str = "") -> None:
        entry = AuditEntry(at=self._database.now(), actor=operator(), action=action, subject=subject, detail=detail)
        record(cursor, entry)

    def listed(self) -> list[ApiKey]:
        """Every key ever made, latest last."""
        return [_key(row) for row in self._database.read(f"SELECT {_COLUMNS} FROM api_keys ORDER BY created_at, id")]

    def revoke(self, key_id: str) -> bool:
        """End a key; False if there is none of that id that is not revoked yet."""
        return freeing(self._database, lambda: self._revoke(key_id))

    def _revoke(self, key_id: str) -> bool:
        with self._database.transaction() as cursor:
            cursor.execute(
                "UPDATE api_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL",
                (self._database.now(), key_id),
            )
            is_revoked = cursor.rowcount == 1
            if is_revoked:
                self._note(cursor, "key.revoked", subject=key_id)
            return is_revoked

    def has_any(self) -> bool:
        """Whether at least one key is valid."""
        now = self._database.now()
        return any(key.is_valid(now) for key in self.listed())

    def good_among(self, key_ids: Collection[str]) -> set[str]:
        """Those that are neither revoked nor expired."""
        marks = ", ".join("?" * len(key_ids))
        rows = self._database.read(
            f"SELECT id FROM api_keys WHERE id IN ({marks}) AND {_FINAL}", (*key_ids, self._database.now())
        )
        return {row[0] for row in rows}

    def find(self, text: str) -> ApiKey | None:
        """The valid key that `text` is; secrets are compared in constant time."""
        match = _KEY.fullmatch(text)
        if match is None:
            return None
        row = self._database.read_first(f"SELECT {_COLUMNS} FROM api_keys WHERE id = ?", (match[1],))
        digest = row[_FIXED.split(", ").index("sha256")] if row is not None else "0" * 64
        if not is_sha256(digest):
            raise DamagedError(f"the key {match[1]}")
        if not hmac.compare_digest(digest, sha256_of(text)) or row is None:
            return None
        key, now = _key(row), self._database.now()
        if not key.is_valid(now):
            return None
        self._note_use(key, now=now)
        return key

    def _note_use(self, key: ApiKey, *, now: float) -> None:
        """Once a minute; a store that cannot be written to opens the door all the same."""
        if key.last_used_at is not None and now - key.last_used_at < USE_NOTED_S:
            return
        with contextlib.suppress(*STORE_FAILURES), self._database.transaction() as cursor:
            cursor.execute("UPDATE api_keys SET last_used_at = ? WHERE id = ?", (now, key.id))


def _require_tenant(tenant: str) -> None:
    if not _TENANT.fullmatch(tenant):
        raise ValueError(f"tenant {tenant[:70]!r}: use lower case letters, digits, dots and dashes, at most 63")


def _key(row: Any) -> ApiKey:
    *fixed, stated, expires_at, revoked_at, last_used_at = row
    values = dict(zip(_COLUMNS.split(", "), row, strict=True))
    scopes, created_at = values["scopes"], values["created_at"]
    is_sound = isinstance(scopes, str) and set(scopes.split()) <= set(SCOPES) and isinstance(created_at, float)
    is_dated = all(isinstance(at, float | None) for at in (expires_at, revoked_at, last_used_at))
    if not is_sound or not is_dated or not is_row_of(stated, fixed):
        raise DamagedError(f"the key {values['id']!s:.12}")
    values["scopes"] = tuple(scopes.split())
    return ApiKey(**{field.name: values[field.name] for field in fields(ApiKey)})


def _insert(cursor: Cursor, key: ApiKey, *, digest: str) -> None:
    limits = (key.hourly_jobs, key.concurrent_jobs)
    fixed = (key.id, key.tenant, key.name, " ".join(key.scopes), key.created_at, *limits, digest)
    cursor.execute(
        f"INSERT INTO api_keys ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*fixed, hash_of_row(fixed), key.expires_at, None, None),
    )

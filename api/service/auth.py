"""Who asks, what they may do, and how much of it."""

import json
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fastapi import Request

from api.jobs.logs import tell
from api.service.http.problem_json import ServiceError
from api.service.keys import SCOPES, KeyRing
from api.settings import Oidc, Settings, is_loopback

if TYPE_CHECKING:
    from jwt import PyJWK

_LOCAL_TENANT = "local"
"""Whose everything is where no keys are asked for."""

_MAX_BUCKETS = 10_000
"""Clients whose rate is remembered."""

_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
"""Headers of proxies: who comes through one is another, even if the proxy is on this machine."""

_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="pipeplan"'}


def unauthenticated(detail: str) -> ServiceError:
    """Without a good key there is no answer."""
    return ServiceError(401, "unauthenticated", detail=detail, headers=_CHALLENGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Tenant, scopes and limits of an authenticated request."""

    tenant: str
    """Tenant whose jobs are visible."""
    key_id: str | None = None
    """The API key, where one was brought."""
    scopes: tuple[str, ...] = SCOPES
    """Scopes of the key: `read`, `write`, `metrics`, `admin`."""
    hourly_jobs: int
    concurrent_jobs: int
    expires_at: float | None = None
    """When the token ends that it came with, in seconds since 1970; of a key the store knows that."""

    @property
    def label(self) -> str:
        """Who it is, in the audit log."""
        return f"tenant:{self.tenant}" if self.key_id is None else f"key:{self.key_id}"


class Buckets:
    """A token bucket per client: so many requests a second, and a burst."""

    def __init__(self, *, per_s: float, burst: int) -> None:
        self._per_s, self._burst = per_s, burst
        self._lock = threading.Lock()
        self._levels: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> bool:
        """Whether one more request is within the rate."""
        with self._lock:
            now = time.monotonic()
            level, since = self._levels.pop(name, (float(self._burst), now))
            level = min(float(self._burst), level + (now - since) * self._per_s)
            if len(self._levels) >= _MAX_BUCKETS:
                self._levels.pop(next(iter(self._levels)))
            self._levels[name] = (level - 1 if level >= 1 else level, now)
            return level >= 1


class Gate:
    """Lets requests in."""

    def __init__(self, settings: Settings, keys: KeyRing) -> None:
        self._settings, self._keys = settings, keys
        traffic = settings.traffic
        self._local = Caller(
            tenant=_LOCAL_TENANT, hourly_jobs=traffic.hourly_jobs, concurrent_jobs=traffic.unfinished_jobs
        )
        self._buckets = Buckets(per_s=traffic.requests_per_s, burst=traffic.burst)

    def admit(self, request: Request, scope: str) -> Caller:
        """The caller; raises ServiceError 401, 403 or 429."""
        caller = self._identify(request)
        if scope not in caller.scopes:
            raise ServiceError(
                403, "scope_missing", detail=f"the key does not have the scope {scope}; use a key that has it"
            )
        if not self._buckets.take(caller.key_id or caller.tenant):
            raise ServiceError(429, "rate_limited", detail="slow down", headers={"Retry-After": "1"})
        return caller

    def _identify(self, request: Request) -> Caller:
        header, local = request.headers.get("authorization"), self._local
        if not self._settings.needs_keys and header is None:
            _require_local(request)
            return local
        scheme, _, text = (header or "").partition(" ")
        if scheme.lower() != "bearer" or not text or len(text) > 8192:
            raise unauthenticated("send Authorization: Bearer KEY")
        key = self._keys.find(text)
        if key is not None:
            return Caller(
                tenant=key.tenant,
                key_id=key.id,
                scopes=key.scopes,
                hourly_jobs=key.hourly_jobs or local.hourly_jobs,
                concurrent_jobs=key.concurrent_jobs or local.concurrent_jobs,
            )
        claims = None if self._settings.oidc is None else _read_token(text, self._settings.oidc)
        if claims is None:
            raise unauthenticated("the key is not valid; use one that is not revoked")
        granted = str(claims.get("scope", "")).split()
        scopes = tuple(scope for scope in SCOPES if scope in granted)
        return replace(local, tenant=f"oidc:{claims['tenant']}", scopes=scopes, expires_at=float(claims["exp"]))


def _require_local(request: Request) -> None:
    """Without keys, only this machine's own programs and pages may ask: no other site's script, by whatever name."""
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    origin = request.headers.get("origin")
    is_foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    is_foreign = is_foreign or any(name in request.headers for name in _FORWARDED)
    if not is_loopback(host) or is_foreign or request.headers.get("sec-fetch-site") == "cross-site":
        raise ServiceError(
            403, "foreign_origin", detail="without keys this service answers its own machine only; start it with --keys"
        )


def _read_token(text: str, oidc: Oidc) -> dict[str, Any] | None:
    """The claims of a token that the provider signed for us and that has not expired, else None.

    Raises ServiceError 503 while the provider's keys cannot be read: nobody knows whether the token is good.
    """
    import jwt

    try:
        keys = read_key_set(oidc.jwks_file)
    except ValueError as error:
        tell("oidc", error=str(error))
        detail = "the identity provider's keys cannot be read; the operator has to correct them"
        raise ServiceError(503, "not_ready", detail=detail, headers={"Retry-After": "5"}) from None
    try:
        header = jwt.get_unverified_header(text)
        claims: dict[str, Any] = jwt.decode(
            text,
            next(key for key in keys if key.key_id == header.get("kid")),  # with its own algorithm, whatever is claimed
            algorithms=["RS256", "ES256"],
            audience=oidc.audience,
            issuer=oidc.issuer,
            options={"require": ["exp", "iss", "aud", "tenant"]},
        )
    except (jwt.PyJWTError, StopIteration, ValueError):
        return None
    tenant = claims["tenant"]
    return claims if isinstance(tenant, str) and 0 < len(tenant) <= 200 and tenant.isprintable() else None


def read_key_set(path: Path) -> "list[PyJWK]":
    """The keys of an issuer, of which there is at least one; raises ValueError that names the file and the remedy."""
    import jwt

    try:
        tree = json.loads(path.read_text(encoding="utf-8-sig"))
        return jwt.PyJWKSet.from_dict(tree if isinstance(tree, dict) else {}).keys
    except (OSError, ValueError, jwt.PyJWTError) as error:
        raise ValueError(f"{path}: is no JSON Web Key Set ({error}); give the issuer's public keys") from None

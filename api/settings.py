"""Everything that can be set about a service, with its defaults; `/v1/capabilities` publishes what matters outside."""

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from api.jobs.request import Ceilings
from api.jobs.workers.runner import Patience
from api.jobs.workers.solver_handle import ProcessLimits
from planner.progress import usable_cores


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Limits of requests, connections, jobs and bytes, per client or in all."""

    max_body_bytes: int = 8 * 2**20
    """Largest body."""
    body_timeout_s: float = 10.0
    """How long a body may take to arrive, or up to half as long again."""
    body_bytes: int = 256 * 2**20
    """Bytes of the bodies of all requests under way, together."""
    header_timeout_s: float = 10.0
    """How long the header of a request may take to arrive, or up to half as long again."""
    waiting_connections: int = 8192
    """Connections without the whole header of a request; beyond it the one that has waited longest is dropped."""
    waiting_bodies: int = 4096
    """Requests whose body has not come whole; beyond it the same."""
    requests: int = 1000
    """Requests that may be under way at once, without those whose body is still coming."""
    requests_per_s: float = 50.0
    """Requests per key, on average; twenty times as many at once."""
    burst: int = 1000
    """Requests per key that may come at once."""
    hourly_jobs: int = 2000
    """Jobs per key and hour, unless the key says otherwise."""
    unfinished_jobs: int = 1000
    """Jobs of a tenant that may be queued or running, unless its key says otherwise."""
    streams: int = 400
    """Event streams and waiting requests that may be open."""
    tenant_streams: int = 200
    """Event streams and waiting requests of one tenant."""
    stored_bytes: int = 8 * 2**30
    """Bytes that the requests, plans and drawings of one tenant may have in the store."""
    inspections: int = 64
    """Checks and drawings that may wait or be under way."""
    tenant_inspections: int = 32
    """Checks and drawings of one tenant."""
    max_wait_s: int = 60
    """Longest `Prefer: wait`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Oidc:
    """Bearer tokens of an identity provider."""

    issuer: str
    """Who must have issued a token."""
    audience: str
    """For whom it must have been issued."""
    jwks_file: Path
    """The provider's public keys, a JSON Web Key Set that the operator keeps up to date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that `pipeplan serve` may be told."""

    data: Path
    """Folder of the SQLite database; with PostgreSQL only of the service's own small files."""
    database_url: str | None = None
    """PostgreSQL, where workers may run on other machines; None: SQLite and workers in this process."""
    num_workers: int = 1
    """Jobs solved at once in this process."""
    needs_keys: bool = True
    """Whether every request must bring a key; only a loopback bind may do without."""
    retention_s: float = 30 * 24 * 3600.0
    """How long finished jobs are kept that nobody pinned."""
    inspection_s: float = 10.0
    """How long a check or a drawing may take."""
    traces: bool = False
    """Whether OpenTelemetry spans are made."""
    ceilings: Ceilings = field(default_factory=Ceilings)
    traffic: ClientLimits = field(default_factory=ClientLimits)
    process: ProcessLimits = field(default_factory=ProcessLimits)
    helper: ProcessLimits = field(default_factory=ProcessLimits)
    """What one process for checks and drawings may take."""
    num_helpers: int = field(default_factory=lambda: usable_cores() + 1)
    """Processes for checks and drawings, one of which no tenant gets beside all others; they start when needed."""
    patience: Patience = field(default_factory=Patience)
    oidc: Oidc | None = None
    webhook_hosts: tuple[str, ...] = ()
    """Patterns of hosts that webhooks may speak to; none: no webhooks."""
    first_key: str | None = field(default=None, repr=False)
    """API key that a store without any is given, so that a fresh installation can be asked."""
    first_tenant: str = "default"
    """Tenant of the first key."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that is bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

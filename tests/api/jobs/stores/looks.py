"""What tests ask of a store, and nobody else."""

from collections.abc import Sequence

from api.jobs.job import Job, Search
from api.jobs.stores.sql_store import SqlStore


def recent(store: SqlStore, tenant: str, *, limit: int) -> Sequence[Job]:
    """The tenant's jobs, latest first."""
    return store.search(tenant, Search(), limit=limit)


def ping(store: SqlStore) -> None:
    """Raise unless the store answers."""
    store.database.read("SELECT COUNT(*) FROM tenants")

"""The store in SQL, the same statements for SQLite and PostgreSQL: tests of api/jobs/stores/sql_store.py."""

from api.jobs.stores.sql_store import SqlStore
from tests.api.jobs.stores.looks import recent
from tests.api.jobs.stores.test_store import claim, submit


def test_another_tenant_sees_nothing(store: SqlStore):
    """Tests that neither look, stop, pin nor forget reaches another tenant's job."""
    job = submit(store, "a")
    assert store.get(job.id, tenant="b") is None
    assert store.stop(job.id, "b") is None
    assert store.pin(job.id, "b", is_pinned=True) is None
    assert store.forget(job.id, "b") is False
    assert list(recent(store, "b", limit=9)) == []
    assert store.get(job.id) == job


def test_tenants_take_turns(store: SqlStore):
    """Tests that a tenant with many jobs waits for one with few, and that priorities order a tenant's own."""
    many = [submit(store, "many") for _ in range(4)]
    urgent = submit(store, "many", priority=5)
    few = submit(store, "few")
    order = [claim(store).id for _ in range(6)]
    assert set(order[:2]) == {urgent.id, few.id}
    assert order[2:] == [job.id for job in many]

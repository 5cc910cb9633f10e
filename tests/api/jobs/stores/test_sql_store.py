"""The store in SQL, the same statements for SQLite and PostgreSQL: tests of api/jobs/stores/sql_store.py."""

import time

import pytest

from api.jobs.job import Quota
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.store import QuotaError
from tests.api.jobs.stores.looks import recent
from tests.api.jobs.stores.test_store import claim, new_job, submit
from tests.own_time import tell_time


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


@pytest.fixture
def clock(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """By how much the wall clock of this machine was set anew, once the store has looked at it."""
    steps = [0.0]
    for engine in ("sqlite", "postgres"):
        tell_time(monkeypatch, f"api.jobs.stores.{engine}", time=lambda: time.time() + steps[0])
    store.database.now()
    return steps


@pytest.mark.parametrize("hours", [3.0, -3.0, 24.0 * 365])
def test_a_clock_that_is_set_anew_takes_no_job_from_its_worker(store: SqlStore, clock: list[float], hours: float):
    """Tests that leases neither end nor last for hours where the clock is set forwards or back while a job runs."""
    submit(store)
    running = claim(store, lease_s=60.0)
    clock[0] += hours * 3600
    assert store.put_back() == 0
    assert store.extend(running, lease_s=60.0).attempt == 1
    submit(store)
    late = claim(store, lease_s=-1.0)
    clock[0] -= 2 * hours * 3600
    assert store.put_back() == 1
    assert claim(store).id == late.id


def test_a_clock_that_is_set_back_makes_no_tenant_wait(store: SqlStore, clock: list[float]):
    """Tests that a tenant that was served before the step takes turns with others after it."""
    for tenant in ("a", "b"):
        for _ in range(4):
            submit(store, tenant)
    tenants = []
    for number in range(6):
        job = claim(store)
        store.release(job, spent_s=0.0, is_crash=False)
        tenants.append(job.tenant)
        clock[0] -= 3 * 3600 * (number == 0)
    assert tenants == ["a", "b"] * 3


def test_a_clock_that_is_set_back_keeps_no_key_from_asking(store: SqlStore):
    """Tests that jobs of an hour that is still to come do not count as those of the last hour."""
    quota, right = Quota(unfinished_jobs=9, hourly_jobs=1, stored_bytes=10**6), store.database.now
    store.submit(new_job(), quota=quota)
    store.database.now = lambda: right() - 60.0  # type: ignore[method-assign]
    with pytest.raises(QuotaError):
        store.submit(new_job(), quota=quota)
    store.database.now = lambda: right() - 3 * 3600  # type: ignore[method-assign]
    store.submit(new_job(), quota=quota)

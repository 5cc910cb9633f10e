"""The store in SQL, the same statements for SQLite and PostgreSQL: tests of api/jobs/stores/sql_store.py."""

import json
from dataclasses import replace

from api.jobs.stores.sql_store import SqlStore
from tests.api.jobs.stores.test_islands import present, take
from tests.api.jobs.stores.test_islands import submit as submit_islands
from tests.api.jobs.stores.test_store import NEWS, claim, submit


def test_another_tenant_sees_nothing(store: SqlStore):
    """Tests that neither look, stop, pin nor forget reaches another tenant's job."""
    job = submit(store, "a")
    assert store.get(job.id, tenant="b") is None
    assert store.stop(job.id, "b") is None
    assert store.pin(job.id, "b", is_pinned=True) is None
    assert store.forget(job.id, "b") is False
    assert list(store.recent("b", limit=9)) == []
    assert store.get(job.id) == job


def test_tenants_take_turns(store: SqlStore):
    """Tests that a tenant with many jobs waits for one with few, and that priorities order a tenant's own."""
    many = [submit(store, "many") for _ in range(4)]
    urgent = submit(store, "many", priority=5)
    few = submit(store, "few")
    order = [claim(store).id for _ in range(6)]
    assert set(order[:2]) == {urgent.id, few.id}
    assert order[2:] == [job.id for job in many]


def test_idle_workers_are_islands(store: SqlStore):
    """Tests that islands are of jobs that run, wait behind every job, and come to all jobs before a second to one."""
    first = submit_islands(store, islands=3)
    assert store.islands.claim("w", lease_s=60) is None
    claim(store)
    second = submit_islands(store, islands=2)
    assert store.islands.claim("w", lease_s=60) is None
    claim(store)
    assert store.islands.count_wanted() == 3
    taken = [take(store) for _ in range(3)]
    assert [(island.job.id, island.number) for island in taken] == [(first.id, 1), (second.id, 1), (first.id, 2)]
    assert store.islands.claim("w", lease_s=60) is None
    assert (store.islands.count_running(), store.islands.count_running(first.id)) == (3, 2)
    assert store.count_states() == {"running": 2}


def test_the_row_holds_the_best_of_all(store: SqlStore):
    """Tests that plans and bounds of an island count where they are better, and that the story says whose they are."""
    job = submit_islands(store, islands=2)
    leader = claim(store)
    island = take(store)
    store.report(leader, NEWS)
    better = replace(NEWS, incumbent_ns=80, lower_bound_ns=40, gap=0.5, plan="{plan 80}")
    store.report(island.job, better, island=island)
    row = present(store, job)
    assert (row.incumbent_ns, row.lower_bound_ns, row.gap) == (80, 50, 0.375)
    store.report(leader, replace(NEWS, incumbent_ns=90, lower_bound_ns=60, gap=1 / 3, plan="{plan 90}"))
    row = present(store, job)
    assert (row.incumbent_ns, row.lower_bound_ns, row.gap) == (80, 60, 0.25)
    assert store.plan_text(job.id) == "{plan 80}"
    found = [json.loads(event.data) for event in store.events(job.id, after=0) if event.kind == "incumbent"]
    assert [(data["incumbent_ns"], data.get("island")) for data in found] == [(100, None), (80, 1)]

"""The words of a job: tests of api/jobs/job.py."""

import pytest

from api.jobs.job import LeaseLostError
from api.jobs.stores.sql_store import SqlStore
from tests.api.jobs.stores.test_store import DONE, NEWS, claim, submit


def test_a_silent_worker_loses_its_job(store: SqlStore):
    """Tests that an expired lease gives the job to another, and that the first worker cannot touch it when it thaws."""
    job = submit(store)
    frozen = claim(store, "frozen", lease_s=-1.0)
    taken = claim(store, "other")
    assert (taken.id, taken.attempt, taken.crashes) == (job.id, 2, 0)
    for touch in (
        lambda: store.finish(frozen, DONE),
        lambda: store.report(frozen, NEWS),
        lambda: store.extend(frozen, lease_s=9),
        lambda: store.release(frozen, spent_s=0, is_crash=False),
    ):
        with pytest.raises(LeaseLostError):
            touch()
    store.finish(taken, DONE)
    with pytest.raises(LeaseLostError):
        store.finish(taken, DONE)
    assert [event.kind for event in store.events(job.id, after=0)].count("done") == 1

"""One claimed job from its claim to its last word: tests of api/jobs/workers/runner.py."""

import time
from pathlib import Path

from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.sqlite import SqliteDatabase
from api.jobs.workers.runner import JobRunner, Patience
from planner.progress import Limits
from tests.api.jobs.workers.test_pool import submit
from tests.api.service.test_crashes import TOY, check_all


class Frozen(JobRunner):
    """A worker that freezes before its last word until its lease has run out and another has finished the job."""

    other: JobRunner

    def run(self, job):  # type: ignore[no-untyped-def]
        finish = self.store.finish

        def freeze(mine, outcome):  # type: ignore[no-untyped-def]
            self.store.finish = finish  # type: ignore[method-assign]
            time.sleep(self.patience.lease_s + 0.5)
            taken = self.store.claim("other", lease_s=60.0)
            assert taken is not None
            self.other.run(taken)
            finish(mine, outcome)

        self.store.finish = freeze  # type: ignore[method-assign]
        super().run(job)


def test_a_frozen_worker_thaws(tmp_path: Path):
    """Tests that a worker that was frozen past its lease cannot finish the job a second time when it thaws."""
    from api.jobs.workers.solver_handle import Child, ProcessLimits

    store = SqlStore(SqliteDatabase(tmp_path / "jobs.sqlite"))
    job = submit(store, TOY, Limits(time_limit_s=60, max_rounds=1))
    children = [Child(ProcessLimits()) for _ in range(2)]
    patience = Patience(lease_s=2.0)
    frozen = Frozen(store, children[0], patience=patience, is_draining=lambda: False)
    frozen.other = JobRunner(store, children[1], patience=patience, is_draining=lambda: False)
    claimed = store.claim("frozen", lease_s=60.0)
    assert claimed is not None
    store.extend(claimed, lease_s=patience.lease_s)
    frozen.run(claimed)
    done = store.get(job.id)
    assert done is not None
    assert (done.state, done.attempt, done.crashes) == ("succeeded", 2, 0)
    check_all(store, {job.id: TOY})
    for child in children:
        child.kill()
    store.close_all()

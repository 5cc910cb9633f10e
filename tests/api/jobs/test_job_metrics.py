"""What became of jobs, counted where they are solved: tests of api/jobs/job_metrics.py."""

from pathlib import Path

from api.jobs.job import Outcome, ProgressUpdate
from api.jobs.job_metrics import JobMetrics
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.sqlite import SqliteDatabase
from api.jobs.workers.runner import JobRunner, Patience
from api.jobs.workers.solver_handle import Child, ProcessLimits
from tests.api.jobs.stores.test_store import submit


def test_crashes_are_counted(tmp_path: Path):
    """Tests that a solver that dies is counted as a crash, and a job that is lost as lost."""
    store, metrics, child = SqlStore(SqliteDatabase(tmp_path / "s")), JobMetrics(), Child(ProcessLimits())
    runner = JobRunner(store, child, patience=Patience(), is_draining=lambda: False, metrics=metrics)
    submit(store)
    job = store.claim("w", lease_s=60.0)
    assert job is not None
    runner.release(job, spent_s=0.0, is_crash=True, reason="died")
    again = store.claim("w", lease_s=60.0)
    assert again is not None
    store.report(again, ProgressUpdate(phase="x", incumbent_ns=None, lower_bound_ns=None, gap=None, source=""))
    runner.finish(again, Outcome(state="failed", stopped_by="memory"))
    lines = metrics.render().decode().splitlines()
    assert "pipeplan_solver_crashes_total 1.0" in lines
    assert 'pipeplan_jobs_ended_total{state="failed",stopped_by="memory"} 1.0' in lines
    store.close_all()

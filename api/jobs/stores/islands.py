"""The searches beside the first one of jobs that want several: rows that idle workers claim, as they claim jobs.

The one that holds the job is island 0 and ends it. The others publish plans and bounds in the job's row, leave their
plan with its evidence behind when they end, and are gone with the job. One that is lost is claimed anew or given up.
"""

from typing import Any

from api.jobs.job import Island, LeaseLostError
from api.jobs.stores.job_rows import find_job, tell_event
from api.jobs.stores.transactions import Cursor, Database

MAX_CRASHES = 3
"""Times that the solver of an island may die; then it is given up."""

_IS_MINE = "job_id = ? AND number = ? AND attempt = ? AND state = 'running'"
_IS_FREE = "(islands.state = 'waiting' OR (islands.state = 'running' AND islands.lease_until < ?))"
_WANTED = (
    f"FROM islands JOIN jobs ON jobs.id = islands.job_id WHERE {_IS_FREE} AND islands.is_stopped = 0 "
    "AND jobs.state = 'running' AND jobs.is_stopped = 0"
)


class Islands:
    """What workers ask of the store about islands; every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, worker: str, *, lease_s: float) -> Island | None:
        """An island of a job that runs, unless a job waits: all have their second before any has its third."""
        now = self._database.now()
        with self._database.transaction(is_writing=False) as cursor:
            cursor.execute(
                f"SELECT islands.job_id, islands.number, islands.attempt {_WANTED} "
                "AND NOT EXISTS (SELECT 1 FROM jobs AS waiting WHERE waiting.state = 'queued') "
                "ORDER BY islands.number, jobs.created_at, jobs.id LIMIT 1",
                (now,),
            )
            found = cursor.fetchone()
        return None if found is None else self._take(found, worker=worker, until=now + lease_s)

    def _take(self, found: Any, *, worker: str, until: float) -> Island | None:
        """None if another worker was faster, or the job ended meanwhile."""
        job_id, number, attempt = found
        with self._database.transaction() as cursor:
            job, now = find_job(cursor, job_id, lock=self._database.row_lock), self._database.now()
            if job is None or job.is_finished:
                return None
            cursor.execute(
                "UPDATE islands SET state = 'running', attempt = attempt + 1, worker = ?, lease_until = ? "
                f"WHERE job_id = ? AND number = ? AND attempt = ? AND {_IS_FREE}",
                (worker, until, job_id, number, attempt, now),
            )
            if cursor.rowcount != 1:
                return None
            cursor.execute("SELECT crashes FROM islands WHERE job_id = ? AND number = ?", (job_id, number))
            row = cursor.fetchone()
            message = f"island {number} of {job.islands - 1} beside the first searches too"
            tell_event(cursor, job_id, kind="log", now=now, data={"message": message, "island": number})
            cursor.execute("UPDATE jobs SET version = version + 1 WHERE id = ?", (job_id,))
        late_s = max(0.0, now - (job.started_at or now))
        return Island(job=job, number=number, attempt=attempt + 1, crashes=row[0] if row else 0, late_s=late_s)

    def count_wanted(self) -> int:
        """Islands that idle workers may claim."""
        with self._database.transaction(is_writing=False) as cursor:
            cursor.execute(f"SELECT COUNT(*) {_WANTED}", (self._database.now(),))
            row = cursor.fetchone()
        return int(row[0]) if row else 0

    def count_running(self, job_id: str | None = None) -> int:
        """Islands at work (of a job) whose workers were heard of."""
        with self._database.transaction(is_writing=False) as cursor:
            cursor.execute(
                "SELECT COUNT(*) FROM islands WHERE state = 'running' AND lease_until >= ? "
                "AND (CAST(? AS TEXT) IS NULL OR job_id = ?)",
                (self._database.now(), job_id, job_id),
            )
            row = cursor.fetchone()
        return int(row[0]) if row else 0

    def is_stopped(self, island: Island) -> bool:
        """Whether it is to end; raises LeaseLostError if it is no longer the caller's, as all that follow do."""
        with self._database.transaction(is_writing=False) as cursor:
            return require_held(cursor, island)

    def extend(self, island: Island, *, lease_s: float) -> None:
        """Hold the island for longer."""
        until = self._database.now() + lease_s
        self._change(island, "lease_until = ?", until)

    def finish(self, island: Island, *, plan: str | None, gap: float | None) -> None:
        """It is over, with its plan and evidence, or without any."""
        self._change(island, "state = 'ended', worker = NULL, lease_until = NULL, plan = ?, gap = ?", plan, gap)

    def release(self, island: Island, *, is_crash: bool) -> None:
        """The one that is idle may take it up; after too many crashes nobody."""
        state = "ended" if is_crash and island.crashes + 1 >= MAX_CRASHES else "waiting"
        freed = "state = ?, worker = NULL, lease_until = NULL, crashes = crashes + ?"
        self._change(island, freed, state, int(is_crash))

    def _change(self, island: Island, change: str, *values: object) -> None:
        with self._database.transaction() as cursor:
            cursor.execute(
                f"UPDATE islands SET {change} WHERE {_IS_MINE}",
                (*values, island.job.id, island.number, island.attempt),
            )
            if cursor.rowcount != 1:
                raise LeaseLostError(f"{island.job.id}, island {island.number}")

    def close(self, job_id: str) -> None:
        """Nobody takes up another one, and those at work are to end."""
        with self._database.transaction() as cursor:
            cursor.execute("UPDATE islands SET is_stopped = 1 WHERE job_id = ?", (job_id,))

    def plans(self, job_id: str) -> list[str]:
        """What islands that ended left behind."""
        with self._database.transaction(is_writing=False) as cursor:
            cursor.execute("SELECT plan FROM islands WHERE job_id = ? AND plan IS NOT NULL ORDER BY number", (job_id,))
            return [str(row[0]) for row in cursor.fetchall()]

    def is_settled(self, job_id: str, *, gap: float) -> bool:
        """Whether an island has ended with a plan that is proved well enough."""
        with self._database.transaction(is_writing=False) as cursor:
            cursor.execute("SELECT COUNT(*) FROM islands WHERE job_id = ? AND gap <= ?", (job_id, gap))
            row = cursor.fetchone()
        return bool(row and row[0])


def require_held(cursor: Cursor, island: Island) -> bool:
    """Whether the island is to end; raises LeaseLostError unless the caller holds it."""
    cursor.execute(f"SELECT is_stopped FROM islands WHERE {_IS_MINE}", (island.job.id, island.number, island.attempt))
    row = cursor.fetchone()
    if row is None:
        raise LeaseLostError(f"{island.job.id}, island {island.number}")
    return bool(row[0])


def insert_islands(cursor: Cursor, job_id: str, *, count: int) -> None:
    """Those of a new job, beside the first."""
    for number in range(1, count + 1):
        cursor.execute(
            "INSERT INTO islands (job_id, number, state, attempt, crashes, is_stopped) "
            "VALUES (?, ?, 'waiting', 0, 0, 0)",
            (job_id, number),
        )


def reopen_islands(cursor: Cursor, job_id: str) -> None:
    """The job was claimed anew by somebody who has not ended it yet."""
    cursor.execute("UPDATE islands SET is_stopped = 0 WHERE job_id = ? AND is_stopped = 1", (job_id,))


def forget_islands(cursor: Cursor, job_id: str) -> None:
    """Those of a job that has ended; the one that works on one loses its lease."""
    cursor.execute("DELETE FROM islands WHERE job_id = ?", (job_id,))


def free_islands(cursor: Cursor) -> None:
    """The one that is idle may take up all that run: their workers are gone."""
    cursor.execute("UPDATE islands SET state = 'waiting', worker = NULL, lease_until = NULL WHERE state = 'running'")

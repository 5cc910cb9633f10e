"""A worker's turn: the job that waits longest, or else one more island of a job that another holds."""

from dataclasses import replace
from typing import Any

from api.jobs.job import Island, Job, LeaseLostError, ProgressUpdate
from api.jobs.logs import tell
from api.jobs.workers.runner import JobRunner, Solve, identity
from planner.progress import Limits

_MAX_SEED = 2**31 - 1

_YIELDS_AFTER_S = 1.0
"""Once a job has waited for so long, islands give their workers back."""


def work_once(runner: JobRunner, worker: str) -> bool:
    """Claim a job or an island and bring it to its end; False if there is neither."""
    lease_s = runner.patience.lease_s
    job = runner.store.claim(worker, lease_s=lease_s)
    if job is not None:
        runner.run(job)
        return True
    island = runner.store.islands.claim(worker, lease_s=lease_s)
    if island is not None:
        _run_island(runner, island)
    return island is not None


def _run_island(runner: JobRunner, island: Island) -> None:
    """Search until the island's or the job's end; a lost lease ends the work without a trace in the store."""
    told = {**identity(island.job), "island": island.number, "attempt": island.attempt}
    tell("island started", **told)
    try:
        _IslandSolve(runner, island).run()
    except LeaseLostError:
        runner.metrics.island("lost")
        tell("island lost", **told)
        runner.child.kill()
    else:
        tell("island ended", **told)


class _IslandSolve(Solve):
    """One claim of one island under way."""

    def __init__(self, runner: JobRunner, island: Island) -> None:
        super().__init__(runner, island.job)
        self.island = island
        self.yields = False

    def _own(self, limits: Limits) -> Limits:
        """Its own seed, and the time that is left to the job if nothing has happened to it."""
        late_s = self.island.late_s if self.job.attempt == 1 else self.job.spent_s
        seed = (limits.seed + self.island.number) % (_MAX_SEED + 1)
        return replace(limits, seed=seed, time_limit_s=max(1.0, limits.time_limit_s - late_s))

    def _report(self, update: ProgressUpdate) -> None:
        self.store.report(self.job, update, island=self.island)

    def _require_present(self, now: float) -> Job:
        """The job as it is; raises LeaseLostError if it is over, or the island is another's."""
        if now - self.held >= self.patience.lease_s / 3:
            self.store.islands.extend(self.island, lease_s=self.patience.lease_s)
            self.held = now
        present = self.store.get(self.job.id)
        if present is None or present.is_finished:
            raise LeaseLostError(self.job.id)
        return present

    def _finds_needless(self) -> bool:
        """Whether the job is about to end, or another job has waited for a worker for a while."""
        self.yields = self.store.queue_age_s() > _YIELDS_AFTER_S
        return self.yields or self.store.islands.is_stopped(self.island)

    def _conclude(self, answer: dict[str, Any] | None) -> None:
        """What was found goes into the job's row; at an end of its own, the plan is left behind with its evidence."""
        plan = gap = None
        if answer is not None and answer["event"] == "done":
            kept = ("plan", "incumbent_ns", "lower_bound_ns", "gap", "source")
            self._report(ProgressUpdate(phase="search", **{name: answer[name] for name in kept}))
            plan, gap = answer["plan"], answer["gap"]
        if self.runner.is_draining() or self.yields:
            self.store.islands.release(self.island, is_crash=False)
        else:
            self.store.islands.finish(self.island, plan=plan, gap=gap)
        self.runner.metrics.island("given_back" if self.runner.is_draining() or self.yields else "ended")

    def _bury(self, reason: str) -> None:
        """Its solver died: the job does not notice, and somebody takes the island up anew."""
        self._store_update(is_urgent=True)
        self.store.islands.release(self.island, is_crash=True)
        self.runner.metrics.island("crashed")
        tell("island given back", **identity(self.job), island=self.island.number, reason=reason)

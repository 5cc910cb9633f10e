"""One claimed job from its claim to its last word: solver started, progress stored, limits kept, leases held."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from api.jobs.job import DamagedError, Job, LeaseLostError, Outcome, ProgressUpdate
from api.jobs.job_metrics import JobMetrics
from api.jobs.logs import tell
from api.jobs.request import read_request
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.store import STORE_FAILURES, persistently
from api.jobs.workers.solver_handle import Child, ChildDiedError
from planner.batch_problem import problem_for
from planner.document import parse_plan, render_plan
from planner.progress import Limits
from planner.verify import verify
from planner.what_if.change import Change, find_start
from profiles.documents.validation import validate

_TICK_S = 0.1
"""How often a runner looks up from waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The times that a runner keeps, in seconds."""

    lease_s: float = 30.0
    """A worker that says nothing for so long has lost its job."""
    look_s: float = 0.5
    """How often it looks whether someone wants the job to stop."""
    report_s: float = 1.0
    """Shortest time between two reports of a job."""
    overtime_s: float = 20.0
    """How far beyond its time limit a solver may be before it is asked to stop."""
    stop_s: float = 30.0
    """How long a solver may take to stop before it is killed."""
    drain_s: float = 8.0
    """The same when the service shuts down."""
    rescue_s: float = 30.0
    """How long it may take to write up the plan that a dead solver left behind."""
    max_crashes: int = 10
    """Times that the solver of a job may die."""
    max_attempts: int = 50
    """Claims of a job, for whatever reason they ended."""


class JobRunner:
    """Runs jobs one after the other with one solver process."""

    def __init__(
        self,
        store: SqlStore,
        child: Child,
        *,
        patience: Patience,
        is_draining: Callable[[], bool],
        metrics: JobMetrics | None = None,
    ) -> None:
        self.store, self.child, self.patience, self.is_draining = store, child, patience, is_draining
        self.metrics = metrics or JobMetrics()
        self._begin = time.monotonic()

    def run_next(self, worker: str) -> bool:
        """Claim the job whose turn it is and bring it to its end; False if none waits."""
        job = self.store.claim(worker, lease_s=self.patience.lease_s)
        if job is not None:
            self.run(job)
        return job is not None

    def run(self, job: Job) -> None:
        """Bring the job to its end, or give it back; a lost lease ends the work without a trace in the store."""
        self._begin = time.monotonic()
        self.metrics.started(job)
        tell("job started", **identity(job), attempt=job.attempt, worker=job.worker)
        try:
            if job.crashes >= self.patience.max_crashes or job.attempt > self.patience.max_attempts:
                reason = f"{job.attempt - 1} attempts, {job.crashes} of which the solver did not survive"
                self._rescue(job, stopped_by=None, reason=reason)
            else:
                Solve(self, job).run()
        except DamagedError as damage:
            error = {"code": "damaged", "detail": f"{damage} is not as it was stored"}
            self.finish(job, Outcome(state="failed", error=error))
        except LeaseLostError:
            self.metrics.lost()
            tell("job lost", **identity(job), attempt=job.attempt)
            self.child.kill()

    def finish(self, job: Job, outcome: Outcome) -> None:
        """The job's end, stored, counted and logged; raises LeaseLostError if it is another's now."""
        self.store.finish(job, outcome)
        seconds = time.monotonic() - self._begin
        self.metrics.ended(outcome, seconds=seconds)
        code = None if outcome.error is None else outcome.error.get("code")
        told = {"state": outcome.state, "stopped_by": outcome.stopped_by, "gap": outcome.gap, "code": code}
        tell("job ended", **identity(job), **told, seconds=round(seconds, 3))

    def release(self, job: Job, *, spent_s: float, is_crash: bool, reason: str) -> None:
        """The job waits again; raises LeaseLostError if it is another's now."""
        self.store.release(job, spent_s=spent_s, is_crash=is_crash)
        self.metrics.given_back(is_crash=is_crash)
        tell("job given back", **identity(job), is_crash=is_crash, reason=reason)

    def _rescue(self, job: Job, *, stopped_by: str | None, reason: str) -> None:
        """What a dead solver left behind becomes the answer, if the verifier passes it."""
        text = self.store.plan_text(job.id)
        answer = None if text is None else self._write_up(job, text)
        if answer is None:
            code = "out_of_memory" if stopped_by == "memory" else "solver_died"
            error = {"code": code, "detail": reason}
            self.finish(job, Outcome(state="failed", stopped_by=stopped_by, error=error))
        else:
            self.finish(job, replace(answer, stopped_by=stopped_by or answer.stopped_by))

    def _write_up(self, job: Job, text: str) -> Outcome | None:
        """The plan with its evidence, made anew from it; as it stands if that fails; None if it is rejected."""
        request = read_request(self.store.request_text(job.id))
        limits = replace(request.limits, time_limit_s=self.patience.rescue_s / 2, max_rounds=0)
        self.child.kill()
        try:
            order = replace(request, limits=limits).render()
            self.child.order(op="solve", request=order, start=text, log=identity(job))
            answer = self._wait_for_end(job)
        except ChildDiedError:
            answer = None
        if answer is not None and answer["event"] == "done":
            return _outcome_of(answer)
        self.child.kill()
        plan = parse_plan(text)
        if not verify(problem_for(request.problem, plan), plan).passed:
            return None
        return Outcome(state="succeeded", solution_status="feasible", plan=text)

    def _wait_for_end(self, job: Job) -> dict[str, Any] | None:
        until = time.monotonic() + self.patience.rescue_s
        held = 0.0
        while time.monotonic() < until:
            if time.monotonic() - held > self.patience.lease_s / 3:
                self.store.extend(job, lease_s=self.patience.lease_s)
                held = time.monotonic()
            answer = self.child.answer(_TICK_S)
            if answer is not None and answer["event"] != "progress":
                return answer
        return None


def identity(job: Job) -> dict[str, Any]:
    """What finds everything about a job in the logs again."""
    return {"job": job.id, "request_id": job.request_id, "tenant": job.tenant}


def _values_of(answer: dict[str, Any]) -> dict[str, Any]:
    """All that a solver says beside what it is about."""
    return {name: value for name, value in answer.items() if name != "event"}


def _outcome_of(answer: dict[str, Any]) -> Outcome:
    """The last word of a solver as the end of its job."""
    if answer["event"] == "done":
        return Outcome(state="succeeded", **_values_of(answer))
    error = {"code": answer["code"], "detail": answer["detail"]}
    if answer["code"] == "infeasible":
        return Outcome(state="failed", solution_status="infeasible", stopped_by="proof", error=error)
    return Outcome(state="failed", stopped_by="memory" if answer["code"] == "out_of_memory" else None, error=error)


class Solve:
    """One claim of one job under way."""

    def __init__(self, runner: JobRunner, job: Job) -> None:
        self.runner, self.job = runner, job
        self.store, self.child, self.patience = runner.store, runner.child, runner.patience
        self.begin = self.looked = self.held = time.monotonic()
        self.told = float("-inf")
        self.update: ProgressUpdate | None = None
        """What was heard and not yet stored."""
        self.stopped_at: float | None = None
        self.is_user_stop = False
        self.away_since: float | None = None
        """Since when the store does not answer."""
        self.time_limit_s = 0.0

    def run(self) -> None:
        """Start the solver and follow it to its end."""
        try:
            self._order()
            answer = self._follow()
        except ChildDiedError as death:
            self._bury(str(death))
            return
        persistently(lambda: self._store_update(is_urgent=True), seconds=self.patience.lease_s)
        persistently(lambda: self._conclude(answer), seconds=self.patience.lease_s)

    def _conclude(self, answer: dict[str, Any] | None) -> None:
        if answer is None:
            self._overrun()
        elif self.runner.is_draining() and not self._is_final(answer):
            self._give_back(answer)
        else:
            self._finish(answer)

    def _order(self) -> None:
        request = read_request(self.store.request_text(self.job.id))
        start = None
        self.time_limit_s = request.limits.time_limit_s
        if not request.is_deterministic:
            request = replace(request, limits=self._own(request.limits))
            self.time_limit_s = request.limits.time_limit_s
            start = self._start()
        self.child.order(op="solve", request=request.render(), start=start, log=identity(self.job))

    def _own(self, limits: Limits) -> Limits:
        """The limits of this claim: what was spent before counts."""
        return replace(limits, time_limit_s=max(1.0, limits.time_limit_s - self.job.spent_s))

    def _start(self) -> str | None:
        """The best plan known: the job's own, one for the same question, or what a what-if starts from."""
        own = self.store.plan_text(self.job.id) or self._plan_like_it()
        return own if own or self.job.base_id is None else self._start_of_what_if(self.job.base_id)

    def _plan_like_it(self) -> str | None:
        """One for the same question; another job's damage is no harm to this one."""
        try:
            return self.store.find_plan_like(self.job.tenant, self.job.problem_key)
        except DamagedError:
            return None

    def _start_of_what_if(self, base_id: str) -> str | None:
        """The base's plan, without the devices that the change takes away."""
        text = self.store.plan_text(base_id)
        if text is None or self.job.change is None:
            return text
        change = validate(Change, json.loads(self.job.change)["change"], source="change")
        if not change.lost and change.devices >= 0:
            return text
        plan, question = parse_plan(text), read_request(self.store.request_text(base_id)).problem
        start = find_start(problem_for(question, plan), plan, change=change)
        return None if start is None else render_plan(start)

    def _follow(self) -> dict[str, Any] | None:
        """The solver's last word, or None if it had to be killed."""
        while True:
            answer = self.child.answer(_TICK_S)
            if answer is not None and answer["event"] != "progress":
                return answer
            if answer is not None:
                self._note(answer)
            self._keep_up()
            stop_s = self.patience.drain_s if self.runner.is_draining() else self.patience.stop_s
            if self.stopped_at is not None and time.monotonic() - self.stopped_at > stop_s:
                self.child.kill()
                return None

    def _keep_up(self) -> None:
        """Store what is new and look around; a store that is away gets as long as a lease to come back."""
        try:
            self._store_update()
            self._look()
            self.away_since = None
        except STORE_FAILURES:
            self.away_since = self.away_since or time.monotonic()
            if time.monotonic() - self.away_since > self.patience.lease_s:
                raise
            time.sleep(_TICK_S)

    def _note(self, answer: dict[str, Any]) -> None:
        """A step replaces the one before it, but no plan gets lost."""
        plan = answer["plan"] or (self.update.plan if self.update is not None else None)
        self.update = ProgressUpdate(**_values_of(answer) | {"plan": plan})

    def _store_update(self, *, is_urgent: bool = False) -> None:
        if self.update is not None and (is_urgent or time.monotonic() - self.told >= self.patience.report_s):
            self.store.report(self.job, self.update)
            self.update, self.told = None, time.monotonic()

    def _look(self) -> None:
        """Hold the lease, and hear whether to stop."""
        now = time.monotonic()
        if now - self.looked >= self.patience.look_s:
            self.looked = now
            present = self._require_present(now)
            self.is_user_stop = present.is_stopped
        is_late = now - self.begin > self.time_limit_s + self.patience.overtime_s
        is_over = self.is_user_stop or is_late or self.runner.is_draining()
        if self.stopped_at is None and is_over:
            self.stopped_at = now
            self.child.ask_to_stop()

    def _require_present(self, now: float) -> Job:
        """The job as it is, held for longer where that is due; raises LeaseLostError if it is another's."""
        if now - self.held >= self.patience.lease_s / 3:
            present: Job | None = self.store.extend(self.job, lease_s=self.patience.lease_s)
            self.held = now
        else:
            present = self.store.get(self.job.id)
        if present is None or present.attempt != self.job.attempt or present.state != "running":
            raise LeaseLostError(self.job.id)
        return present

    def _is_final(self, answer: dict[str, Any]) -> bool:
        """Whether the answer is one that the shutdown did not cut short."""
        return self.is_user_stop or answer["event"] == "failed" or answer["stopped_by"] != "user"

    def _finish(self, answer: dict[str, Any]) -> None:
        outcome = _outcome_of(answer)
        if self.is_user_stop and answer.get("code") == "no_plan_found":
            outcome = Outcome(state="cancelled", stopped_by="user")
        elif outcome.stopped_by == "user" and not self.is_user_stop:
            outcome = replace(outcome, stopped_by="time")
        self.runner.finish(self.job, outcome)

    def _give_back(self, answer: dict[str, Any] | None) -> None:
        """The service stops: what was found is stored, and the job waits for another worker."""
        if answer is not None and answer["event"] == "done" and not self.job.is_deterministic:
            kept = ("plan", "incumbent_ns", "lower_bound_ns", "gap", "source")
            self.store.report(self.job, ProgressUpdate(phase="search", **{name: answer[name] for name in kept}))
        spent_s = time.monotonic() - self.begin
        self.runner.release(self.job, spent_s=spent_s, is_crash=False, reason="this worker is told to stop")

    def _overrun(self) -> None:
        """It did not stop in time and was killed."""
        if self.runner.is_draining():
            self._give_back(None)
        else:
            self.runner._rescue(
                self.job, stopped_by="user" if self.is_user_stop else "time", reason="the solver did not stop in time"
            )

    def _bury(self, reason: str) -> None:
        self._store_update(is_urgent=True)
        if self.child.is_over_memory:
            self.runner._rescue(self.job, stopped_by="memory", reason=reason)
        else:
            self.runner.release(self.job, spent_s=0.0, is_crash=True, reason=reason)


def error_of(job: Job) -> dict[str, Any] | None:
    """The error of a failed job, in the form that the store keeps."""
    return None if job.error is None else json.loads(job.error)

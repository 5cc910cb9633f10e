"""Plan, run, calibrate, plan again, until prediction and run agree or the time is up; the clock chooses."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from api.tuning.short_run import ShortRun, ShortRunError
from api.tuning.tuning_candidates import RunnablePlan
from planner.plan import Plan
from profiles.workload import Workload

_StoppedBy = Literal["agreement", "time limit", "nothing new", "interrupt"]
"""Why it ended: prediction and run agree; the time is up; the same plans came again; Ctrl+C."""

_STALE_ROUNDS = 2
"""Rounds without a new plan after which more of them are not expected to bring one."""


class _Workbench(Protocol):
    """What the loop does to the world; recorded in tests."""

    def plan(self, workload: Workload) -> Sequence[RunnablePlan]:
        """Plans that are worth a run, what the planner prefers first."""

    def predict(self, workload: Workload, plan: Plan) -> int | None:
        """What a plan takes by a profile."""

    def run(self, candidate: RunnablePlan) -> ShortRun:
        """A short run in fresh processes; raises ShortRunError, or KeyboardInterrupt."""

    def calibrate(self, workload: Workload, trials: Sequence["Trial"]) -> Workload:
        """The workload with the figures of the latest runs; of several that disagree the last one counts."""

    def elapsed_s(self) -> float:
        """Since the command began."""

    def is_asked_to_stop(self) -> bool:
        """Whether Ctrl+C was pressed."""


@dataclass(kw_only=True)
class Trial:
    """A plan and its runs so far."""

    candidate: RunnablePlan
    round: int
    """In which it was first proposed, from 1."""
    runs: list[ShortRun] = field(default_factory=list)
    failure: str = ""
    """Why it could not be run."""
    predicted_ns: int | None = None
    """By the newest profile."""

    causes: str = ""
    """Whose the difference of its median run from what was predicted is, in the newest round."""

    @property
    def measured_ns(self) -> int | None:
        """Median of the medians of its runs."""
        return round(statistics.median(run.median_ns for run in self.runs)) if self.runs else None

    @property
    def spread(self) -> float | None:
        """Largest minus smallest median of a run, over their median; None with fewer than two runs."""
        medians = [run.median_ns for run in self.runs]
        return (max(medians) - min(medians)) / statistics.median(medians) if len(medians) > 1 else None

    def error(self, predicted_ns: int | None) -> float | None:
        """(predicted - measured) / measured."""
        measured = self.measured_ns
        return None if measured is None or predicted_ns is None else (predicted_ns - measured) / measured


@dataclass(frozen=True, kw_only=True)
class TuningLimits:
    """The limits that end a tuning run."""

    time_limit_s: float
    """For everything, profiling included."""
    runs: int
    """Of every plan in every round."""
    within: float
    """Prediction and run agree if they differ by this fraction of the run at most."""


@dataclass(frozen=True, kw_only=True)
class TuningResult:
    """The plan that tuning prefers, and its trials."""

    trials: tuple[Trial, ...]
    """In the order in which they were proposed."""
    chosen: Trial
    """The fastest by the clock; what the planner prefers if nothing was run."""
    preferred: Trial
    """What the planner chooses by the newest profile."""
    workload: Workload
    """With the profile as calibrated."""
    stopped_by: _StoppedBy
    rounds: int
    """Rounds of planning that were begun."""


class TuningLoop:
    """One tuning run."""

    def __init__(
        self, workload: Workload, bench: _Workbench, *, limits: TuningLimits, hear: Callable[[str], None]
    ) -> None:
        """`hear` is told in a line whatever is begun or known."""
        self.workload, self.bench, self.limits, self.hear = workload, bench, limits, hear
        self.trials: dict[str, Trial] = {}
        self.preferred: Trial | None = None
        self.rounds = 0

    def follow(self) -> TuningResult:
        """Rounds until one of them is the last; raises what the first planning raises."""
        stale = 0
        while True:
            if self.trials and (reason := self._must_stop(0.0)):
                return self._result(reason)
            proposed, num_new = self._propose()
            if self._agrees():
                return self._result("agreement")
            stale = 0 if num_new else stale + 1
            if stale > _STALE_ROUNDS:
                return self._result("nothing new")
            reason = self._run(proposed)
            if not reason and self._agrees():
                return self._result("agreement")
            self._calibrate(proposed)
            if not reason and not any(trial.runs for trial in self.trials.values()):
                reason = "nothing new"
            if reason:
                return self._result(reason)

    def _propose(self) -> tuple[list[Trial], int]:
        """What is to be run in this round: new plans and the fastest so far; how many are new."""
        self.rounds += 1
        candidates = self.bench.plan(self.workload)
        new = [candidate for candidate in candidates if candidate.key not in self.trials]
        for candidate in new:
            self.trials[candidate.key] = Trial(candidate=candidate, round=self.rounds)
        self._predict()
        self.preferred = self.trials[candidates[0].key]
        wanted = [self.trials[candidate.key] for candidate in new]
        wanted += [trial for trial in (self.preferred, _fastest(self.trials.values())) if trial is not None]
        distinct = {trial.candidate.key: trial for trial in wanted}.values()
        return [trial for trial in distinct if not trial.failure], len(new)

    def _predict(self) -> None:
        for trial in self.trials.values():
            trial.predicted_ns = self.bench.predict(self.workload, trial.candidate.plan)

    def _agrees(self) -> bool:
        """Whether what the planner prefers takes what is predicted, and nothing else that was run is faster."""
        preferred, fastest = self.preferred, _fastest(self.trials.values())
        if preferred is None or fastest is None:
            return False
        error, measured, best = preferred.error(preferred.predicted_ns), preferred.measured_ns, fastest.measured_ns
        if error is None or measured is None or best is None:
            return False
        return abs(error) <= self.limits.within and measured <= best * (1 + self.limits.within)

    def _run(self, proposed: Sequence[Trial]) -> _StoppedBy | None:
        """All in turns, so that what changes on the machine changes for all; why it has to end, if it has to."""
        for number in range(1, self.limits.runs + 1):
            for trial in proposed:
                if trial.failure:
                    continue
                if reason := self._must_stop(self._expected_s(trial)):
                    return reason
                try:
                    self._run_once(trial, number=number)
                except KeyboardInterrupt:
                    return "interrupt"
        return None

    def _run_once(self, trial: Trial, *, number: int) -> None:
        label = f"round {self.rounds}, run {number} of {self.limits.runs}: {trial.candidate.name}"
        self.hear(label)
        try:
            run = self.bench.run(trial.candidate)
        except ShortRunError as error:
            trial.failure = str(error)
            self.hear(f"{label}: failed: {error}")
            return
        trial.runs.append(run)
        self.hear(f"{label}: {run.median_ns / 1e6:.1f} ms, {(trial.predicted_ns or 0) / 1e6:.1f} predicted")

    def _expected_s(self, trial: Trial) -> float:
        """Seconds that a run of it will take, going by earlier ones."""
        runs = trial.runs or [run for other in self.trials.values() for run in other.runs]
        return max((run.wall_s for run in runs), default=0.0)

    def _must_stop(self, needed_s: float) -> _StoppedBy | None:
        if self.bench.is_asked_to_stop():
            return "interrupt"
        return "time limit" if self.bench.elapsed_s() + needed_s >= self.limits.time_limit_s else None

    def _calibrate(self, proposed: Sequence[Trial]) -> None:
        """With what ran in this round, the fastest last: its figures count where several disagree."""
        ran = [trial for trial in proposed if trial.runs and not trial.failure]
        if not ran:
            return
        self.hear(f"round {self.rounds}: calibrating the profile with {len(ran)} plans")
        ran.sort(key=lambda trial: -(trial.measured_ns or 0))
        self.workload = self.bench.calibrate(self.workload, ran)
        self._predict()

    def _result(self, reason: _StoppedBy) -> TuningResult:
        assert self.preferred is not None
        return TuningResult(
            trials=tuple(self.trials.values()),
            chosen=_fastest(self.trials.values()) or self.preferred,
            preferred=self.preferred,
            workload=self.workload,
            stopped_by=reason,
            rounds=self.rounds,
        )


def _fastest(trials: Iterable[Trial]) -> Trial | None:
    """By the clock; a plan that failed once is none to keep."""
    measured = [trial for trial in trials if trial.runs and not trial.failure]
    return min(measured, key=lambda trial: trial.measured_ns or 0, default=None)

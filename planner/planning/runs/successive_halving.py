"""Several runs share the time of one question: rounds, from all that are open down to the best.

    all          on many devices first plans, the least estimate first
    all          baselines, then bounds; the last first
    rounds       every open run has an equal slice of a round; the better half goes on to the next one
    the last     what is left belongs to the best

A run is closed as soon as its bound reaches what others have; a quick bound is tried before anything is played. There
are as many rounds as it takes to leave one run, and they last equally long: of two the better one has three quarters of
the time of search, of four the best has 7/12. Where the runs of a round are closed early, those that were left behind
have their time.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from planner.plan import Plan
from planner.planning.runs.resumable_run import PausableRun
from planner.planning.search_state import NO_PLAN_SHARE
from planner.progress import Limits, Progress

Run = TypeVar("Run", bound=PausableRun)


class SuccessiveHalving(ABC, Generic[Run]):
    """The runs, and the best plan among theirs."""

    def __init__(
        self, limits: Limits, *, on_progress: Callable[[Progress], None], should_stop: Callable[[], bool]
    ) -> None:
        self.limits, self.on_progress, self.should_stop = limits, on_progress, should_stop
        self.runs: list[Run] = []

    @abstractmethod
    def rank(self, run: Run) -> Any:
        """What speaks for a run, the best first."""

    @abstractmethod
    def name(self, run: Run) -> str:
        """What tells it from the others."""

    @abstractmethod
    def limit_ns(self, run: Run) -> int | None:
        """Only plans of the run that are faster than this are better than what is known of others, if anything is."""

    @property
    @abstractmethod
    def gap(self) -> float | None:
        """What the bound leaves open below the best plan."""

    @property
    def best(self) -> Run | None:
        """The run with the best plan."""
        return min((run for run in self.runs if run.objective_ns is not None), key=self.rank, default=None)

    @property
    def best_ns(self) -> int | None:
        """The objective of the best plan."""
        return None if self.best is None else self.best.objective_ns

    @property
    def elapsed_s(self) -> float:
        """Seconds of all runs."""
        return sum(run.state.elapsed_s for run in self.runs)

    @property
    def lower_bound_ns(self) -> int | None:
        """What no plan of any run is below, once that is known of all of them."""
        bounds = [run.lower_bound_ns for run in self.runs if not run.infeasible]
        known = [bound for bound in bounds if bound is not None]
        return min(known) if known and len(known) == len(bounds) else None

    def hear(self, progress: Progress) -> None:
        """A step of one run, told as a step of all."""
        best = self.best
        self.on_progress(
            Progress(
                elapsed_s=self.elapsed_s,
                phase=progress.phase,
                incumbent=None if best is None or best.state.plan is None else self.told(best.state.plan),
                incumbent_ns=self.best_ns,
                lower_bound_ns=self.lower_bound_ns,
                gap=self.gap,
                source="" if best is None else f"{best.state.source}, {self.name(best)}",
            )
        )

    def told(self, plan: Plan) -> Plan:
        """A run's plan as an answer to the question that all of them share."""
        return plan

    def make_first_plans(self, runs: Sequence[Run], start: Plan | None) -> None:
        """Baselines of some runs, or only the proofs that some are closed once the time for first plans is over.

        Before them, the most promising ones first, come plans that need little time.
        """
        for run in reversed(runs):
            known = min(each.estimate_ns for each in runs)
            self.take_up(run, partial(PausableRun.lay_out, known=known))
        for run in sorted(runs, key=lambda each: each.estimate_ns):
            if run.estimate_ns < math.inf and not self.is_late(NO_PLAN_SHARE):
                self.take_up(run, lambda each: each.begin())
        for run in reversed(runs):
            if self.is_late(NO_PLAN_SHARE):
                self.take_up(run, lambda each: each.rule_out())
            else:
                self.take_up(run, lambda each: each.make_first_plans(start))

    def bound(self, runs: Sequence[Run]) -> None:
        """The bounds of some runs; what of them is quick once the time is over."""
        for run in reversed(runs):
            if self.is_late(1.0):
                self.take_up(run, lambda each: each.bound_quickly())
            else:
                self.take_up(run, lambda each: each.bound())

    def is_late(self, share: float) -> bool:
        """Whether there is a plan, and that part of the time is over, so that runs not looked at must wait."""
        is_timed = self.limits.max_rounds is None
        return is_timed and self.best is not None and self.elapsed_s >= share * self.limits.time_limit_s

    def take_up(self, run: Run, step: Callable[[Run], object]) -> None:
        """Let one run take a step, with what is known of the others."""
        run.state.rival_ns = self.limit_ns(run)
        if not run.infeasible:
            with run.active():
                step(run)

    def search(self) -> None:
        """Rounds from all open runs down to one, and again among those that were left behind."""
        while field := self.open(self.runs):
            while True:
                self.run_round(field)
                if len(field) == 1:
                    break
                field = sorted(field, key=self.rank)[: (len(field) + 1) // 2]
            if field[0].has_had_its_rounds:
                break

    def open(self, runs: list[Run]) -> list[Run]:
        """Those whose search may find a better plan than is known; none once the time is over."""
        if self.is_over():
            return []
        return [run for run in runs if self.is_open(run) and not run.has_ended]

    def is_open(self, run: Run) -> bool:
        """Whether a plan of the run may be better than the best."""
        limits = (self.limit_ns(run), run.objective_ns)
        return run.is_open(min((each for each in limits if each is not None), default=None))

    def is_over(self) -> bool:
        """Whether the time is, or what was asked for is reached."""
        is_reached = self.gap is not None and self.gap <= self.limits.gap
        return is_reached or self.should_stop() or self.elapsed_s >= self.limits.time_limit_s

    def run_round(self, field: list[Run]) -> None:
        """A slice of this round for every run in it; one alone goes on to its end."""
        counts = [len(field)]
        while counts[-1] > 1:
            counts.append((counts[-1] + 1) // 2)
        round_s = max(0.0, self.limits.time_limit_s - self.elapsed_s) / len(counts)
        horizon_s = round_s * sum(1 / count for count in counts)
        most = self.limits.max_rounds
        for run in field:
            if not self.open([run]):
                continue
            if len(field) == 1:
                self.take_up(run, lambda each: each.search_to_the_end(round_s))
            elif most is None:
                self.take_up(run, lambda each: each.search(round_s / len(field), horizon_s=horizon_s))
            else:
                self.take_up(run, lambda each: each.search_rounds(most >> (len(counts) - 1), horizon_s=round_s))

    def stopped_by(self) -> str:
        """Why the search ended."""
        if self.gap is not None and self.gap <= self.limits.gap:
            return "proof" if self.gap <= 0 else "gap"
        if any(run.state.stopped_by == "internal_error" for run in self.runs):
            return "internal_error"
        if self.should_stop():
            return "user"
        ends = {run.state.stopped_by for run in self.runs if self.is_open(run)}
        if ends == {"no_improvement"}:
            return "no_improvement"
        is_timed = self.limits.max_rounds is None or self.elapsed_s >= self.limits.time_limit_s
        return "time" if is_timed or "time" in ends else "rounds"

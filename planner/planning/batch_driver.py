"""A global batch: one run per size of microbatches, one incumbent for all, and the time dealt among them.

    all sizes    baselines, then bounds; the largest first, whose plans have the fewest actions
    heats        every open size has an equal slice of a heat; the better half goes on to the next one
    the last     what is left belongs to the best size

A size is closed as soon as its bound reaches the best plan of all sizes; a quick bound is tried before anything is
played. There are as many heats as it takes to leave
one size, and they last equally long: of two sizes the better one has three quarters of the time of search, of four the
best has 7/12. Where the sizes of a heat are closed early, those that were left behind have their time.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Unpack

from planner.batch_problem import BatchProblem
from planner.certificate import least_over_sizes
from planner.errors import InfeasibleProblemError
from planner.plan import Plan
from planner.planning.complete_search import require_answerable
from planner.planning.driver import PlanningOptions, ignore, never
from planner.planning.evidence import Conclusion, finish
from planner.planning.planning_params import SearchParams
from planner.planning.size_run import SizeRun
from planner.progress import Limits, Progress


def make_batch_plan(question: BatchProblem, **how: Unpack[PlanningOptions]) -> Plan:
    """The best verified plan over all sizes of microbatches, never worse than any baseline that fits at any of them.

    `limits.max_rounds` counts the rounds of the size that has most. Otherwise as `planner.planning.make_plan`.
    """
    limits, params = how.get("limits") or Limits(), how.get("params", SearchParams())
    require_answerable(question, limits)
    sizes = _Sizes(limits, on_progress=how.get("on_progress") or ignore, should_stop=how.get("should_stop") or never)
    share = replace(limits, time_limit_s=limits.time_limit_s / len(question.sizes))
    with ExitStack() as stack:
        for problem in question.candidates:
            run = SizeRun(
                problem,
                share,
                on_progress=sizes.hear,
                should_stop=sizes.should_stop,
                target=how.get("target"),
                params=params,
            )
            run.state.num_runs = len(question.sizes)
            sizes.runs.append(stack.enter_context(run))
        stack.enter_context(sizes.runs[0].state.collected_rarely())
        sizes.make_first_plans(how.get("start"), share=params.first_plans.no_plan_share)
        sizes.bound()
        sizes.search()
        return sizes.finish()


class _Sizes:
    """The runs at all sizes, and the best plan among theirs."""

    def __init__(
        self, limits: Limits, *, on_progress: Callable[[Progress], None], should_stop: Callable[[], bool]
    ) -> None:
        self.limits, self.on_progress, self.should_stop = limits, on_progress, should_stop
        self.runs: list[SizeRun] = []

    @property
    def best(self) -> SizeRun | None:
        """The run with the best plan; of equals the one with the smaller microbatches."""
        return min((run for run in self.runs if run.objective_ns is not None), key=lambda run: run.rank, default=None)

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
        """What no plan of any size is below, once that is known of all of them."""
        bounds = [run.lower_bound_ns for run in self.runs if not run.infeasible]
        known = [bound for bound in bounds if bound is not None]
        return min(known) if known and len(known) == len(bounds) else None

    @property
    def gap(self) -> float | None:
        """What the bound leaves open below the best plan."""
        if self.best_ns is None or self.lower_bound_ns is None:
            return None
        return (self.best_ns - self.lower_bound_ns) / max(self.best_ns, 1)

    def hear(self, progress: Progress) -> None:
        """A step of one run, told as a step of all."""
        best = self.best
        self.on_progress(
            Progress(
                elapsed_s=self.elapsed_s,
                phase=progress.phase,
                incumbent=None if best is None else best.state.plan,
                incumbent_ns=self.best_ns,
                lower_bound_ns=self.lower_bound_ns,
                gap=self.gap,
                source="" if best is None else f"{best.state.source}, microbatches of {best.size}",
            )
        )

    def make_first_plans(self, start: Plan | None, *, share: float) -> None:
        """Baselines of all sizes, or only the proofs that some are closed once that part of the time is over."""
        for run in reversed(self.runs):
            if self.is_late(share):
                self.take_up(run, lambda each: each.rule_out())
            else:
                self.take_up(run, lambda each: each.make_first_plans(start))

    def bound(self) -> None:
        """The bounds of all sizes; what of them is quick once the time is over."""
        for run in reversed(self.runs):
            if self.is_late(1.0):
                self.take_up(run, lambda each: each.bound_quickly())
            else:
                self.take_up(run, lambda each: each.bound())

    def is_late(self, share: float) -> bool:
        """Whether there is a plan, and that part of the time is over, so that sizes not looked at must wait."""
        is_timed = self.limits.max_rounds is None
        return is_timed and self.best is not None and self.elapsed_s >= share * self.limits.time_limit_s

    def take_up(self, run: SizeRun, step: Callable[[SizeRun], object]) -> None:
        """Let one run take a step, with what is known of the others."""
        others = [each.objective_ns for each in self.runs if each is not run]
        run.state.rival_ns = min((each for each in others if each is not None), default=None)
        if not run.infeasible:
            with run.active():
                step(run)

    def search(self) -> None:
        """Heats from all open sizes down to one, and again among those that were left behind."""
        while field := self._open(self.runs):
            while True:
                self._run_heat(field)
                if len(field) == 1:
                    break
                field = sorted(field, key=lambda run: run.rank)[: (len(field) + 1) // 2]
            if field[0].has_had_its_rounds:
                break

    def _open(self, runs: list[SizeRun]) -> list[SizeRun]:
        """Those whose search may find a better plan than the best; none once the time is over."""
        if self._is_over():
            return []
        return [run for run in runs if run.is_open(self.best_ns) and not run.has_ended]

    def _is_over(self) -> bool:
        """Whether the time is, or what was asked for is reached."""
        is_reached = self.gap is not None and self.gap <= self.limits.gap
        return is_reached or self.should_stop() or self.elapsed_s >= self.limits.time_limit_s

    def _run_heat(self, field: list[SizeRun]) -> None:
        """A slice of this heat for every size in it; one alone goes on to its end."""
        counts = [len(field)]
        while counts[-1] > 1:
            counts.append((counts[-1] + 1) // 2)
        heat_s = max(0.0, self.limits.time_limit_s - self.elapsed_s) / len(counts)
        horizon_s = heat_s * sum(1 / count for count in counts)
        most = self.limits.max_rounds
        for run in field:
            if not self._open([run]):
                continue
            if len(field) == 1:
                self.take_up(run, lambda each: each.search_to_the_end(heat_s))
            elif most is None:
                self.take_up(run, lambda each: each.search(heat_s / len(field), horizon_s=horizon_s))
            else:
                self.take_up(run, lambda each: each.search_rounds(most >> (len(counts) - 1), horizon_s=heat_s))

    def finish(self) -> Plan:
        """The best plan with its evidence."""
        for run in self.runs:
            run.close()
        if self.best is None:
            self._give_up()
            return finish(next(run.state for run in self.runs if not run.infeasible))
        claims = [run.ruled_out_ns for run in self.runs]
        has_claim = any(run.state.solver_bound_ns is not None or run.is_empty for run in self.runs)
        entries = {run.size: run.infeasible or run.state.lower_bound for run in self.runs}
        conclusion = Conclusion(
            bound=least_over_sizes({size: entry for size, entry in entries.items() if entry is not None}),
            solver_bound_ns=int(min(*claims, self.best_ns or 0)) if has_claim else None,
            stopped_by=self._stopped_by(),
            sizes=tuple(run.result(self.best_ns, is_best=run is self.best) for run in self.runs),
        )
        return finish(self.best.state, conclusion)

    def _give_up(self) -> None:
        """Raise InfeasibleProblemError if no size has a plan, and that is known of each."""
        if all(run.infeasible or run.is_empty for run in self.runs):
            known = {run.infeasible or "a complete search found none": run.size for run in reversed(self.runs)}
            reasons = "; ".join(f"microbatches of {size}: {reason}" for reason, size in reversed(known.items()))
            raise InfeasibleProblemError(f"no plan fits at any size. {reasons}")

    def _stopped_by(self) -> str:
        if self.gap is not None and self.gap <= self.limits.gap:
            return "proof" if self.gap <= 0 else "gap"
        if any(run.state.stopped_by == "internal_error" for run in self.runs):
            return "internal_error"
        if self.should_stop():
            return "user"
        ends = {run.state.stopped_by for run in self.runs if run.is_open(self.best_ns)}
        if ends == {"no_improvement"}:
            return "no_improvement"
        is_timed = self.limits.max_rounds is None or self.elapsed_s >= self.limits.time_limit_s
        return "time" if is_timed or "time" in ends else "rounds"

"""The planning run of one size of microbatches."""

import math
from collections.abc import Sequence

from planner.evidence.certificate import least_over_sizes, rules_out_every_deadline
from planner.plan import BaselineResult, SizeResult, SizeState
from planner.planning.evidence import Conclusion
from planner.planning.runs.resumable_run import PausableRun


class SizeRun(PausableRun):
    """One of the runs of a global batch."""

    @property
    def size(self) -> int:
        """Samples of a microbatch."""
        size = self.state.problem.profile.microbatch_size
        assert size is not None
        return size

    @property
    def rank(self) -> tuple[float, float, int]:
        """What speaks for it, the best first: its plan, its bound, and the smaller size among equals."""
        objective, least = self.objective_ns, self.lower_bound_ns
        return math.inf if objective is None else objective, 0 if least is None else least, self.size

    def result(self, chosen_ns: int, *, is_chosen: bool) -> SizeResult:
        """What was found, beside a plan of this size or another; `chosen_ns`: its objective."""
        limits, baseline = self.state.limits, self._best_baseline()
        return SizeResult(
            microbatch_size=self.size,
            num_microbatches=self.state.problem.num_microbatches,
            state="best" if is_chosen else self._condition(chosen_ns),
            objective_ns=chosen_ns if is_chosen else self.objective_ns,
            lower_bound_ns=self.lower_bound_ns,
            solver_bound_ns=self.state.solver_bound_ns,
            baseline="" if baseline is None else baseline.name,
            baseline_ns=None if baseline is None else self._objective_of(baseline),
            rounds=self.state.rounds,
            seconds=round(self.state.elapsed_s, 3) if limits.max_rounds is None else None,
            note=self._why_no_plan(),
        )

    def _why_no_plan(self) -> str:
        """Why no plan of this size fits, if that is known; empty otherwise."""
        if self.is_empty:
            return "a complete search found no plan that fits"
        is_refuted = self.objective_ns is None and rules_out_every_deadline(
            self.state.problem, self.lower_bound_ns or 0
        )
        return self.infeasible or ("its bound leaves no time at which a plan could end" if is_refuted else "")

    def _condition(self, chosen_ns: int) -> SizeState:
        if self.infeasible:
            return "infeasible"
        if self.objective_ns is not None and self.objective_ns < chosen_ns:
            return "better"
        return "open" if self.is_open(chosen_ns) else "closed"

    def _best_baseline(self) -> BaselineResult | None:
        rows = [row for row in self.state.baselines if row.fits_memory and self._objective_of(row) is not None]
        return min(rows, key=lambda row: self._objective_of(row) or 0, default=None)

    def _objective_of(self, row: BaselineResult) -> int | None:
        return row.span_ns if self.state.problem.options.objective == "span" else row.makespan_ns


def conclude(runs: Sequence[SizeRun], chosen: SizeRun, *, objective_ns: int, stopped_by: str) -> Conclusion:
    """What the runs of all sizes have shown of all plans, beside a plan that one of them found."""
    has_claim = any(run.state.solver_bound_ns is not None or run.is_empty for run in runs)
    entries = {run.size: run.infeasible or run.state.lower_bound for run in runs}
    return Conclusion(
        bound=least_over_sizes({size: entry for size, entry in entries.items() if entry is not None}),
        solver_bound_ns=int(min(*(run.ruled_out_ns for run in runs), objective_ns)) if has_claim else None,
        searched_ns=int(min(*(run.shown_ns for run in runs), objective_ns)) if has_claim else None,
        stopped_by=stopped_by,
        sizes=tuple(run.result(objective_ns, is_chosen=run is chosen) for run in runs),
    )

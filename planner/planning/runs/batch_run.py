"""A global batch: one run per size of microbatches, one incumbent for all, and the time dealt among them.

All sizes are played and bounded, the largest first, whose plans have the fewest actions; then
`planner.planning.runs.successive_halving`.
"""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import NoReturn, Unpack

from planner.batch_problem import BatchProblem
from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.plan import Plan
from planner.planning.archive import OVERTIME_SHARE, Archive
from planner.planning.complete.complete_search import require_answerable
from planner.planning.evidence import Conclusion, finish, why_none_was_found
from planner.planning.planning_params import SearchParams
from planner.planning.runs.run import PlanningOptions, archive_kinds, ignore, never
from planner.planning.runs.size_run import SizeRun, conclude
from planner.planning.runs.successive_halving import SuccessiveHalving
from planner.progress import Limits


def make_batch_plans(question: BatchProblem, *, top: int, **how: Unpack[PlanningOptions]) -> tuple[Plan, ...]:
    """The best verified plan over all sizes of microbatches, never worse than any baseline that fits at any of them.

    Behind it the best plans of other kinds, at most `top` in all; plans of different sizes differ in kind.
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
            archive_kinds(run.state, top)
            sizes.runs.append(stack.enter_context(run))
        stack.enter_context(sizes.runs[0].state.collected_rarely())
        sizes.make_first_plans(sizes.runs, how.get("start"))
        sizes.bound(sizes.runs)
        sizes.search()
        best = sizes.finish()
        return (best, *sizes.others(best, most=top - 1))


class _Sizes(SuccessiveHalving[SizeRun]):
    """The runs at all sizes, and the best plan among theirs."""

    def rank(self, run: SizeRun) -> tuple[float, float, int]:
        """Its plan, its bound, and the smaller size among equals."""
        return run.rank

    def name(self, run: SizeRun) -> str:
        """Its size."""
        return f"microbatches of {run.size}"

    def limit_ns(self, run: SizeRun) -> int | None:
        """The best plan of the others."""
        others = (each.objective_ns for each in self.runs if each is not run)
        return min((each for each in others if each is not None), default=None)

    @property
    def gap(self) -> float | None:
        """What the bound leaves open below the best plan."""
        if self.best_ns is None or self.lower_bound_ns is None:
            return None
        return (self.best_ns - self.lower_bound_ns) / max(self.best_ns, 1)

    def finish(self) -> Plan:
        """The best plan with its evidence."""
        for run in self.runs:
            run.close()
        if self.best is None:
            self._give_up()
        assert self.best_ns is not None
        return finish(self.best.state, self._conclude(self.best, self.best_ns))

    def _conclude(self, chosen: SizeRun, objective_ns: int) -> Conclusion:
        return conclude(self.runs, chosen, objective_ns=objective_ns, stopped_by=self.stopped_by())

    def others(self, best: Plan, *, most: int) -> list[Plan]:
        """The best plans of other kinds that any run came by."""
        found: list[tuple[int, Plan]] = []
        for run in self.runs:
            archive = run.state.witness
            if isinstance(archive, Archive):
                with run.active():
                    share = OVERTIME_SHARE / len(self.runs)
                    found += archive.others(run.state, best, conclude=partial(self._conclude, run), share=share)
        return [plan for _, plan in sorted(found, key=lambda each: each[0])][:most]

    def _give_up(self) -> NoReturn:
        """Raise what is known: that no size has a plan, or only that none was found."""
        if all(run.infeasible or run.is_empty for run in self.runs):
            known = {run.infeasible or "a complete search found none": run.size for run in reversed(self.runs)}
            reasons = "; ".join(f"microbatches of {size}: {reason}" for reason, size in reversed(known.items()))
            raise InfeasibleProblemError(f"no plan fits at any size. {reasons}")
        states = [run.state for run in self.runs if not run.infeasible]
        for state in (each for each in states if each.rejected is not None):
            finish(state)
        raise NoPlanFoundError(
            f"none in {self.elapsed_s:.0f} s of search at any size of microbatches; "
            f"{'; '.join(why_none_was_found(states))}"
        )

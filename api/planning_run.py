"""One planning run: progress told, Ctrl+C heard, a rejected plan kept as a bundle."""

from dataclasses import dataclass
from functools import partial

from rich.console import Console

from api.bundle import render_bundle, save_bundle
from api.interrupts import Interrupts
from api.progress import Reporter, Run, Voice
from planner.errors import NoPlanFoundError, PlanError
from planner.export.targets import Target, fitted
from planner.plan import Plan
from planner.problem import Problem
from planner.progress import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How a run shall go."""

    time_limit_s: float
    """Wall-clock limit."""
    gap: float | None
    """The gap asked for, if one was."""
    seed: int
    """Seed of every random choice."""
    voice: Voice
    """How it reports."""
    max_rounds: int | None = None
    """Deterministic limit, if one was given."""

    def is_missed_by(self, plan: Plan) -> bool:
        """Whether a gap was asked for that the plan does not reach."""
        return self.gap is not None and plan.evidence is not None and plan.evidence.gap > self.gap


def run_plan(
    problem: Problem, wishes: Wishes, *, console: Console, target: Target | None = None, start: Plan | None = None
) -> tuple[Plan, Run]:
    """The best plan found under `wishes`, and how the run went; raises as `make_plan` does, or KeyboardInterrupt."""
    fit = None if target is None else partial(fitted, problem, target=target)
    with Reporter(console, wishes.voice) as reporter, Interrupts(on_first=reporter.stop) as interrupts:
        from planner.planning import make_plan  # the solvers come with it, so the live line comes first

        limits = Limits(
            time_limit_s=wishes.time_limit_s, gap=wishes.gap or 0.0, seed=wishes.seed, max_rounds=wishes.max_rounds
        )
        try:
            plan = make_plan(
                problem,
                limits=limits,
                start=start,
                on_progress=reporter.hear,
                should_stop=interrupts.is_asked_to_stop,
                fit=fit,
            )
        except NoPlanFoundError:
            if interrupts.is_asked_to_stop():
                raise KeyboardInterrupt from None
            raise
        except PlanError as error:
            path = save_bundle(render_bundle(problem, limits, error=error))
            raise PlanError(f"{error}; what it takes to see it again is in {path}") from error
    return plan, Run(elapsed_s=reporter.elapsed_s, first_plan_s=reporter.first_plan_s)

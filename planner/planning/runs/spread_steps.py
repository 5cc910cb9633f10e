"""First plans and bounds of several candidates as tasks of workers: what a run holds goes out, and comes back grown.

What comes back is not trusted: plans are verified, bounds derived again from their certificates.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from planner.evidence.certificate import Bound, check_certificate, prove_infeasible
from planner.plan import Plan
from planner.planning.planning_params import SearchParams
from planner.planning.runs.candidate_run import CandidateRun, Choice
from planner.planning.runs.run import ignore, never
from planner.planning.search_state import NO_PLAN_SHARE
from planner.problem import Problem
from planner.progress import Limits
from solver_models.local_search.portable_tasks import PortableTask

_QUICK = ("rule_out", "bound_quickly")
"""What is left of bounds once there is no time for more."""
_FIELDS = ("pipelines", "seeds", "seed_source", "baselines", "layouts", "played", "dropped", "tallies")
"""What steps before the search leave in a run for those that follow, beside its plan and its bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a run holds, or has come to hold."""

    fields: dict[str, Any] = field(default_factory=dict)
    known: float = math.inf
    """The least estimate of a first plan that any run has."""
    rival_ns: int | None = None
    """Objective of the best plan that any other run has."""
    plan: Plan | None = None
    source: str = ""
    bound: Bound | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSteps:
    """The steps of a run on one candidate, wherever they are taken."""

    problem: Problem
    limits: Limits
    num_runs: int
    params: SearchParams

    def take(self, steps: tuple[str, ...], held: Contents) -> Contents:
        """What the run holds after some steps; the plan that it holds is the one to start from."""
        how: dict[str, Any] = {"transition": None, "cluster": self.problem.cluster, "target": None}
        with CandidateRun(
            self.problem,
            self.limits,
            choice=Choice((), None),
            top=1,
            on_progress=ignore,
            should_stop=never,
            params=self.params,
            **how,
        ) as run:
            state = run.state
            for name, value in held.fields.items():
                setattr(state, name, value)
            state.num_runs, state.rival_ns = self.num_runs, held.rival_ns
            with run.active():
                for step in steps:
                    if not run.infeasible:
                        _take_step(step, run, held=held)
        return Contents(fields=_fields_of(run), plan=state.plan, source=state.source, bound=state.lower_bound)


def _take_step(step: str, run: CandidateRun, *, held: Contents) -> None:
    if step == "lay_out":
        run.lay_out(held.known)
    elif step == "make_first_plans":
        run.make_first_plans(held.plan)
    elif step != "bound" or not run.is_empty:
        getattr(run, step)()


def _fields_of(run: CandidateRun) -> dict[str, Any]:
    return {name: getattr(run.state, name) for name in _FIELDS}


class Field(Protocol):
    """What a driver knows of all runs."""

    runs: list[CandidateRun]

    def is_late(self, share: float) -> bool:
        """Whether there is a plan, and that part of the time is over."""

    def limit_ns(self, run: CandidateRun) -> int | None:
        """What plans of the run have to be below."""

    def note_bound(self, run: CandidateRun) -> None:
        """Make use of a run's bound for others."""


def begin_on_workers(driver: Field, runs: list[CandidateRun], *, start: Plan | None) -> None:
    """First plans and bounds of the runs, each step for all of them side by side."""
    with runs[0].active():
        _take(driver, reversed(runs), steps=("lay_out",))
        promising = [run for run in runs if run.estimate_ns < math.inf]
        _take(driver, sorted(promising, key=lambda run: run.estimate_ns), steps=("begin",), until=NO_PLAN_SHARE)
        _take(driver, reversed(runs), steps=("rule_out", "bound"))  # quick, and nothing is certified before
        _take(driver, reversed(runs), steps=("make_first_plans",), until=NO_PLAN_SHARE, start=start)


def _take(
    driver: Field,
    runs: Iterable[CandidateRun],
    *,
    steps: tuple[str, ...],
    until: float | None = None,
    start: Plan | None = None,
) -> None:
    """Steps of all runs that may be better; past `until`, a part of the time limit, none begins.

    Bounds have no end of their own: once the time for first plans is over, what is quick of them remains.
    """
    window = driver.runs[0].state.window
    for run in runs:
        window.make_room(1)
        if until is not None and driver.is_late(until):
            break
        if not run.infeasible:
            is_late = "bound" in steps and driver.is_late(NO_PLAN_SHARE)
            held = Contents(
                fields=_fields_of(run),
                known=min(each.estimate_ns for each in driver.runs),
                rival_ns=driver.limit_ns(run),
                plan=start,
            )
            task = PortableTask(_steps_of(run), "take", (_QUICK if is_late else steps, held))
            window.start([task], _taker(driver, run))
    window.drain()


def _steps_of(run: CandidateRun) -> CandidateSteps:
    state = run.state
    limits = replace(state.limits, threads=1)
    return CandidateSteps(problem=state.problem, limits=limits, num_runs=state.num_runs, params=state.params)


def _taker(driver: Field, run: CandidateRun) -> Callable[[Contents, float], None]:
    return lambda found, _: _take_in(driver, run, found=found)


def _take_in(driver: Field, run: CandidateRun, *, found: Contents) -> None:
    """What a worker found, as far as it holds here."""
    state = run.state
    for name, value in found.fields.items():
        setattr(state, name, value)
    run.infeasible = prove_infeasible(state.problem, state.costs) or ""
    state.rival_ns = driver.limit_ns(run)
    if found.plan is not None and state.offer(found.plan, None, source=found.source):
        state.report("baselines")
    if found.bound is not None and _is_derivable(state.problem, found.bound):
        state.lower_bound = found.bound
        driver.note_bound(run)
        state.report("bound")
    elif found.bound is not None:
        run.bound_quickly()


def _is_derivable(problem: Problem, bound: Bound) -> bool:
    """Whether the certificate proves what is said of it."""
    try:
        return check_certificate(replace(problem, batch=None), bound.certificate) >= bound.value_ns
    except ValueError:
        return False

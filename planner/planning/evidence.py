"""The end of a planning run: the incumbent with everything that speaks for it, verified once more."""

from dataclasses import replace
from importlib.metadata import version

from planner.certificate import schedule_bound
from planner.enclosure import enclose
from planner.errors import NoPlanFoundError, PlanError
from planner.plan import Evidence, Plan
from planner.planning.run import Run
from planner.timeline import Timeline
from planner.verify import verify

MAX_BOUNDED_ACTIONS = 400_000
"""Larger plans come without a schedule bound, which would take as long as the rest."""


def finish(run: Run) -> Plan:
    """The incumbent with its evidence, verified once more as a whole."""
    if run.plan is None or run.timeline is None:
        if run.rejected is not None:
            first = run.rejected.violations[0]
            raise PlanError(f"the verifier rejected every plan found; the last one: {first.message}")
        raise NoPlanFoundError(
            f"no plan was found in {run.elapsed_s:.0f} s; no limit was proved to rule one out: allow more time, "
            "more memory, recomputation or more stages per device"
        )
    plan = replace(run.plan, evidence=make_evidence(run, run.plan, timeline=run.timeline))
    verdict = verify(run.problem, plan, earlier=run.verdict if run.is_large else None)
    if not verdict.passed:
        raise PlanError(f"the verifier rejected the final plan: {verdict.violations[0].message}")
    return plan


def make_evidence(run: Run, plan: Plan, *, timeline: Timeline) -> Evidence:
    """Figures, bound, baselines and history of the incumbent."""
    assert run.lower_bound is not None
    objective = timeline.objective_ns(run.problem.options.objective)
    gap = run.gap or 0.0
    fixed = None
    if run.num_actions <= MAX_BOUNDED_ACTIONS:
        fixed = schedule_bound(run.problem, plan.stages, costs=run.costs, reached=objective)
    return Evidence(
        makespan_ns=timeline.makespan_ns,
        span_ns=timeline.span_ns,
        bubble=timeline.bubble,
        peak_bytes=dict(timeline.peak_bytes),
        lower_bound_ns=run.lower_bound.value_ns,
        bound_kind=run.lower_bound.kind,
        certificate={**run.lower_bound.certificate, **enclose(run.problem)},
        gap=gap,
        schedule_bound_ns=None if fixed is None else max(fixed, run.lower_bound.value_ns),
        solver_bound_ns=run.solver_bound_ns,
        solution_status="optimal" if objective <= run.lower_bound.value_ns else "feasible",
        stopped_by=run.stopped_by or ("proof" if gap <= 0 else "rounds"),
        source=run.source,
        baselines=tuple(run.baselines),
        interpolated_costs=run.costs.unmeasured_costs(plan.stages),
        planner_version=version("pipeline-planner"),
        solver_versions=run.solvers,
        seed=run.limits.seed,
        verdict={"passed": True, "violations": []},
    )

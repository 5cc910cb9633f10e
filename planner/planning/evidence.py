"""The end of a planning run: the incumbent with everything that speaks for it, verified once more."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from planner.documents.embedded_problem import enclose
from planner.errors import InfeasibleProblemError, NoPlanFoundError, PlanError
from planner.evidence.certificate import Bound, rules_out_every_deadline, schedule_bound
from planner.plan import Evidence, Plan, ProvedBy, SizeResult, Stage
from planner.planning.named_params import changed_params
from planner.planning.search_state import COMPLETE, MAX_BOUNDED_ACTIONS, SearchState
from planner.problem import Problem
from planner.release import RELEASE
from planner.simulation.timeline import Timeline
from planner.verify import verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What a run has shown of all plans, not of its incumbent alone."""

    bound: Bound
    """Lower bound on every plan, with its certificate."""
    solver_bound_ns: int | None
    """What a complete search or a solver claims that no plan is below."""
    stopped_by: str
    """Why the search ended, if nothing else says so."""
    searched_ns: int | None = None
    """What of that a complete search has shown by rules of its own, without a solver's word."""
    sizes: tuple[SizeResult, ...] = ()
    """What was found at every size of microbatches, if that was to be decided."""

    @classmethod
    def of(cls, run: SearchState) -> "Conclusion":
        """The conclusion of a single run."""
        assert run.lower_bound is not None
        return cls(
            bound=run.lower_bound,
            solver_bound_ns=run.solver_bound_ns,
            stopped_by=run.stopped_by,
            searched_ns=run.searched_ns,
        )

    def proof_of(self, objective: int) -> ProvedBy | None:
        """What shows that a plan is optimal, if anything does."""
        if objective <= self.bound.value_ns:
            return "certificate"
        return "complete search" if self.searched_ns is not None and self.searched_ns >= objective else None


def finish(run: SearchState, conclusion: Conclusion | None = None) -> Plan:
    """The incumbent with its evidence, verified once more as a whole; `conclusion`: what more than this run shows."""
    if run.plan is None or run.timeline is None:
        if run.rejected is not None:
            first = run.rejected.violations[0]
            raise PlanError(f"the verifier rejected every plan found; the last one: {first.message}")
        raise NoPlanFoundError(f"none in {run.elapsed_s:.0f} s of search; {'; '.join(why_none_was_found([run]))}")
    plan = replace(
        run.plan,
        stages=_with_degrees(run.problem, run.plan),
        evidence=make_evidence(run, conclusion or Conclusion.of(run), timeline=run.timeline),
    )
    verdict = verify(run.problem, plan, earlier=run.verdict if run.is_large else None)
    if not verdict.passed:
        raise PlanError(f"the verifier rejected the final plan: {verdict.violations[0].message}")
    return plan


def _with_degrees(problem: Problem, plan: Plan) -> tuple[Stage, ...]:
    """What the groups of every stage share, where the profile has names for any of it."""
    if not problem.profile.degrees:
        return plan.stages
    held = [asdict(problem.profile.degrees_at(len(stage.replicas[0]))) for stage in plan.stages]
    named = [tuple((name, value) for name, value in each.items() if value > 1) for each in held]
    return tuple(replace(stage, degrees=each) for stage, each in zip(plan.stages, named, strict=True))


def why_none_was_found(runs: Sequence[SearchState]) -> list[str]:
    """What is known of why there is no incumbent in any of these runs: dropped plans, and baselines that do not fit."""
    reasons = dict.fromkeys(reason for run in runs for reason in run.dropped.reasons(most=2))
    played = [row for run in runs for row in run.baselines if row.peak_fraction is not None]
    least = min(played, key=lambda row: row.peak_fraction or 0.0, default=None)
    if least is not None and not any(row.fits_memory for row in played):
        closest = f"none of {len(played)} baselines fits into memory, and the closest one, {least.name}, {least.note}"
        reasons[f"{closest}; use larger devices, smaller microbatches, recomputation or more stages per device"] = None
    return list(reasons) or [what_makes_room(runs[0].problem)]


def what_makes_room(problem: Problem) -> str:
    """What to change where nothing that is known rules a plan out: what is decided comes first."""
    options = problem.options
    said = {
        "partition": options.partition is not None,
        "placement": options.placement is not None,
        "pinned": bool(options.pinned),
        "idle_devices = false": not options.idle_devices,
        "skip_edges = false": not options.skip_edges,
        f"order = {options.order}": options.order != "any",
    }
    decided = [name for name, is_said in said.items() if is_said]
    more = "give more memory, recomputation or more stages per device"
    if decided:
        return (
            f"nothing that is known rules a plan out, but {', '.join(decided)} leave few; drop one of them, or {more}"
        )
    if problem.only_wider:
        names = ", ".join(problem.only_wider[:3])
        return f"layers that need several devices ({names}) share them with others only as equal groups; {more}"
    return f"nothing that is known rules a plan out; {more}"


def require_not_refuted(run: SearchState) -> None:
    """Raise InfeasibleProblemError if there is no plan and the bound rules out every deadline.

    With time without end only memory, and how many stages there may be on which devices, can rule a plan out.
    """
    bound = run.lower_bound
    if run.plan is not None or bound is None or not rules_out_every_deadline(run.problem, bound.value_ns):
        return
    problem, usable = run.problem, [device.usable_bytes for device in run.problem.cluster.devices]
    raise InfeasibleProblemError(
        f"no plan fits into memory: the {bound.kind} bound rules out every deadline on {len(usable)} devices of "
        f"{min(usable):,} to {max(usable):,} usable bytes (max_stages_per_device = "
        f"{problem.options.max_stages_per_device}, max_replicas = {problem.max_replicas}); use larger or more devices, "
        "smaller microbatches or recomputation, or allow more stages per device"
    )


def _has_time_for_schedule_bound(run: SearchState) -> bool:
    """Whether the bound of the plan's own stages can be derived without going far beyond the time limit."""
    if run.bounded_jobs > MAX_BOUNDED_ACTIONS:
        return False
    late_s = run.schedule_bound_s - run.seconds_left
    return run.limits.max_rounds is not None or late_s <= run.most_late_s


def make_evidence(
    run: SearchState,
    conclusion: Conclusion,
    *,
    timeline: Timeline,
    plan: Plan | None = None,
    source: str | None = None,
) -> Evidence:
    """Figures, bound, baselines and history of the incumbent, or of another plan, which `source` found.

    The bound of its own stages is derived for the incumbent only.
    """
    plan, bound = plan or run.plan, conclusion.bound
    assert plan is not None
    objective = timeline.objective_ns(run.problem.options.objective)
    proved_by = conclusion.proof_of(objective)
    fixed = bound.value_ns if objective <= bound.value_ns else None
    counted = "rounds" if run.limits.max_rounds is not None else "time"
    ended = conclusion.stopped_by or ("proof" if fixed is not None else counted)
    is_listed = run.problem.microbatches is not None
    if fixed is None and source is None and not is_listed and _has_time_for_schedule_bound(run):
        fixed = schedule_bound(run.problem, plan.stages, costs=run.costs, reached=objective)
    return Evidence(
        makespan_ns=timeline.makespan_ns,
        span_ns=timeline.span_ns,
        bubble=timeline.bubble,
        peak_bytes=dict(timeline.peak_bytes),
        lower_bound_ns=bound.value_ns,
        bound_kind=bound.kind,
        certificate={**bound.certificate, **enclose(run.problem)},
        gap=(objective - bound.value_ns) / max(objective, 1),
        schedule_bound_ns=None if fixed is None or is_listed else max(fixed, bound.value_ns),
        solver_bound_ns=conclusion.solver_bound_ns,
        solution_status="feasible" if proved_by is None else "optimal",
        proved_by=proved_by,
        stopped_by=COMPLETE if proved_by == "complete search" else ended,
        source=run.source if source is None else source,
        baselines=tuple(run.baselines),
        interpolated_costs=run.costs.unmeasured_costs_of(plan),
        timings=run.costs.describe_timings(),
        bucket_bytes=run.problem.profile.bucket_bytes,
        assumed_divisible=run.costs.assumed_divisible(plan.stages),
        planner_version=RELEASE,
        solver_versions=run.solvers,
        seed=run.limits.seed,
        verdict={"passed": True, "violations": []},
        threads=run.limits.num_threads if run.limits.max_rounds is None else None,
        workers=None if run.workers is None else run.workers.num_workers,
        worker_tasks=None if run.workers is None else run.workers.num_tasks,
        search_params=changed_params(run.params),
        improvers=run.improvers,
        sizes=conclusion.sizes,
    )

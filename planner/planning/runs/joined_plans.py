"""One answer from several runs on the same question: the best plan, and the best bound that any of them certified."""

from collections.abc import Sequence
from dataclasses import replace

from planner.batch_problem import Question, problem_for
from planner.errors import PlanError
from planner.evidence.certificate import check_certificate
from planner.plan import Evidence, Plan
from planner.planning.runs.run import ISLAND
from planner.planning.search_state import COMPLETE
from planner.problem import Problem
from planner.verify import verify


def join_plans(question: Question, plans: Sequence[Plan], *, gap: float, stopped_by: str) -> Plan:
    """The best of the plans that the verifier passes, each of which brings its evidence.

    With a given number of microbatches the best bound of any run becomes its own: the certificate is derived again
    first. `stopped_by`: why the runs ended, where neither proof nor `gap` says it. Raises PlanError if none passes.
    """
    sound = [plan for plan in plans if verify(problem_for(question, plan), plan).passed]
    if not sound:
        raise PlanError("the verifier rejected every plan of every island")
    best = min(sound, key=lambda plan: _rank(question, plan))
    evidence = _with_best_bound(question, best, plans=sound) if isinstance(question, Problem) else _evidence(best)
    joined = replace(best, evidence=replace(evidence, stopped_by=_reason(evidence, gap=gap, otherwise=stopped_by)))
    verdict = verify(problem_for(question, joined), joined)
    if not verdict.passed:
        raise PlanError(f"the verifier rejected the joined plan: {verdict.violations[0].message}")
    return joined


def objective_of(question: Question, plan: Plan) -> int:
    """What the question minimises, as the plan's evidence states it."""
    evidence = _evidence(plan)
    return evidence.span_ns if question.options.objective == "span" else evidence.makespan_ns


def _evidence(plan: Plan) -> Evidence:
    assert plan.evidence is not None
    return plan.evidence


def _rank(question: Question, plan: Plan) -> tuple[int, bool, bool, int]:
    """Smaller is better: the objective, whether it is proved, whether the run itself found the plan, its bound."""
    evidence = _evidence(plan)
    is_told = evidence.source == ISLAND
    return objective_of(question, plan), evidence.proved_by is None, is_told, -evidence.lower_bound_ns


def _with_best_bound(problem: Problem, best: Plan, *, plans: Sequence[Plan]) -> Evidence:
    """The evidence of the best plan, with the largest bound that can be derived again from its certificate."""
    evidence, objective = _evidence(best), objective_of(problem, best)
    claims = [_evidence(plan).solver_bound_ns for plan in plans]
    claimed = max((claim for claim in claims if claim is not None), default=None)
    evidence = replace(evidence, solver_bound_ns=claimed)
    rivals = sorted((_evidence(plan) for plan in plans), key=lambda each: each.lower_bound_ns, reverse=True)
    for rival in rivals:
        if rival.lower_bound_ns <= evidence.lower_bound_ns:
            break
        if _is_derivable(problem, rival):
            return _bounded_by(evidence, rival, objective=objective)
    return evidence


def _is_derivable(problem: Problem, evidence: Evidence) -> bool:
    try:
        return check_certificate(problem, evidence.certificate) >= evidence.lower_bound_ns
    except ValueError:
        return False


def _bounded_by(evidence: Evidence, rival: Evidence, *, objective: int) -> Evidence:
    """The evidence with the bound of another run's."""
    value, fixed = rival.lower_bound_ns, evidence.schedule_bound_ns
    is_proved = objective <= value
    return replace(
        evidence,
        lower_bound_ns=value,
        bound_kind=rival.bound_kind,
        certificate=rival.certificate,
        gap=(objective - value) / max(objective, 1),
        schedule_bound_ns=None if fixed is None else max(fixed, value),
        solution_status="optimal" if is_proved else evidence.solution_status,
        proved_by="certificate" if is_proved else evidence.proved_by,
    )


def _reason(evidence: Evidence, *, gap: float, otherwise: str) -> str:
    """Why the search ended."""
    if evidence.proved_by == "complete search":
        return COMPLETE
    if evidence.gap <= 0:
        return "proof"
    return "gap" if evidence.gap <= gap else otherwise

"""Rules: what the evidence states is true."""

from collections.abc import Mapping

from planner.judge.case import Case, Finding, Findings, Rules, shown

TOLERANCE = 1e-9
"""How far a stated fraction may lie from the recomputed one."""


def evidence_makespan(case: Case) -> Findings:
    """The stated makespan is the one recomputed."""
    if case.judgement and (evidence := case.plan.evidence):
        yield from _stated("makespan_ns", expected=case.judgement.makespan_ns, actual=evidence.makespan_ns)


def evidence_span(case: Case) -> Findings:
    """The stated span is the one recomputed."""
    if case.judgement and (evidence := case.plan.evidence):
        yield from _stated("span_ns", expected=case.judgement.span_ns, actual=evidence.span_ns)


def evidence_peaks(case: Case) -> Findings:
    """The stated peaks of memory are those recomputed."""
    if case.judgement and (evidence := case.plan.evidence):
        stated = dict(evidence.peak_bytes) if isinstance(evidence.peak_bytes, Mapping) else evidence.peak_bytes
        yield from _stated("peak_bytes", expected=dict(case.judgement.peak_bytes), actual=stated)


def evidence_bubble(case: Case) -> Findings:
    """The stated bubble is the one recomputed, to 1e-9."""
    if case.judgement and (evidence := case.plan.evidence) and not _is_near(evidence.bubble, case.judgement.bubble):
        yield from _stated("bubble", expected=case.judgement.bubble, actual=evidence.bubble)


def evidence_lower_bound(case: Case) -> Findings:
    """The lower bound is neither negative nor above the objective."""
    if evidence := case.plan.evidence:
        yield from _bounded(case, "lower_bound_ns", value=evidence.lower_bound_ns)


def evidence_schedule_bound(case: Case) -> Findings:
    """The schedule bound, if there is one, is neither negative nor above the objective."""
    evidence = case.plan.evidence
    if evidence and evidence.schedule_bound_ns is not None:
        yield from _bounded(case, "schedule_bound_ns", value=evidence.schedule_bound_ns)


def evidence_gap(case: Case) -> Findings:
    """The gap is (objective - lower bound) / objective, to 1e-9."""
    evidence, objective = case.plan.evidence, case.objective_ns
    if evidence and type(evidence.lower_bound_ns) is int and 0 <= evidence.lower_bound_ns <= objective:
        gap = (objective - evidence.lower_bound_ns) / objective if objective else 0.0
        if not _is_near(evidence.gap, gap):
            yield from _stated("gap", expected=gap, actual=evidence.gap)


def evidence_status(case: Case) -> Findings:
    """The status is `feasible`, or `optimal` where the lower bound or a complete search reaches the objective."""
    if evidence := case.plan.evidence:
        is_optimal = evidence.lower_bound_ns == case.objective_ns or _claims_completeness(case)
        allowed = ("optimal", "feasible") if is_optimal else ("feasible",)
        if evidence.solution_status not in allowed:
            yield from _stated("solution_status", expected=" or ".join(allowed), actual=evidence.solution_status)


def evidence_proof(case: Case) -> Findings:
    """`proved_by` names the certificate only if its bound reaches the objective, a complete search only if its does."""
    if evidence := case.plan.evidence:
        allowed: list[object] = [None]
        if evidence.solution_status == "optimal":
            allowed += ["certificate"] if evidence.lower_bound_ns == case.objective_ns else []
            allowed += ["complete search"] if _claims_completeness(case) else []
        if evidence.proved_by not in allowed:
            yield from _stated("proved_by", expected=allowed[-1], actual=evidence.proved_by)


def evidence_search_params(case: Case) -> Findings:
    """What steered the search is named `group.name`, and is a number or a list of them."""
    if (evidence := case.plan.evidence) and not _is_params(evidence.search_params):
        yield from _stated("search_params", expected="numbers by group.name", actual=evidence.search_params)


def _is_params(stated: object) -> bool:
    is_named = isinstance(stated, Mapping) and all(
        isinstance(name, str) and name.count(".") == 1 and name.replace(".", "").isidentifier() for name in stated
    )
    return is_named and all(each is None or _is_number_or_list(each) for each in stated.values())  # type: ignore[attr-defined]


def _is_number_or_list(stated: object, depth: int = 3) -> bool:
    if isinstance(stated, list | tuple) and depth:
        return bool(stated) and all(each is None or _is_number_or_list(each, depth - 1) for each in stated)
    return isinstance(stated, int | float) and not isinstance(stated, bool)


def _claims_completeness(case: Case) -> bool:
    """Whether a complete search is said to have found nothing below the objective."""
    evidence = case.plan.evidence
    return (
        evidence is not None
        and evidence.proved_by == "complete search"
        and type(evidence.solver_bound_ns) is int
        and evidence.solver_bound_ns == case.objective_ns
    )


def _stated(figure: str, *, expected: object, actual: object) -> Findings:
    if isinstance(actual, bool) or actual != expected:
        message = f"The evidence states {figure} = {shown(actual, 80)}, but it is {shown(expected, 80)}."
        yield Finding(f"evidence {figure}", expected, actual, message)


def _bounded(case: Case, figure: str, *, value: object) -> Findings:
    if type(value) is not int or not 0 <= value <= case.objective_ns:
        message = f"The evidence states {figure} = {shown(value, 80)}, but the plan achieves {case.objective_ns} ns."
        yield Finding(f"evidence {figure}", f"from 0 to {case.objective_ns}", value, message)


def _is_near(stated: object, expected: float) -> bool:
    is_number = isinstance(stated, int | float) and not isinstance(stated, bool)
    return is_number and expected - TOLERANCE <= stated <= expected + TOLERANCE  # type: ignore[operator]


RULES: Rules = dict.fromkeys(
    (
        evidence_makespan,
        evidence_span,
        evidence_peaks,
        evidence_bubble,
        evidence_lower_bound,
        evidence_schedule_bound,
        evidence_gap,
        evidence_status,
        evidence_proof,
        evidence_search_params,
    ),
    "Plan again, or leave `evidence` out; figures of a plan are not written by hand.",
)

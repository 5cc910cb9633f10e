"""What a solver process does besides solving: check a plan, play it, draw it, and ask a question with a change."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from api.jobs.request import SOURCE, Ceilings, problem_of_plan
from api.reporting.plan_difference import PlayedSide, compare_plans, why_not_on_one_scale
from api.reporting.summaries import summarise_explanation, summarise_rederivation, summarise_timeline
from api.reporting.what_if_range import find_ranges, make_named_baseline
from api.viewer import picture_content, render_picture
from planner.document import parse_plan
from planner.documents.embedded_problem import enclosed_problem
from planner.evidence.check_evidence import rederive
from planner.export.torch_table import render_torch_table
from planner.export.trace import render_trace
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.explain import explain
from planner.simulation.simulate import Timeline
from planner.verify import verify
from planner.what_if.change import Change
from profiles.documents.validation import validate

Drawing = Callable[[PlayedSide], str]


def inspect(order: dict[str, Any]) -> dict[str, Any]:
    """Carry out an order to look at a plan; raises ValueError for what cannot be done."""
    if order["what"] == "job_trace":
        from api.reporting.trace_pictures import summarise_trace

        return {"trace": summarise_trace(order["data"])}
    if order["what"] == "audit":
        from api.auditing.audit_answer import answer_audit
        from api.auditing.audit_request import read_audit_request

        return {"audit": answer_audit(read_audit_request(order["request"], source="body"))}
    plan = parse_plan(order["plan"], source="body: plan")
    problem = _question(plan, order.get("workload"))
    if order["what"] == "ranges":
        changes = [validate(Change, tree, source="body: change") for tree in order["changes"]]
        ranges = find_ranges(problem, plan, changes=changes)
        return {"ranges": [asdict(each) for each in ranges]}
    if order["what"] == "verdict":
        return {"verdict": _judge(problem, plan, with_certificate=bool(order.get("certificate")))}
    played = PlayedSide(problem=problem, plan=plan, timeline=_play(problem, plan))
    if order["what"] == "difference":
        return {"text": _compare(played, order["other"], workload=order["other_workload"])}
    if order["what"] == "view" and order.get("other") is not None:
        return {"text": _draw_both(played, order["other"])}
    if order["what"] == "picture":
        return {"text": _draw_content(played, other=order.get("other"), baseline=order.get("baseline"))}
    return {"text": _DRAWINGS[order["what"]](played)}


def _question(plan: Plan, workload: dict[str, Any] | None) -> Problem:
    """The question of the workload given, else the one that the plan brings along."""
    if workload is not None:
        return problem_of_plan(plan, workload, source=f"{SOURCE}: workload", ceilings=Ceilings(max_actions=4_000_000))
    problem = enclosed_problem(plan, source=f"{SOURCE}: plan")
    if problem is None:
        raise ValueError(f"{SOURCE}: workload is missing; the plan contains none: add it")
    return problem


def _judge(problem: Problem, plan: Plan, *, with_certificate: bool) -> dict[str, Any]:
    if with_certificate:
        return summarise_rederivation(rederive(problem, plan))
    verdict = verify(problem, plan)
    timeline = verdict.timeline
    figures = {} if timeline is None else {"makespan_ns": timeline.makespan_ns, "span_ns": timeline.span_ns}
    return verdict.summary() | figures


def _play(problem: Problem, plan: Plan) -> Timeline:
    verdict = verify(problem, plan)
    if verdict.timeline is None:
        raise ValueError(f"body: plan cannot be played; {verdict.violations[0].message}")
    return verdict.timeline


def _draw_both(played: PlayedSide, other: str) -> str:
    second = parse_plan(other, source="body: other")
    reason = why_not_on_one_scale(played.plan.problem, second.problem)
    if reason is not None:
        raise ValueError(f"body: other: {reason}; give another plan for the same question")
    return render_picture(
        played.problem, played.plan, timeline=played.timeline, other=(second, _play(played.problem, second))
    )


def _draw_content(played: PlayedSide, *, other: str | None, baseline: str | None) -> str:
    """What a picture shows, as JSON; a second plan is given as its document, or as the name of a baseline."""
    problem, pair, reason, is_other = played.problem, None, None, False
    if other is not None:
        second = parse_plan(other, source="body: other")
        reason = why_not_on_one_scale(played.plan.problem, second.problem)
        is_other = second.problem.profile != played.plan.problem.profile
        pair = None if reason else (second, _play(problem, second))
    elif baseline is not None:
        second = make_named_baseline(problem, baseline)
        pair = second, _play(problem, second)
    content = picture_content(problem, played.plan, timeline=played.timeline, other=pair)
    content |= {"aloneBecause": reason, "isOfAnotherModel": is_other}
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _compare(played: PlayedSide, other: str, *, workload: dict[str, Any]) -> str:
    """Each plan on its own question: profiles may be of two versions."""
    second = parse_plan(other, source="body: other")
    question = _question(second, workload)
    after = PlayedSide(problem=question, plan=second, timeline=_play(question, second))
    return json.dumps(compare_plans(played, after), ensure_ascii=False)


def _summarise(played: PlayedSide) -> dict[str, Any]:
    return summarise_timeline(played.problem, played.timeline)


def _explain(played: PlayedSide) -> dict[str, Any]:
    return summarise_explanation(explain(played.problem, played.plan, timeline=played.timeline))


def _draw_report(played: PlayedSide) -> str:
    """Everything a page shows of a plan: figures, stages, devices, baselines, where the time goes."""
    problem, plan = played.problem, played.plan
    evidence = None if plan.evidence is None else asdict(plan.evidence)
    if evidence is not None:
        evidence.pop("certificate")
    report = {
        "name": problem.profile.name,
        "cluster": problem.cluster.name,
        "hosts": {device.name: device.host for device in problem.cluster.devices},
        "links": [[link.a, link.b] for link in problem.cluster.links],
        "stages": [{"layers": list(stage.layers), "replicas": stage.replicas} for stage in plan.stages],
        "simulation": _summarise(played),
        "explanation": _explain(played) if problem.microbatches is None else None,
        "evidence": evidence,
    }
    return json.dumps(report, ensure_ascii=False, default=str)


_DRAWINGS: dict[str, Drawing] = {
    "view": lambda played: render_picture(played.problem, played.plan, timeline=played.timeline),
    "trace": lambda played: render_trace(played.problem, played.plan, timeline=played.timeline),
    "torch": lambda played: render_torch_table(played.problem, played.plan),
    "simulation": lambda played: json.dumps(_summarise(played), ensure_ascii=False),
    "explanation": lambda played: json.dumps(_explain(played), ensure_ascii=False),
    "report": _draw_report,
}
"""What can be made of a plan, by name."""

"""What-if on the command line: changes as typed, the answer to one, and prices with the planner behind them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from rich.console import Console

from api.failures import InputError
from api.inputs import is_plan, make_problem, read_plan_and_problem, read_workload, reading
from api.planning_run import Effort, run_plan
from planner.plan import Plan
from planner.problem import Problem
from planner.progress import Limits
from planner.simulation.simulate import Timeline
from planner.verify import verify
from planner.what_if.change import Change, apply_change, find_start
from planner.what_if.sensitivity import ShadowPrice, count_questions, shadow_prices

_UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}

MAX_ROUNDS = 12
"""Rounds of the joint search per question: a deterministic limit, unless the seconds run out before."""


def find_prices(
    problem: Problem,
    plan: Plan,
    *,
    timeline: Timeline,
    time_limit_s: float,
    per_kind: int,
    hear: Callable[[str], None],
) -> list[ShadowPrice]:
    """What more of the resources that matter is worth, within `time_limit_s` in all; `hear` is told of each."""
    from planner.planning import make_plan  # the solvers come with it

    _require_time(problem)
    count = count_questions(problem, plan, timeline=timeline, per_kind=per_kind)
    limits = Limits(time_limit_s=time_limit_s / count, max_rounds=MAX_ROUNDS)

    def replan(question: Problem, start: Plan) -> Plan:
        return make_plan(question, limits=limits, start=start)

    return shadow_prices(
        problem,
        plan,
        timeline=timeline,
        replan=replan,
        per_kind=per_kind,
        hear=lambda question: hear(question.text),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _BestKnown:
    """What is known of the best plan of a question."""

    objective_ns: int
    """Makespan or span of a verified plan."""
    lower_bound_ns: int | None
    """No plan is below; None: the plan does not say."""
    gap: float | None
    """(objective - lower bound) / objective."""
    num_devices: int
    """Devices that the plan uses."""
    num_stages: int
    """Stages of the plan."""

    @classmethod
    def of(cls, plan: Plan, *, objective_ns: int) -> "_BestKnown":
        """From a plan and what it evidently takes."""
        evidence = plan.evidence
        bound = None if evidence is None else min(evidence.lower_bound_ns, objective_ns)
        return cls(
            objective_ns=objective_ns,
            lower_bound_ns=bound,
            gap=None if bound is None else (objective_ns - bound) / max(1, objective_ns),
            num_devices=len(plan.devices),
            num_stages=len(plan.stages),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfAnswer:
    """A question before and after a change."""

    change: Change
    """The difference between the two questions."""
    objective: Literal["makespan", "span"]
    """Objective of all figures."""
    before: _BestKnown
    """Without the change."""
    after: _BestKnown
    """Best plan and bound of the changed question."""
    plan: Plan
    """The plan with the change."""
    problem: Problem
    """The question with the change."""
    batch_ratio: float
    """Samples of an iteration with the change, for each sample before."""

    @property
    def saved_ns(self) -> int:
        """What the plan found saves; negative: it costs so much."""
        return self.before.objective_ns - self.after.objective_ns

    @property
    def saved_at_most_ns(self) -> int | None:
        """No plan with the change saves more of the time before."""
        bound = self.after.lower_bound_ns
        return None if bound is None else self.before.objective_ns - bound

    def summarise(self) -> dict[str, Any]:
        """The same as JSON-ready data."""
        return {
            "change": asdict(self.change),
            "objective": self.objective,
            "before": asdict(self.before),
            "after": asdict(self.after),
            "saved_ns": self.saved_ns,
            "saved_at_most_ns": self.saved_at_most_ns,
            "batch_ratio": self.batch_ratio,
        }


def parse_change(texts: Sequence[str]) -> Change:
    """The change that `FIELD=VALUE` pairs state; every mistake is an InputError that names field, value and remedy."""
    if not texts:
        raise InputError(f"--change is missing; write FIELD=VALUE, e.g. --change devices=1; fields: {_field_names()}")
    given: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in _PARSERS:
            raise InputError(f"--change {text}: write FIELD=VALUE; fields: {_field_names()}")
        if name == "lost":
            given["lost"] = (*given.get("lost", ()), value)
        elif name in given:
            raise InputError(f"--change {text}: {name} is given twice; leave one out")
        else:
            given[name] = _parse_value(text, value, kind=_PARSERS[name])
    with reading():
        change = Change(**given)
    if change == Change():
        raise InputError(f"--change {texts[0]}: changes nothing; give another value")
    return change


def _parse_value(text: str, value: str, *, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(value)
    except (ValueError, OverflowError):
        raise InputError(f"--change {text}: {value!r} is not a number; give {_REMEDIES[kind]}") from None


def _parse_bytes(text: str) -> int:
    """Bytes, or a number of GiB, MiB or KiB."""
    unit = text[-3:]
    return round(float(text[:-3]) * _UNITS[unit]) if unit in _UNITS else int(text)


def _field_names() -> str:
    return ", ".join(item.name for item in fields(Change))


_PARSERS: dict[str, Callable[[str], Any]] = {
    "devices": int,
    "memory_bytes": _parse_bytes,
    "link_speed": float,
    "num_microbatches": int,
    "global_batch_size": int,
    "microbatch_size": int,
    "lost": str,
}
_REMEDIES: dict[Callable[[str], Any], str] = {
    int: "a whole number, e.g. 1 or -2",
    _parse_bytes: "bytes or a number of GiB, e.g. 8GiB or -1.5GiB",
    float: "a factor, e.g. 2 or 0.5",
}


def read_base(
    source: str, workload: str | None, *, cluster: str | None, num_microbatches: int | None
) -> tuple[Problem, Plan | None]:
    """The question before the change, and the plan if `source` is one."""
    if not is_plan(source):
        if workload is not None:
            raise InputError(f"{source}: is not a plan; give PLAN [WORKLOAD], or a workload alone")
        return make_problem(read_workload(source, cluster=cluster), num_microbatches=num_microbatches), None
    if num_microbatches is not None:
        raise InputError(
            f"-m {num_microbatches}: a plan states its number of microbatches; write --change num_microbatches=N"
        )
    plan, problem = read_plan_and_problem(source, workload, cluster=cluster)
    return problem, plan


def ask_what_if(
    problem: Problem, plan: Plan | None, *, change: Change, effort: Effort, console: Console
) -> WhatIfAnswer:
    """Plan the changed question, from the plan before on; without one that is made first, in half of the time.

    Raises InputError for a change that there cannot be, or a plan that breaks a rule; otherwise as `run_plan`.
    """
    objective = _require_time(problem)
    with reading():
        changed = apply_change(problem, change)
    if plan is None:
        effort = replace(effort, limits=replace(effort.limits, time_limit_s=effort.limits.time_limit_s / 2))
        plan, _ = run_plan(problem, effort, console=console)
    before = _BestKnown.of(plan, objective_ns=_objective_ns(problem, plan))
    answer, _ = run_plan(changed, effort, console=console, start=find_start(problem, plan, change=change))
    return WhatIfAnswer(
        change=change,
        objective=objective,
        before=before,
        after=_BestKnown.of(answer, objective_ns=_objective_ns(changed, answer)),
        plan=answer,
        problem=changed,
        batch_ratio=_samples(changed) / _samples(problem),
    )


def _samples(problem: Problem) -> int:
    """Of an iteration; microbatches, where their size is not known."""
    return problem.num_microbatches * (problem.profile.microbatch_size or 1)


def _require_time(problem: Problem) -> Literal["makespan", "span"]:
    """The objective, which is a time: what a resource is worth is said in time."""
    objective = problem.options.objective
    if objective == "cost":
        raise InputError(
            "objective = cost: what-if compares times only; set objective to makespan, or plan both questions"
        )
    return objective


def _objective_ns(problem: Problem, plan: Plan) -> int:
    """Makespan or span, as the judge finds it."""
    verdict = verify(problem, plan)
    if not verdict.passed or verdict.timeline is None:
        raise InputError(f"the plan breaks a rule: {verdict.violations[0].message} `pipeplan verify` lists all")
    return verdict.timeline.objective_ns(problem.options.objective)

"""Lists what is wrong with a plan: one rule, one function, one sentence; it never raises, whatever the plan contains.

Rules come in groups (`GROUPS`). A group that others rely on is a gate: if one of its rules finds something, the later
groups stay silent, because what they would say could not be trusted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from planner.errors import PlanError
from planner.judge.case import Case, Findings, Played, Rules, shown
from planner.judge.rules import (
    agreement,
    deadlock_rules,
    dealt,
    evidence,
    gathered,
    groups,
    lists,
    loops,
    offloaded,
    options,
    partition,
    reference,
    rental,
    shape,
    split_placement,
)
from planner.judge.times import Judgement
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import Timeline, simulate
from profiles.documents.canonical_json import to_plain

MAX_VIOLATIONS_PER_RULE = 20
"""A rule that is broken more often reports no more than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One way in which a plan breaks a rule."""

    rule: str
    """The rule, a key of `RULES`."""
    subject: str
    """What breaks it: a stage, a layer, a device, an action or a figure."""
    expected: str
    """Value that the rule demands."""
    actual: str
    """Value in the plan."""
    message: str
    """The whole matter in a sentence."""
    remedy: str
    """What to do about it, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Everything that is wrong with a plan, and its timeline where it has one."""

    violations: tuple[Violation, ...]
    """In the order of the rules; none if the plan is valid."""
    timeline: Timeline | None
    """The plan as played; None if it cannot be played."""
    subject: tuple[Problem, Plan] | None = field(default=None, repr=False, compare=False)
    """The verified question and plan."""
    judgement: Judgement | None = field(default=None, repr=False, compare=False)
    """The judge's figures."""

    def covers(self, problem: Problem, plan: Plan) -> bool:
        """Whether it has passed the very same stages and device orders as an answer to the very same problem."""
        if self.subject is None or not self.passed:
            return False
        known, judged = self.subject
        same = judged.stages is plan.stages and judged.schedule is plan.schedule and judged.problem is plan.problem
        return same and known is problem and judged.max_active_stages == plan.max_active_stages

    @property
    def passed(self) -> bool:
        """Whether no rule was broken and no stated value differs."""
        return not self.violations

    def summary(self) -> dict[str, Any]:
        """The verdict as it stands in a plan's evidence."""
        return {"passed": self.passed, "violations": [to_plain(violation) for violation in self.violations]}


def verify(problem: Problem, plan: Plan, *, earlier: Verdict | None = None) -> Verdict:
    """Check `plan` against every rule, as an answer to `problem`.

    Where an `earlier` verdict has passed the same stages and device orders, only what the evidence states is checked
    anew.
    """
    case = Case(problem, plan, play=lambda: _play(problem, plan))
    chosen = GROUPS
    if earlier is not None and earlier.covers(problem, plan) and earlier.timeline is not None:
        case.__dict__.update(played=earlier.timeline, judgement=earlier.judgement)
        chosen = (GROUPS[0], GROUPS[-1])
    violations: list[Violation] = []
    for is_gate, rules in chosen:
        found = [violation for rule, remedy in rules.items() for violation in _apply(rule, case, remedy=remedy)]
        violations += found
        if is_gate and found:
            return Verdict(violations=tuple(violations), timeline=None)
    return Verdict(
        violations=tuple(violations), timeline=case.timeline, subject=(problem, plan), judgement=case.judgement
    )


def _play(problem: Problem, plan: Plan) -> Played:
    """The core's timeline of a plan, or why it has none: a cost that the core does not find is a reason, too."""
    try:
        return simulate(problem, plan)
    except (PlanError, ValueError) as error:
        return str(error)


def _apply(rule: Callable[[Case], Findings], case: Case, *, remedy: str) -> Iterator[Violation]:
    for finding in islice(rule(case), MAX_VIOLATIONS_PER_RULE):
        yield Violation(
            rule=_rule_name(rule),
            subject=finding.subject,
            expected=shown(finding.expected),
            actual=shown(finding.actual),
            message=finding.message,
            remedy=remedy,
        )


def _rule_name(rule: Callable[[Case], Findings]) -> str:
    return rule.__name__.strip("_").replace("_", "-")


GROUPS: tuple[tuple[bool, Rules], ...] = (
    (True, shape.RULES),
    (False, reference.RULES),
    (True, dealt.RULES),
    (True, partition.RULES | groups.RULES | split_placement.RULES),
    (True, gathered.RULES),
    (True, offloaded.RULES),
    (False, options.RULES),
    (True, agreement.ROUTE_RULES),
    (True, lists.RULES),
    (True, gathered.ORDER_RULES),
    (False, loops.RULES),
    (True, deadlock_rules.PRECEDENCE_RULES),
    (True, deadlock_rules.DEADLOCK_RULES),
    (True, offloaded.ORDER_RULES),
    (False, agreement.MEMORY_RULES | offloaded.MEMORY_RULES),
    (True, agreement.TIMELINE_RULES),
    (False, agreement.FIGURE_RULES),
    (False, rental.DEADLINE_RULES),
    (False, evidence.RULES | rental.RULES),
)
"""The rules in the order in which they are applied, each with its remedy; the flag says whether a group is a gate."""

RULES: dict[str, str] = {_rule_name(rule): (rule.__doc__ or "").strip() for _, rules in GROUPS for rule in rules}
"""What every rule demands, by its name."""

"""Derives what a plan's evidence states anew: its bound, its gap and all else that follows from question and plan.

No solver takes part. `planner.verify` says whether the plan obeys the rules and its own figures are true; this says
whether the proof is one. What cannot be derived again is history (`HISTORY`), and a solver's word is only held against
the plan. A plan of another release may say less than this one would: no baseline that this release has learnt since is
missed unless it is faster than the plan, and no order bound that got closer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from planner.baselines.listed import listed_baselines
from planner.baselines.registry import NO_TIME, make_baselines, play_baseline
from planner.certificate import bounds_of_sizes, check_certificate, schedule_bound
from planner.cost_bound import check_subsets
from planner.costs import CostModel
from planner.embedded_document import KEY
from planner.embedded_problem import enclosed_problem
from planner.judge.evidence import TOLERANCE
from planner.plan import BaselineResult, Evidence, Plan, SizeResult
from planner.problem import Problem
from planner.release import release
from planner.rented import PER_UNIT, problem_on
from planner.simulate import Timeline
from planner.verify import Verdict, verify

HISTORY = ("source", "planner_version", "solver_versions", "seed", "solver_bound_ns", "search_params", "improvers")
"""Evidence that says how the plan was found, or what a solver claims: nothing to derive."""

CHEAP_ACTIONS = 200_000
"""Actions of a schedule up to which the baselines are played again without being asked for."""

_UNREADABLE = (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError)
"""What a certificate that was tampered with may cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A figure that the evidence states otherwise than it follows."""

    field: str
    """Which one, e.g. `lower_bound_ns`, `baselines.GPipe (even layers).makespan_ns`."""
    stated: Any
    """What the evidence says."""
    derived: Any
    """What follows."""
    message: str
    """The matter in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rederivation:
    """A plan's evidence derived again."""

    verdict: Verdict
    """Of the independent verifier: the rules, and the figures of the plan as played."""
    bound_kind: str | None
    """Kind of the bound that the certificate proves; None if it proves none."""
    lower_bound_ns: int | None
    """The value that it proves, None if it proves none."""
    gap: float | None
    """(objective - that value) / objective."""
    least_cost: float | None = None
    """Money per iteration that no plan on any devices costs less than, as the certificate of the cost proves it; None
    if it proves none, or the question is not about money."""
    has_baselines: bool
    """Whether the baselines were made and played again."""
    differences: tuple[Difference, ...]
    """Everything that is stated otherwise."""

    @property
    def passed(self) -> bool:
        """Whether the plan obeys every rule and everything stated was derived as stated."""
        return self.verdict.passed and not self.differences


def rederive(problem: Problem, plan: Plan, *, with_baselines: bool | None = None) -> Rederivation:
    """Verify `plan` and derive its evidence again; `with_baselines` None: where that is cheap."""
    verdict = verify(problem, plan)
    evidence = plan.evidence
    if evidence is None:
        missing = Difference(field="evidence", stated=None, derived=None, message="The plan states no evidence.")
        return _blank(verdict, missing)
    try:
        asked = _planned_for(problem, plan, evidence=evidence)
    except _UNREADABLE as error:
        stated = _shown(evidence.rental.devices) if evidence.rental is not None else None
        message = f"No question can be asked of the devices said to be rented: {error}."
        return _blank(verdict, Difference(field="rental.devices", stated=stated, derived=None, message=message))
    value, complaints = _prove(asked, evidence)
    least_cost, doubts = _check_rental(problem, evidence)
    complaints += doubts
    if verdict.timeline is None:
        return _blank(verdict, *complaints)
    if with_baselines is None:
        with_baselines = sum(map(len, plan.schedule.values())) <= CHEAP_ACTIONS
    check = _EvidenceCheck(asked, plan, evidence=evidence, timeline=verdict.timeline, bound_ns=value)
    found = [
        *complaints,
        *check.check_bound(),
        *check.check_outcome(),
        *check.check_sizes(),
        *check.check_plan(verdict),
    ]
    if with_baselines:
        found += check.check_baselines()
    return Rederivation(
        verdict=verdict,
        bound_kind=None if value is None else str(evidence.certificate["kind"]),
        lower_bound_ns=value,
        gap=check.gap,
        least_cost=None if least_cost is None else least_cost / PER_UNIT,
        has_baselines=with_baselines,
        differences=tuple(found),
    )


def _blank(verdict: Verdict, *differences: Difference) -> Rederivation:
    """Nothing could be derived."""
    return Rederivation(
        verdict=verdict,
        bound_kind=None,
        lower_bound_ns=None,
        gap=None,
        has_baselines=False,
        differences=differences,
    )


def _prove(problem: Problem, evidence: Evidence) -> tuple[int | None, list[Difference]]:
    """The value that the certificate proves for `problem`, or why it proves none."""
    bound: dict[str, Any] = {}
    try:
        bound = {key: value for key, value in evidence.certificate.items() if key != KEY}
        return check_certificate(problem, bound), []
    except _UNREADABLE as error:
        text = str(error) or type(error).__name__
        message = f"The certificate of the lower bound is rejected: {text}."
        return None, [
            Difference(
                field="certificate", stated=bound.get("value_ns"), derived=text.rpartition(": ")[2], message=message
            )
        ]


def _planned_for(problem: Problem, plan: Plan, *, evidence: Evidence) -> Problem:
    """The question that bound, gap and baselines are about: where money is minimised, that of the devices rented."""
    if evidence.rental is None:
        return problem
    if others := set(plan.devices) - set(evidence.rental.devices):
        raise ValueError(f"the plan uses {min(others)} as well")
    return problem_on(problem, evidence.rental.devices)


def _check_rental(problem: Problem, evidence: Evidence) -> tuple[int | None, list[Difference]]:
    """The bound on money that its certificate proves for all subsets of the devices, or why it proves none."""
    if evidence.rental is None or problem.options.objective != "cost":
        return None, []
    try:
        return check_subsets(problem, evidence.rental.certificate), []
    except _UNREADABLE as error:
        message = f"The certificate of the cost is rejected: {str(error) or type(error).__name__}."
        return None, [
            Difference(field="rental.certificate", stated=evidence.rental.lower_bound, derived=None, message=message)
        ]


def _compare(field: str, *, stated: object, derived: object) -> Iterator[Difference]:
    if isinstance(derived, float) and isinstance(stated, int | float) and not isinstance(stated, bool):
        is_same = abs(stated - derived) <= TOLERANCE
    else:
        is_same = type(stated) is type(derived) and stated == derived
    if not is_same:
        message = f"The evidence states {field} = {_shown(stated)}, derived is {_shown(derived)}."
        yield Difference(field=field, stated=stated, derived=derived, message=message)


def _shown(value: object) -> str:
    return repr(value)[:120]


class _EvidenceCheck:
    """One plan's evidence with what several checks need."""

    def __init__(
        self, problem: Problem, plan: Plan, *, evidence: Evidence, timeline: Timeline, bound_ns: int | None
    ) -> None:
        self.problem, self.plan, self.evidence, self.bound_ns = problem, plan, evidence, bound_ns
        self.costs = CostModel(problem)
        self.timeline = timeline
        self.objective_ns = timeline.objective_ns(problem.options.objective)

    @property
    def is_foreign(self) -> bool:
        """Whether another release made the plan."""
        return self.evidence.planner_version != release()

    @property
    def gap(self) -> float | None:
        """What the proved bound leaves open."""
        if self.bound_ns is None:
            return None
        return (self.objective_ns - self.bound_ns) / max(self.objective_ns, 1)

    def check_bound(self) -> Iterator[Difference]:
        """The stated bound, its kind and its gap are those of the certificate."""
        evidence = self.evidence
        if self.bound_ns is not None:
            yield from _compare("lower_bound_ns", stated=evidence.lower_bound_ns, derived=self.bound_ns)
            yield from _compare("bound_kind", stated=evidence.bound_kind, derived=evidence.certificate["kind"])
            yield from _compare("gap", stated=evidence.gap, derived=self.gap)
        if evidence.schedule_bound_ns is not None and self.problem.microbatches is not None:
            message = "There is no bound on the orders of given stages where microbatches differ."
            yield Difference(
                field="schedule_bound_ns", stated=evidence.schedule_bound_ns, derived=None, message=message
            )
        elif evidence.schedule_bound_ns is not None:
            fixed = schedule_bound(self.problem, self.plan.stages, costs=self.costs, reached=self.objective_ns)
            derived = max(fixed, self.bound_ns or 0)
            if self.is_foreign:
                derived = min(derived, evidence.schedule_bound_ns)
            yield from _compare("schedule_bound_ns", stated=evidence.schedule_bound_ns, derived=derived)
        claimed = evidence.solver_bound_ns
        if claimed is not None and (type(claimed) is not int or not 0 <= claimed <= self.objective_ns):
            message = f"A solver is said to claim {_shown(claimed)} ns, but the plan achieves {self.objective_ns} ns."
            yield Difference(field="solver_bound_ns", stated=claimed, derived=self.objective_ns, message=message)

    def check_outcome(self) -> Iterator[Difference]:
        """`optimal`, and stopped by `proof`, only where certificate or the word of a complete search closes the gap."""
        if self.bound_ns is None:
            return
        is_closed = self.objective_ns <= self.bound_ns
        stated = self.evidence.proved_by
        is_claimed = stated == "complete search" and self.evidence.solver_bound_ns == self.objective_ns
        status = "optimal" if is_closed or is_claimed else "feasible"
        yield from _compare("solution_status", stated=self.evidence.solution_status, derived=status)
        if stated is not None and not is_claimed:
            yield from _compare("proved_by", stated=stated, derived="certificate" if is_closed else None)
        if self.evidence.stopped_by == "proof" and not is_closed:
            message = f"The search is said to have ended with a proof, but a gap of {self.gap:.3%} is open."
            yield Difference(field="stopped_by", stated="proof", derived="an open gap", message=message)

    def check_sizes(self) -> Iterator[Difference]:
        """Every size of the question has a row, with the bound of its certificate; those closed are out of reach."""
        if self.problem.batch is None or self.bound_ns is None:
            stated = tuple(row.microbatch_size for row in self.evidence.sizes)
            if self.problem.batch is None:
                yield from _compare("sizes", stated=stated, derived=())
            return
        derived = bounds_of_sizes(self.evidence.certificate)
        stated_bounds = {row.microbatch_size: row.lower_bound_ns for row in self.evidence.sizes}
        yield from _compare("sizes.lower_bound_ns", stated=stated_bounds, derived=derived)
        for row in self.evidence.sizes:
            place = f"sizes.{row.microbatch_size}"
            count = self.problem.batch.global_batch_size // row.microbatch_size
            yield from _compare(f"{place}.num_microbatches", stated=row.num_microbatches, derived=count)
            yield from self._check_state(row, place=place)

    def _check_state(self, row: SizeResult, *, place: str) -> Iterator[Difference]:
        """The size of the plan has its objective, and a size of which there is a better plan says so."""
        if row.microbatch_size == self.plan.problem.microbatch_size:
            yield from _compare(f"{place}.state", stated=row.state, derived="best")
            yield from _compare(f"{place}.objective_ns", stated=row.objective_ns, derived=self.objective_ns)
            return
        if row.objective_ns is not None and row.objective_ns < (row.lower_bound_ns or 0):
            message = f"A plan with microbatches of {row.microbatch_size} samples is said to be below their bound."
            yield Difference(
                field=f"{place}.objective_ns", stated=row.objective_ns, derived=row.lower_bound_ns, message=message
            )
        if row.objective_ns is not None and row.objective_ns < self.objective_ns:
            yield from _compare(f"{place}.state", stated=row.state, derived="better")
            return
        known = max(row.lower_bound_ns or 0, row.solver_bound_ns or 0)
        is_closed = known >= self.objective_ns or (row.objective_ns is None and bool(row.note))
        is_right = {"infeasible": row.lower_bound_ns is None, "closed": is_closed, "open": True}
        if not is_right.get(row.state, False):
            message = f"Microbatches of {row.microbatch_size} samples are said to be {_shown(row.state)}."
            yield Difference(field=f"{place}.state", stated=row.state, derived="open", message=message)

    def check_plan(self, verdict: Verdict) -> Iterator[Difference]:
        """What is stated about the plan itself, its verdict and its question."""
        evidence = self.evidence
        derived = self.costs.unmeasured_costs_of(self.plan)
        yield from _compare("interpolated_costs", stated=evidence.interpolated_costs, derived=derived)
        if evidence.timings:  # documents of earlier versions do not say
            yield from _compare("timings", stated=evidence.timings, derived=self.costs.describe_timings())
        known = self.problem.profile.bucket_bytes
        yield from _compare("bucket_bytes", stated=evidence.bucket_bytes, derived=known)
        if evidence.assumed_divisible is not None:
            parts = self.costs.assumed_divisible(self.plan.stages)
            yield from _compare("assumed_divisible", stated=evidence.assumed_divisible, derived=parts)
        if verdict.passed:
            yield from _compare("verdict", stated=evidence.verdict, derived=verdict.summary())
        try:
            enclosed = enclosed_problem(self.plan)
        except ValueError as error:
            yield Difference(field="certificate", stated=KEY, derived=None, message=f"It cannot be read: {error}.")
            return
        if enclosed is not None:
            for name in ("profile_sha256", "cluster_sha256"):
                stated, found = getattr(self.plan.problem, name), getattr(enclosed, name)
                yield from _compare(f"certificate.{KEY} {name}", stated=stated, derived=found)

    def check_baselines(self) -> Iterator[Difference]:
        """Every baseline stated is one, and does as it is said to; those said to be left out state nothing."""
        stated, made_ns = {row.name: row for row in self.evidence.baselines}, self.timeline.makespan_ns
        left_out = tuple(name for name, row in stated.items() if row.makespan_ns is None and row.note == NO_TIME)
        stated = {name: row for name, row in stated.items() if name not in left_out}
        make = make_baselines if self.problem.microbatches is None else listed_baselines
        for baseline in make(self.problem, self.costs):
            if baseline.name not in stated and baseline.name.startswith(left_out):
                continue
            derived, _ = play_baseline(self.problem, baseline, costs=self.costs)
            if baseline.name in stated:
                yield from _compare_rows(stated.pop(baseline.name), derived)
            elif not self.is_foreign or (derived.makespan_ns or made_ns) < made_ns:
                message = f"The evidence leaves out the baseline {baseline.name!r}."
                yield Difference(
                    field=f"baselines.{baseline.name}", stated=None, derived=derived.makespan_ns, message=message
                )
        for name in stated:
            message = f"The evidence has a baseline {_shown(name)}, which this version does not know."
            yield Difference(field=f"baselines.{name}", stated=name, derived=None, message=message)


def _compare_rows(stated: BaselineResult, derived: BaselineResult) -> Iterator[Difference]:
    for field in fields(BaselineResult):
        pair = getattr(stated, field.name), getattr(derived, field.name)
        yield from _compare(f"baselines.{derived.name}.{field.name}", stated=pair[0], derived=pair[1])

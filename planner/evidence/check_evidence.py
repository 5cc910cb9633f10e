"""Derives what a plan's evidence states anew: its bound, its gap and all else that follows from question and plan.

No solver takes part. `planner.verify` says whether the plan obeys the rules and its own figures are true; this says
whether the proof is one. What cannot be derived again is history (`HISTORY`), and a solver's word is only held against
the plan. What a plan of another release states otherwise is a note and no fault: a row of a baseline, a bound on orders
that got closer, a certificate by other rules.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal

from planner import decisions
from planner.baselines.listed import listed_baselines
from planner.baselines.registry import Baseline, make_baselines, play_baseline
from planner.device_subsets import problem_on
from planner.documents.embedded_document import KEY
from planner.documents.embedded_problem import enclosed_problem
from planner.evidence.certificate import (
    OtherRulesError,
    bounds_of_sizes,
    check_certificate,
    proves_anew,
    schedule_bound,
)
from planner.judge.rules.evidence import TOLERANCE
from planner.layout.costs import CostModel
from planner.plan import BaselineResult, Evidence, Plan, SizeResult
from planner.problem import Problem
from planner.release import RELEASE
from planner.simulation.simulate import Timeline
from planner.verify import Verdict, verify

HISTORY = (
    *("source", "planner_version", "solver_versions", "seed", "solver_bound_ns", "search_params", "improvers"),
    *("workers", "worker_tasks"),
)
"""Evidence that says how the plan was found, or what a solver claims: nothing to derive."""

_CHEAP_ACTIONS = 200_000
"""Actions of a schedule up to which the baselines are played again without being asked for."""

_ANEW_LIMIT_S = 5.0
"""Seconds that may pass while a bound of an older kind is derived anew."""

_MOST_NAMES = 6
"""Baselines that a note names."""

_UNREADABLE = (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError)
"""What a certificate that was tampered with may cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """A figure that the evidence states otherwise than it follows."""

    field: str
    """Which one, e.g. `lower_bound_ns`, `baselines.GPipe (even layers).makespan_ns`."""
    stated: Any
    """Value in the evidence."""
    derived: Any
    """Value that follows from the plan."""
    message: str
    """The matter in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What is worth knowing about the evidence, and no fault of it."""

    field: str
    """What it is about, e.g. `baselines`, `certificate`."""
    names: tuple[str, ...] = ()
    """The baselines that it is about, if it is about some."""
    message: str
    """The matter in a sentence."""


_EvidenceFinding = _Difference | Note

_BoundState = Literal["derived", "rejected", "not rechecked"]
"""What is known of the stated bound: it was derived again, its certificate does not prove it, or the certificate is by
rules of another release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rederivation:
    """A plan's evidence derived again."""

    verdict: Verdict
    """Of the independent verifier: the rules, and the figures of the plan as played."""
    bound: _BoundState = "rejected"
    """`derived`, `rejected` or `not rechecked`."""
    bound_kind: str | None = None
    """Kind of the bound that the certificate proves; None if nothing was derived."""
    lower_bound_ns: int | None = None
    """The value that it proves, None if nothing was derived."""
    gap: float | None = None
    """(objective - that value) / objective."""
    least_cost: float | None = None
    """Money per iteration that no plan on any devices costs less than, as the certificate of the cost proves it; None
    if it proves none, or the question is not about money."""
    has_baselines: bool = False
    """Whether the baselines were made and played again."""
    num_computed: int = 0
    """Rows of baselines that were derived again."""
    unchecked: tuple[str, ...] = ()
    """Baselines whose rows were not, or otherwise here, and those that have no row and need none."""
    findings: tuple[_EvidenceFinding, ...]
    """Everything that is stated otherwise, and what else is worth knowing."""

    @property
    def differences(self) -> tuple[_Difference, ...]:
        """Everything that is stated otherwise."""
        return tuple(each for each in self.findings if isinstance(each, _Difference))

    @property
    def notes(self) -> tuple[Note, ...]:
        """What is worth knowing and no fault."""
        return tuple(each for each in self.findings if isinstance(each, Note))

    @property
    def passed(self) -> bool:
        """Whether the plan obeys every rule and nothing is stated otherwise than it was derived."""
        return self.verdict.passed and not self.differences


def rederive(problem: Problem, plan: Plan, *, with_baselines: bool | None = None) -> Rederivation:
    """Verify `plan` and derive its evidence again; `with_baselines` None: where that is cheap."""
    verdict = verify(problem, plan)
    evidence = plan.evidence
    if evidence is None:
        missing = _Difference(field="evidence", stated=None, derived=None, message="The plan states no evidence.")
        return Rederivation(verdict=verdict, findings=(missing,))
    try:
        asked = _planned_for(problem, plan, evidence=evidence)
    except _UNREADABLE as error:
        stated = _shown(evidence.rental.devices) if evidence.rental is not None else None
        message = f"No question can be asked of the devices said to be rented: {error}."
        wrong = _Difference(field="rental.devices", stated=stated, derived=None, message=message)
        return Rederivation(verdict=verdict, findings=(wrong,))
    proof = _prove(asked, evidence)
    rental = _check_rental(problem, evidence)
    if verdict.timeline is None:
        return Rederivation(verdict=verdict, findings=(*proof.findings, *rental.findings))
    if with_baselines is None:
        with_baselines = sum(map(len, plan.schedule.values())) <= _CHEAP_ACTIONS
    check = _EvidenceCheck(asked, plan, evidence=evidence, timeline=verdict.timeline, bound_ns=proof.value)
    found: list[_EvidenceFinding] = [
        *proof.findings,
        *rental.findings,
        *check.check_bound(),
        *check.check_outcome(),
        *check.check_sizes(),
        *check.check_plan(verdict),
    ]
    if with_baselines:
        found += check.check_baselines()
    return Rederivation(
        verdict=verdict,
        bound=proof.state,
        bound_kind=None if proof.value is None else str(evidence.certificate["kind"]),
        lower_bound_ns=proof.value,
        gap=check.gap,
        least_cost=_money(rental.value),
        has_baselines=with_baselines,
        num_computed=len({row.name for row in evidence.baselines} - set(check.unchecked)),
        unchecked=tuple(check.unchecked),
        findings=tuple(found),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckedBound:
    """Result of checking a certificate."""

    value: int | None = None
    """Nanoseconds; None where the bound was not derived."""
    findings: tuple[_EvidenceFinding, ...] = ()
    """Why nothing is known."""

    @property
    def state(self) -> _BoundState:
        """`derived`, `rejected` or `not rechecked`."""
        if self.value is not None:
            return "derived"
        return "rejected" if any(isinstance(each, _Difference) for each in self.findings) else "not rechecked"


def _prove(problem: Problem, evidence: Evidence) -> _CheckedBound:
    """The value that the certificate proves for `problem`, or why it proves none."""
    stated = evidence.certificate.get("value_ns") if isinstance(evidence.certificate, Mapping) else None

    def derive() -> int:
        return check_certificate(problem, {key: value for key, value in evidence.certificate.items() if key != KEY})

    found = _derive(derive, evidence, place=("certificate", "lower bound"), stated=stated)
    until = time.monotonic() + _ANEW_LIMIT_S

    def has_time() -> bool:
        return time.monotonic() < until

    if found.state == "not rechecked" and type(stated) is int and proves_anew(problem, stated, has_time=has_time):
        message = "The certificate is of an older kind; its value was derived again."
        return _CheckedBound(value=stated, findings=(Note(field="certificate", message=message),))
    return found


def _derive(derive: Callable[[], int], evidence: Evidence, *, place: tuple[str, str], stated: object) -> _CheckedBound:
    """What a certificate proves; `place`: its field, and what it is about."""
    field, what = place
    try:
        return _CheckedBound(value=derive())
    except OtherRulesError as reason:
        error: Exception = reason
        if reason.is_known or evidence.planner_version != RELEASE:
            message = f"The {what} is of an older kind, not rechecked: {reason}."
            return _CheckedBound(findings=(Note(field=field, message=message),))
    except _UNREADABLE as reason:
        error = reason
    text = str(error) or type(error).__name__
    message, derived = f"The certificate of the {what} is rejected: {text}.", text.rpartition(": ")[2]
    return _CheckedBound(findings=(_Difference(field=field, stated=stated, derived=derived, message=message),))


def _planned_for(problem: Problem, plan: Plan, *, evidence: Evidence) -> Problem:
    """The question that bound, gap and baselines are about: where money is minimised, that of the devices rented."""
    if evidence.rental is None:
        return problem
    if others := set(plan.devices) - set(evidence.rental.devices):
        raise ValueError(f"the plan uses {min(others)} as well")
    return problem_on(problem, evidence.rental.devices)


def _check_rental(problem: Problem, evidence: Evidence) -> _CheckedBound:
    """The bound on money that its certificate proves for all subsets of the devices, or why it proves none."""
    if evidence.rental is None or problem.options.objective != "cost":
        return _CheckedBound()
    rental = evidence.rental
    derive = partial(decisions.part_of("price", "bound").check_subsets, problem, rental.certificate)
    return _derive(derive, evidence, place=("rental.certificate", "cost"), stated=rental.lower_bound)


def _money(value: int | None) -> float | None:
    return None if value is None else float(decisions.part_of("price", "bound").in_currency(value))


def _compare(field: str, *, stated: object, derived: object) -> Iterator[_Difference]:
    if isinstance(derived, float) and isinstance(stated, int | float) and not isinstance(stated, bool):
        is_same = abs(stated - derived) <= TOLERANCE
    else:
        is_same = type(stated) is type(derived) and stated == derived
    if not is_same:
        message = f"The evidence states {field} = {_shown(stated)}, derived is {_shown(derived)}."
        yield _Difference(field=field, stated=stated, derived=derived, message=message)


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
        self.unchecked = [row.name for row in evidence.baselines]
        """Baselines whose rows were not derived again, or otherwise here, and those that have no row and need none."""

    @property
    def is_foreign(self) -> bool:
        """Whether another release made the plan."""
        return self.evidence.planner_version != RELEASE

    @property
    def gap(self) -> float | None:
        """What the proved bound leaves open."""
        if self.bound_ns is None:
            return None
        return (self.objective_ns - self.bound_ns) / max(self.objective_ns, 1)

    def check_bound(self) -> Iterator[_EvidenceFinding]:
        """The stated bound, its kind and its gap are those of the certificate."""
        evidence = self.evidence
        if self.bound_ns is not None:
            yield from _compare("lower_bound_ns", stated=evidence.lower_bound_ns, derived=self.bound_ns)
            yield from _compare("bound_kind", stated=evidence.bound_kind, derived=evidence.certificate["kind"])
            yield from _compare("gap", stated=evidence.gap, derived=self.gap)
        if evidence.schedule_bound_ns is not None and self.problem.microbatches is not None:
            message = "There is no bound on the orders of given stages where microbatches differ."
            yield _Difference(
                field="schedule_bound_ns", stated=evidence.schedule_bound_ns, derived=None, message=message
            )
        elif evidence.schedule_bound_ns is not None:
            fixed = schedule_bound(self.problem, self.plan.stages, costs=self.costs, reached=self.objective_ns)
            # what an older release stated is true as long as it is no more than what is derived
            derived = max(fixed, evidence.lower_bound_ns if self.bound_ns is None else self.bound_ns)
            if derived > evidence.schedule_bound_ns:
                message = f"No order of these stages is below {derived} ns; stated are {evidence.schedule_bound_ns}."
                yield Note(field="schedule_bound_ns", message=message)
            else:
                yield from _compare("schedule_bound_ns", stated=evidence.schedule_bound_ns, derived=derived)
        claimed, is_best = evidence.solver_bound_ns, evidence.stopped_by == "solver" and not self.is_foreign
        least = self.objective_ns if is_best else 0
        if (claimed is not None or is_best) and (type(claimed) is not int or not least <= claimed <= self.objective_ns):
            message = f"A solver is said to claim {_shown(claimed)} ns, but the plan achieves {self.objective_ns} ns."
            yield _Difference(field="solver_bound_ns", stated=claimed, derived=self.objective_ns, message=message)

    def check_outcome(self) -> Iterator[_Difference]:
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
            yield _Difference(field="stopped_by", stated="proof", derived="an open gap", message=message)

    def check_sizes(self) -> Iterator[_Difference]:
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

    def _check_state(self, row: SizeResult, *, place: str) -> Iterator[_Difference]:
        """The size of the plan has its objective, and a size of which there is a better plan says so."""
        if row.microbatch_size == self.plan.problem.microbatch_size:
            yield from _compare(f"{place}.state", stated=row.state, derived="best")
            yield from _compare(f"{place}.objective_ns", stated=row.objective_ns, derived=self.objective_ns)
            return
        if row.objective_ns is not None and row.objective_ns < (row.lower_bound_ns or 0):
            message = f"A plan with microbatches of {row.microbatch_size} samples is said to be below their bound."
            yield _Difference(
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
            yield _Difference(field=f"{place}.state", stated=row.state, derived="open", message=message)

    def check_plan(self, verdict: Verdict) -> Iterator[_Difference]:
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
            yield _Difference(field="certificate", stated=KEY, derived=None, message=f"It cannot be read: {error}.")
            return
        if enclosed is not None:
            for name in ("profile_sha256", "cluster_sha256"):
                stated, found = getattr(self.plan.problem, name), getattr(enclosed, name)
                yield from _compare(f"certificate.{KEY} {name}", stated=stated, derived=found)

    def check_baselines(self) -> Iterator[_EvidenceFinding]:
        """Every row is of a baseline, and does as it is said to; no row is left out but for want of time.

        Rows of another release are noted, unless they fit below the bound.
        """
        rows = dict.fromkeys(self.evidence.baselines)  # a step that is done again states the same rows again
        stated = {row.name: row for row in rows if not row.had_no_time}
        left_out = tuple(row.name for row in rows if row.had_no_time and row.name not in stated)
        self.unchecked, missing, refused, faster = [*left_out], list[str](), list[str](), list[str]()
        counted = Counter(row.name for row in rows if not row.had_no_time)
        yield from _refused((counted - Counter(stated.keys())).keys(), "The evidence has rows that differ for {}")
        make = make_baselines if self.problem.microbatches is None else listed_baselines
        for baseline in make(self.problem, self.costs):
            row = stated.pop(baseline.name, None)
            if row is None and baseline.name.startswith(left_out):
                continue
            derived, _ = play_baseline(self.problem, baseline, costs=self.costs)
            if row is not None:
                yield from self._check_row(row, derived)
            is_beaten = self._is_beaten(baseline, derived)
            if row is None:
                is_required = self.has_all_rows or (is_beaten and self.has_all_baselines)
                (refused if is_required else missing).append(baseline.name)
            if is_beaten:
                faster.append(baseline.name)
        self.unchecked += [*missing, *stated]
        yield from _noted(left_out, "There was no time for {}, as the plan says")
        yield from _noted(missing, "The plan has no row for {}")
        yield from _noted(faster, "The plan is slower than {}")
        yield from _refused(refused, "The evidence has no row for {}, which its release plays")
        unknown = _noted if self.is_foreign else _refused
        yield from unknown(stated, "The plan has rows of {}, which this release does not know")
        yield from self._check_reach(stated.values())

    @property
    def has_all_baselines(self) -> bool:
        """Whether every baseline was an incumbent before the search began: no clock decided, nor a price."""
        return self.evidence.threads is None and not self.is_foreign and self.evidence.rental is None

    @property
    def has_all_rows(self) -> bool:
        """Whether every baseline has a row, if only to say that it had no time.

        Workers elsewhere may be late with all of them; a size or a set of devices may be chosen before they are played.
        """
        evidence = self.evidence
        is_one_question = self.problem.batch is None and evidence.rental is None and evidence.workers is None
        return is_one_question and not self.is_foreign and evidence.stopped_by != "internal_error"

    def _check_row(self, row: BaselineResult, derived: BaselineResult) -> Iterator[_EvidenceFinding]:
        """A row says what the baseline does here; that of another release what it did there."""
        differences = list(_compare_rows(row, derived))
        if not self.is_foreign:
            yield from differences
        elif differences:
            self.unchecked.append(row.name)
            yield from _noted([row.name], "The plan has another row than this release would for {}")
            yield from self._check_reach([row])

    def _check_reach(self, rows: Iterable[BaselineResult]) -> Iterator[_Difference]:
        """No row that cannot be played again is of a plan that fits, and is below the bound."""
        for row in rows:
            reached = row.objective_ns(self.problem.options.objective)
            if row.fits_memory and reached is not None and reached < (self.bound_ns or 0):
                message = f"The baseline {row.name[:80]!r} is said to be below the bound of {self.bound_ns} ns."
                field = f"baselines.{row.name}"
                yield _Difference(field=field, stated=reached, derived=self.bound_ns, message=message)

    def _is_beaten(self, baseline: Baseline, row: BaselineResult) -> bool:
        """Whether a baseline answers the question, too, with a smaller objective."""
        objective = row.objective_ns(self.problem.options.objective)
        if baseline.plan is None or not row.fits_memory or objective is None or objective >= self.objective_ns:
            return False
        return verify(self.problem, baseline.plan).passed


def _noted(names: Iterable[str], sentence: str) -> Iterator[Note]:
    """A note about baselines, if there are any: the sentence with their names, of many the first ones."""
    if known := tuple(names):
        yield Note(field="baselines", names=known, message=_name_all(known, sentence))


def _refused(names: Iterable[str], sentence: str) -> Iterator[_Difference]:
    """The same as a fault."""
    if known := tuple(names):
        yield _Difference(field="baselines", stated=known, derived=None, message=_name_all(known, sentence))


def _name_all(known: tuple[str, ...], sentence: str) -> str:
    shown = ", ".join(name[:80] for name in known[:_MOST_NAMES])
    more = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
    count = f"{len(known)} baseline{'s' if len(known) > 1 else ''}"
    return f"{sentence.format(f'{count}: {shown}{more}')}."


def _compare_rows(stated: BaselineResult, derived: BaselineResult) -> Iterator[_Difference]:
    for field in fields(BaselineResult):
        pair = getattr(stated, field.name), getattr(derived, field.name)
        yield from _compare(f"baselines.{derived.name}.{field.name}", stated=pair[0], derived=pair[1])

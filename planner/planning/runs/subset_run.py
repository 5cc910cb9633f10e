"""The planning run of one subset of the devices, at one size of microbatches where that is to be chosen."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from planner.batch_problem import Question, problem_for
from planner.device_subsets import MICROS, PER_UNIT, Counts, DeviceKinds, cost_of, price_of
from planner.documents.embedded_document import KEY
from planner.documents.embedded_problem import enclose
from planner.errors import PlanError
from planner.evidence.cost_bound import write_boxes
from planner.plan import Evidence, Plan, RentalResult
from planner.planning.evidence import Conclusion, finish
from planner.planning.runs.run import RunSetup
from planner.planning.runs.size_run import SizeRun, conclude
from planner.planning.runs.subsets import Choice, Subsets
from planner.problem import Problem
from planner.progress import Limits
from planner.verify import verify


class SubsetRun(SizeRun):
    """One of the runs of a question about money: the least makespan on these devices alone."""

    def __init__(self, kinds: DeviceKinds, choice: Choice, *, limits: Limits, **how: Unpack[RunSetup]) -> None:
        super().__init__(kinds.candidates(choice.counts)[choice.size], limits, **how)
        self.kinds, self.choice = kinds, choice

    @property
    def counts(self) -> Counts:
        """Devices of every class."""
        return self.choice.counts

    @property
    def price(self) -> int:
        """Of all its devices, in millionths per hour."""
        return self.kinds.price(self.counts)

    @property
    def money(self) -> int | None:
        """What its best plan costs."""
        if self.state.plan is None or self.objective_ns is None:
            return None
        return cost_of(self.kinds.problem, self.state.plan, makespan_ns=self.objective_ns)

    def limit_ns(self, money: int) -> int | None:
        """Plans on all its devices are cheaper than this if they are faster; None where it costs nothing."""
        return -(-money // self.price) if self.price else None


def answer(
    question: Question, run: SubsetRun, *, others: Sequence[SubsetRun], subsets: Subsets, stopped_by: str
) -> Plan:
    """The best plan of a run as the answer to the question, with the bound on money over all subsets.

    `others`: on the same devices, at every other size of microbatches that may be chosen.
    """
    for each in (run, *others):
        if each.state.lower_bound is None and not each.infeasible:
            each.bound_quickly()
    alone = finish(run.state, _concluded(run, others, stopped_by=stopped_by))
    evidence, problem = alone.evidence, problem_for(question, alone)
    assert evidence is not None
    bound = {key: value for key, value in evidence.certificate.items() if key != KEY}
    whole = replace(
        alone,
        problem=problem.reference(),
        evidence=replace(
            evidence,
            certificate={**bound, **enclose(problem)},
            rental=_rental(problem, alone, evidence=evidence, run=run, subsets=subsets),
        ),
    )
    verdict = verify(problem, whole)
    if not verdict.passed:
        raise PlanError(f"the verifier rejected the final plan: {verdict.violations[0].message}")
    return whole


def _concluded(run: SubsetRun, others: Sequence[SubsetRun], *, stopped_by: str) -> Conclusion:
    """What is shown of all plans on the devices of the run; a proof about money is none about the time there."""
    assert run.objective_ns is not None
    found = Conclusion.of(run.state)
    if run.choice.size is not None:
        runs = sorted((run, *others), key=lambda each: each.size)
        found = conclude(runs, run, objective_ns=run.objective_ns, stopped_by=stopped_by)
    is_fastest = run.objective_ns <= found.bound.value_ns
    return replace(found, stopped_by="gap" if stopped_by == "proof" and not is_fastest else stopped_by)


def _rental(question: Problem, plan: Plan, *, evidence: Evidence, run: SubsetRun, subsets: Subsets) -> RentalResult:
    cost = cost_of(question, plan, makespan_ns=evidence.makespan_ns)
    deadline_ns = question.options.deadline_ns
    certificate = write_boxes(subsets.kinds, subsets.boxes, deadline_ns=deadline_ns)
    value = certificate["value"]
    return RentalResult(
        devices=tuple(device.name for device in run.state.problem.cluster.devices),
        price_per_hour=price_of(question.cluster, plan.devices) / MICROS,
        cost=cost / PER_UNIT,
        lower_bound=value / PER_UNIT,
        gap=(cost - value) / max(cost, 1),
        certificate=certificate,
    )

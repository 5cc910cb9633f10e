"""The plan that costs least: candidates are subsets of the devices, with one bound on money over them all.

branch       boxes of subsets, each with a quick bound (`planner.decisions.price.subsets`)
runs         the most promising subsets are planned for (`planner.planning.runs.driver`), in two waves: the second one
             knows what the first one's plans cost
bounds       what a run proves of its subset goes into the boxes
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import NoReturn, Unpack

from planner.batch_problem import Question, problem_for
from planner.decisions.price.bound import write_boxes
from planner.decisions.price.device_kinds import MICROS, PER_UNIT, cost_of, price_of
from planner.decisions.price.subsets import Subsets
from planner.documents.embedded_document import KEY
from planner.documents.embedded_problem import enclose
from planner.errors import InfeasibleProblemError, NoPlanFoundError, PlanError
from planner.plan import Plan, RentalResult
from planner.planning.evidence import why_none_was_found
from planner.planning.runs.candidate_run import CandidateRun, Choice
from planner.planning.runs.driver import Driver
from planner.planning.runs.run import PlanningOptions
from planner.problem import Problem
from planner.verify import verify

_RUNS_PER_WAVE = 4
"""Subsets that are planned for in each of two waves."""
_SECOND_WAVE_SHARE = 0.5
"""Part of the time limit after which no further subsets are begun."""
_BRANCH_SHARE = 0.1
"""Part of the time limit for telling them apart, each of two times."""


class CheapestDriver(Driver):
    """The runs of several subsets, and what is known of all the others; plans are ranked by what they cost."""

    has_all_candidates = False

    def __init__(self, question: Question, stack: ExitStack, *, top: int, **how: Unpack[PlanningOptions]) -> None:
        super().__init__(question, stack, top=top, **how)
        self.branched_s = 0.0
        """Seconds in which no run had its turn."""
        self._bounded: dict[Choice, CandidateRun] = {}
        """Of choices that no run was begun for, what knows their quick bounds."""
        with self._branching():
            self.subsets = Subsets(question, self.params)

    @property
    def is_alone(self) -> bool:
        """Never: the boxes are candidates, too."""
        return False

    def begin_all(self) -> None:
        """First plans and bounds of the most promising subsets, then of those that the first plans leave possible."""
        for _ in range(2):
            if not self.is_late(_SECOND_WAVE_SHARE):
                self.branch()
                self._begin_some(self.promising())

    def rank(self, run: CandidateRun) -> tuple[float, float]:
        """Its plan, and what no plan of it costs less than."""
        money = self.money(run)
        return math.inf if money is None else money, self._price_of(run) * (run.lower_bound_ns or 0)

    def name(self, run: CandidateRun) -> str:
        """How many devices it has, and what was chosen."""
        size = super().name(run)
        return f"{sum(run.choice.counts)} devices{size and f', {size}'}"

    def told(self, plan: Plan) -> Plan:
        """The same stages and device orders; the devices that have none stay idle."""
        return replace(plan, problem=problem_for(self.question, plan).reference())

    def _price_of(self, run: CandidateRun) -> int:
        """Of all its devices, in millionths per hour."""
        return self.subsets.kinds.price(run.choice.counts)

    def value_of(self, plan: Plan, *, total_ns: int) -> int:
        """What the devices of a plan cost for so long."""
        return cost_of(self.question, plan, makespan_ns=total_ns)

    def money(self, run: CandidateRun) -> int | None:
        """What its best plan costs, for all iterations that are counted, if that ends by the deadline."""
        if (
            run.plan is None
            or run.total_ns is None
            or run.objective_ns is None
            or not self._is_in_time(run.objective_ns)
        ):
            return None
        return self.value_of(run.plan, total_ns=run.total_ns)

    def _is_in_time(self, objective_ns: int) -> bool:
        deadline = self.question.options.deadline_ns
        return deadline is None or objective_ns <= deadline

    @property
    def best(self) -> CandidateRun | None:
        """The run with the cheapest plan."""
        return min((run for run in self.runs if self.money(run) is not None), key=self.rank, default=None)

    @property
    def best_money(self) -> int | None:
        """What an iteration costs at most with the cheapest plan, and its part of moving."""
        money = None if self.best is None else self.money(self.best)
        return None if money is None or self.best is None else -(-money // self.best.steps_left)

    @property
    def elapsed_s(self) -> float:
        """Seconds of all runs, and those spent on the subsets as such."""
        return super().elapsed_s + self.branched_s

    @property
    def lower_bound_ns(self) -> int | None:
        """What no plan on the devices of the best is below."""
        return None if self.best is None else self.best.lower_bound_ns

    @property
    def gap(self) -> float | None:
        """What the bound on money leaves open below the cheapest plan."""
        best, least = self.best_money, self.subsets.lower_bound
        return None if best is None or least is None else (best - least) / max(best, 1)

    def limit_ns(self, run: CandidateRun) -> int | None:
        """A plan of the run matters if it is in time, and cheaper than those of others."""
        deadline = self.question.options.deadline_ns
        limits = [] if deadline is None else [deadline + 1]
        others = [self.money(each) for each in self.runs if each is not run]
        known = min((money for money in others if money is not None), default=None)
        if known is not None and (price := self._price_of(run) * run.steps_left):
            limits.append(-(-known // price))  # where all its devices are used, faster plans are cheaper
        return min(limits, default=None)

    def branch(self) -> None:
        """Cut boxes until the most promising ones are single subsets."""
        until = self.elapsed_s + _BRANCH_SHARE * self.limits.time_limit_s
        with self._branching() as passed_s:

            def has_time() -> bool:
                return self.limits.max_rounds is not None or self.elapsed_s + passed_s() < until

            self.subsets.propose(has_time=has_time)
            self.subsets.branch(below=self.best_money, wanted=_RUNS_PER_WAVE, has_time=has_time)

    def promising(self) -> list[Choice]:
        """Subsets and sizes that may have a cheaper plan; those fastest by their bounds if none is in time so far."""
        found = self.subsets.prospects(self.best_money)
        if self.runs and self.best is None:
            found.sort(key=lambda each: each.time_ns)
        return [each.choice for each in found]

    def _begin_some(self, candidates: Sequence[Choice]) -> None:
        """Baselines and bounds of the first candidates that have no run yet."""
        known = {run.choice for run in self.runs}
        chosen = [choice for choice in candidates if choice not in known][:_RUNS_PER_WAVE]
        found = {choice: self._problem_of(choice) for choice in chosen}
        self.begin(found, num_runs=len(found) + len(known))

    def _problem_of(self, choice: Choice) -> Problem:
        return self.subsets.kinds.candidates(choice.counts)[choice.size]

    def take_up(self, run: CandidateRun, step: Callable[[CandidateRun], object]) -> None:
        """What the step proves of its devices holds for all boxes of which they are the largest subset."""
        super().take_up(run, step)
        self.note_bound(run)

    def note_bound(self, run: CandidateRun) -> None:
        """It holds for all boxes of which its devices are the largest subset."""
        if run.state.lower_bound is not None:
            self.subsets.learn(run.choice, run.state.lower_bound)

    def siblings(self, run: CandidateRun) -> list[CandidateRun]:
        """The runs on the same devices; of sizes that had none one that knows its quick bound alone."""
        runs = {each.choice: each for each in self.runs}
        runs |= self._bounded
        found = []
        for size, entry in self.subsets.known(run.choice.counts).items():
            choice = Choice(run.choice.counts, size)
            if choice not in runs:
                self._bounded[choice] = runs[choice] = self.make_run(
                    choice, self._problem_of(choice), limits=self.limits
                )
                runs[choice].note(entry)
            found.append(runs[choice])
        for each in found:
            if each.state.lower_bound is None and not each.infeasible:
                each.bound_quickly()
        return found

    def answer(self, run: CandidateRun, plan: Plan) -> Plan:
        """A plan of a run as the answer to the question, with the bound on money over all subsets."""
        evidence, problem = plan.evidence, problem_for(self.question, plan)
        assert evidence is not None
        bound = {key: value for key, value in evidence.certificate.items() if key != KEY}
        whole = replace(
            plan,
            problem=problem.reference(),
            evidence=replace(
                evidence,
                certificate={**bound, **enclose(problem)},
                rental=self._rental(problem, run, plan=plan, makespan_ns=evidence.makespan_ns),
            ),
        )
        verdict = verify(problem, whole)
        if not verdict.passed:
            raise PlanError(f"the verifier rejected the final plan: {verdict.violations[0].message}")
        return whole

    def _rental(self, question: Problem, run: CandidateRun, *, plan: Plan, makespan_ns: int) -> RentalResult:
        cost = cost_of(question, plan, makespan_ns=makespan_ns)
        deadline_ns = question.options.deadline_ns
        certificate = write_boxes(self.subsets.kinds, self.subsets.boxes, deadline_ns=deadline_ns)
        value = certificate["value"]
        return RentalResult(
            devices=tuple(device.name for device in run.state.problem.cluster.devices),
            price_per_hour=price_of(question.cluster, plan.devices) / MICROS,
            cost=cost / PER_UNIT,
            lower_bound=value / PER_UNIT,
            gap=(cost - value) / max(cost, 1),
            certificate=certificate,
        )

    def is_allowed(self, plan: Plan) -> bool:
        """Whether it ends by the deadline."""
        return plan.evidence is not None and self._is_in_time(plan.evidence.makespan_ns)

    def give_up(self) -> NoReturn:
        """Raise what is known: that no plan fits, or only that none was found."""
        deadline = self.question.options.deadline_ns
        if self.subsets.lower_bound is None:
            reasons = {box.time for box in self.subsets.boxes if isinstance(box.time, str)}
            late = [box.time_ns for box in self.subsets.boxes if box.time_ns is not None]
            if late:
                reasons.add(
                    f"deadline_ns = {deadline}, but no plan is faster than {min(late)} ns; give a later deadline"
                )
            raise InfeasibleProblemError(f"no plan fits on any subset of the devices: {'; '.join(sorted(reasons))}")
        late_ns = min((run.objective_ns for run in self.runs if run.objective_ns is not None), default=None)
        if late_ns is not None:
            raise NoPlanFoundError(
                f"none in {self.elapsed_s:.0f} s of search ends by deadline_ns = {deadline}: the fastest takes "
                f"{late_ns} ns; give a later deadline"
            )
        raise NoPlanFoundError(
            f"none in {self.elapsed_s:.0f} s of search on any of {len(self.runs)} subsets of the devices; "
            f"{'; '.join(why_none_was_found([run.state for run in self.runs]))}"
        )

    @contextmanager
    def _branching(self) -> Iterator[Callable[[], float]]:
        """Count the seconds; it hands out how many have passed."""
        begin = time.monotonic()
        yield lambda: time.monotonic() - begin
        self.branched_s += time.monotonic() - begin


make_driver = CheapestDriver

"""The front of time and money: plans on subsets of the devices of which none is both faster and cheaper than another.

branch       boxes of subsets, those that differ most in price first
runs         one per subset that may have a point of the front, if there are not too many, in two waves: the second
             has what the plans of the first leave possible; then equal slices for all
points       every plan left is the answer to a question of its own: the least cost by the time at which it ends
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Unpack

from planner.batch_problem import Question, problem_for
from planner.decisions.price.device_kinds import PER_UNIT
from planner.decisions.price.driver import BRANCH_SHARE, CheapestDriver
from planner.decisions.price.subsets import Prospect
from planner.export.targets import require_possible
from planner.option_conflicts import require_consistent
from planner.plan import Plan
from planner.planning.runs.candidate_run import CandidateRun, Choice
from planner.planning.runs.run import PlanningOptions
from planner.problem import Problem

_RUNS_ON_FRONT = 8
"""Subsets that are planned for where the front of time and money is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """A plan of the front."""

    problem: Problem
    """What it answers: the least cost of an iteration that ends as soon as this plan's does, over all subsets."""
    plan: Plan
    """The plan; its evidence has the bounds on the time on its devices, and on the cost of all plans as fast."""
    makespan_ns: int
    """End of the iteration."""
    cost: float
    """Money per iteration."""
    least_cost: float
    """No plan on any devices that is as fast costs less."""
    least_ns: int
    """No plan on any devices that costs as little is faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoFront:
    """The points, the fastest first."""

    points: tuple[ParetoPoint, ...]
    """At least one."""
    num_subsets: int
    """Subsets of the devices, alike ones counted once."""
    num_planned: int
    """Subsets that were planned for; the others are covered by bounds."""


def make_pareto(problem: Question, **how: Unpack[PlanningOptions]) -> ParetoFront:
    """Verified plans of which none is both faster and cheaper than another, each with its bounds on time and money.

    The objective of `problem` is taken to be `cost`; its deadline, if it has one, holds for all points, and with a
    global batch each decides on its size of microbatches. The options of a planning run are those of
    `planner.planning.make_plan`. Raises as it does.
    """
    if how.get("transition") is not None:
        raise TypeError("make_pareto() takes no transition")
    question: Question = replace(problem, options=replace(problem.options, objective="cost"))
    require_consistent(question)
    require_possible(question, how.get("target"))
    with ExitStack() as stack:
        return _FrontDriver(question, stack, top=1, **how).front()


class _FrontDriver(CheapestDriver):
    """The runs of all subsets that may have a point of the front."""

    most_runs = (_RUNS_ON_FRONT, _RUNS_ON_FRONT // 2)

    @property
    def gap(self) -> float | None:
        """There is none for a front as a whole: it ends when nothing is open, or its time is over."""
        return None

    def limit_ns(self, run: CandidateRun) -> int | None:
        """Plans of the run that take longer are both slower and dearer than another's, or late."""
        deadline = self.question.options.deadline_ns
        limits = [] if deadline is None else [deadline + 1]
        for other in self.runs:
            money = None if other is run else self.money(other)
            if money is not None and other.objective_ns is not None:
                as_dear = self.limit_by(run, money)
                limits += [] if as_dear is None else [max(other.objective_ns, as_dear)]
        return min(limits, default=None)

    def branch(self) -> None:
        """Cut boxes everywhere, not only where it is cheap; once."""
        if self.runs:
            return
        until = 2 * BRANCH_SHARE * self.limits.time_limit_s
        with self._branching() as passed_s:

            def has_time() -> bool:
                return self.limits.max_rounds is not None or self.elapsed_s + passed_s() < until

            self.subsets.propose(has_time=has_time)
            self.subsets.branch_evenly(has_time=has_time)

    def promising(self) -> list[Choice]:
        """Subsets and sizes on the front if every bound were reached; of many, some from each part of it."""
        known = [run.choice for run in self.runs]
        found = [
            each for each in self.subsets.prospects(None) if each.choice not in known and not self._is_beaten(each)
        ]
        front = [each for each in found if not any(_is_behind(each, other) for other in found)]
        ordered = sorted(front, key=lambda each: each.time_ns)
        most = _RUNS_ON_FRONT
        if len(ordered) <= most:
            return [each.choice for each in ordered]
        return [ordered[number * (len(ordered) - 1) // max(1, most - 1)].choice for number in range(most)]

    def _is_beaten(self, prospect: Prospect) -> bool:
        """Whether a plan is as fast and as cheap as the bounds of a subset would let one of it be."""
        points = (self._time_and_money(run) for run in self.runs if self.money(run) is not None)
        return any(each[0] <= prospect.time_ns and each[1] <= prospect.money for each in points)

    def search(self) -> None:
        """No run is better than another."""
        self.search_evenly()

    def front(self) -> ParetoFront:
        """The plans of which none is both faster and cheaper than another, with their evidence."""
        self.run_all()
        planned = [run for run in self.runs if self.money(run) is not None]
        if not planned:
            self.give_up()
        best = list[CandidateRun]()
        for run in sorted(planned, key=self._time_and_money):
            if not best or self._time_and_money(run)[1] < self._time_and_money(best[-1])[1]:
                best.append(run)
        return ParetoFront(
            points=tuple(map(self._point, best)),
            num_subsets=self.subsets.num_subsets,
            num_planned=len({run.choice.counts for run in self.runs}),
        )

    def _point(self, run: CandidateRun) -> ParetoPoint:
        time_ns, money = self._time_and_money(run)
        options = replace(self.question.options, deadline_ns=time_ns)
        question: Question = replace(self.question, options=options)
        own, *_ = run.finish(self.concluding(run))
        plan = self.answer_to(question, run, plan=own)
        assert plan.evidence is not None
        assert plan.evidence.rental is not None
        return ParetoPoint(
            problem=problem_for(question, plan),
            plan=plan,
            makespan_ns=time_ns,
            cost=money / PER_UNIT,
            least_cost=plan.evidence.rental.lower_bound,
            least_ns=self.subsets.least_ns(money),
        )

    def _time_and_money(self, run: CandidateRun) -> tuple[int, int]:
        money = self.money(run)
        assert run.objective_ns is not None
        assert money is not None
        return run.objective_ns, money


def _is_behind(prospect: Prospect, other: Prospect) -> bool:
    """Whether by their bounds another subset is faster and no dearer, or cheaper and no slower."""
    ours, theirs = (prospect.time_ns, prospect.money), (other.time_ns, other.money)
    return ours != theirs and ours[0] >= theirs[0] and ours[1] >= theirs[1]

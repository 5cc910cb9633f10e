"""One planning run over problems of which only one is to be answered: the one with the shortest plan."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NoReturn, Unpack

from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.export.targets import require_possible
from planner.option_conflicts import require_consistent
from planner.plan import Plan
from planner.planning.runs.candidate_run import CandidateRun, Choice
from planner.planning.runs.driver import Driver
from planner.planning.runs.run import PlanningOptions
from planner.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class BestAlternative:
    """The shortest plan of all problems."""

    name: str
    """Of the problem that it answers."""
    plan: Plan
    """Verified, with the evidence of that problem."""
    lower_bound_ns: int | None
    """What no plan of any problem is below; None where that is not known of each."""


def make_best_plan(problems: Mapping[str, Problem], **how: Unpack[PlanningOptions]) -> BestAlternative:
    """The shortest plan of any of the problems within the limits, which they share as sizes of microbatches do.

    Raises InfeasibleProblemError where none has a plan, NoPlanFoundError where none was found.
    """
    possible, reason = dict[str, Problem](), InfeasibleProblemError("no problem was given; give one or more")
    for name, problem in problems.items():
        require_consistent(problem)
        try:
            require_possible(problem, how.get("target"))
            possible[name] = problem
        except InfeasibleProblemError as error:
            reason = error
    if not possible:
        raise reason
    with ExitStack() as stack:
        return AlternativesDriver(possible, stack, **how).answer_best()


class AlternativesDriver(Driver):
    """The runs on problems by name."""

    def __init__(self, problems: Mapping[str, Problem], stack: ExitStack, **how: Unpack[PlanningOptions]) -> None:
        self.names, self.problems = list(problems), list(problems.values())
        super().__init__(self.problems[0], stack, top=1, **how)

    def begin_all(self) -> None:
        """First plans and bounds of all of them."""
        found = {Choice((number,), None): problem for number, problem in enumerate(self.problems)}
        self.begin(found, num_runs=len(found))

    def name(self, run: CandidateRun) -> str:
        """The key of the problem in `problems`."""
        return self.names[run.choice.counts[0]]

    def answer_best(self) -> BestAlternative:
        """The best plan, and what is known of every problem."""
        plan, *_ = self.plans()
        assert self.best is not None
        return BestAlternative(name=self.name(self.best), plan=plan, lower_bound_ns=self.lower_bound_ns)

    def give_up(self) -> NoReturn:
        """Raise what is known of all."""
        if all(run.why_infeasible for run in self.runs):
            raise InfeasibleProblemError(
                f"no plan fits. {self.name(self.runs[0])}: {self.runs[0].why_infeasible}; use more devices"
            )
        raise NoPlanFoundError(
            f"none in {self.elapsed_s:.0f} s of search in any of {len(self.runs)} problems; raise the time limit"
        )

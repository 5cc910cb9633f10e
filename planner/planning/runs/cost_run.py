"""The plan that costs least: a run per promising subset of the devices, one incumbent for all, one bound on money.

branch       boxes of subsets, each with a quick bound (`planner.planning.runs.subsets`)
runs         the most promising subsets are planned for in rounds (`planner.planning.runs.successive_halving`), in two
             waves: the
             second one knows what the first one's plans cost
bounds       what a run proves of its subset goes into the boxes
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Unpack

from planner.batch_problem import Question, problem_for
from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.plan import Plan
from planner.planning.complete.complete_search import require_answerable
from planner.planning.evidence import why_none_was_found
from planner.planning.planning_params import SearchParams
from planner.planning.runs.run import PlanningOptions, ignore, never
from planner.planning.runs.subset_run import SubsetRun, answer
from planner.planning.runs.subsets import Choice, Subsets
from planner.planning.runs.successive_halving import SuccessiveHalving
from planner.progress import Limits

_RUNS_PER_WAVE = 4
"""Subsets that are planned for at once."""
SECOND_WAVE_SHARE = 0.5
"""Part of the time limit after which no further subsets are begun."""
BRANCH_SHARE = 0.1
"""Part of the time limit for telling them apart, each of two times."""


def make_cheapest_plan(question: Question, **how: Unpack[PlanningOptions]) -> Plan:
    """The verified plan that costs least per iteration, over all subsets of the devices and sizes of microbatches.

    `limits.max_rounds` counts the rounds of the subset that has most. Otherwise as `planner.planning.make_plan`.
    """
    require_answerable(question, how.get("limits") or Limits())
    with ExitStack() as stack:
        field = SubsetField(question, stack, **how)
        field.branch()
        field.begin(field.promising(), most=_RUNS_PER_WAVE)
        if not field.is_late(SECOND_WAVE_SHARE):
            field.branch()
            field.begin(field.promising(), most=_RUNS_PER_WAVE)
        field.search()
        return field.finish()


class SubsetField(SuccessiveHalving[SubsetRun]):
    """The runs of several subsets, and what is known of all the others."""

    def __init__(self, question: Question, stack: ExitStack, **how: Unpack[PlanningOptions]) -> None:
        super().__init__(
            how.get("limits") or Limits(),
            on_progress=how.get("on_progress") or ignore,
            should_stop=how.get("should_stop") or never,
        )
        self.question, self.stack, self.how = question, stack, how
        self.params = how.get("params", SearchParams())
        self.branched_s = 0.0
        """Seconds in which no run had its turn."""
        with self._branching():
            self.subsets = Subsets(question, self.params)

    def rank(self, run: SubsetRun) -> tuple[float, float]:
        """Its plan, and what no plan of it costs less than."""
        money = self.money(run)
        return math.inf if money is None else money, run.price * (run.lower_bound_ns or 0)

    def name(self, run: SubsetRun) -> str:
        """How many devices it has, and what was chosen."""
        size = run.choice.size
        return f"{sum(run.counts)} devices{'' if size is None else f', microbatches of {size}'}"

    def told(self, plan: Plan) -> Plan:
        """The same stages and device orders; the devices that have none stay idle."""
        return replace(plan, problem=problem_for(self.question, plan).reference())

    def money(self, run: SubsetRun) -> int | None:
        """What its best plan costs, if that ends by the deadline."""
        deadline = self.question.options.deadline_ns
        is_late = deadline is not None and (run.objective_ns or 0) > deadline
        return None if is_late else run.money

    @property
    def best(self) -> SubsetRun | None:
        """The run with the cheapest plan."""
        return min((run for run in self.runs if self.money(run) is not None), key=self.rank, default=None)

    @property
    def best_money(self) -> int | None:
        """What the cheapest plan costs."""
        return None if self.best is None else self.money(self.best)

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

    def limit_ns(self, run: SubsetRun) -> int | None:
        """A plan of the run matters if it is in time, and cheaper than those of others."""
        deadline = self.question.options.deadline_ns
        limits = [] if deadline is None else [deadline + 1]
        others = [self.money(each) for each in self.runs if each is not run]
        known = min((money for money in others if money is not None), default=None)
        if known is not None and (most := run.limit_ns(known)) is not None:
            limits.append(most)
        return min(limits, default=None)

    def branch(self) -> None:
        """Cut boxes until the most promising ones are single subsets."""
        until = self.elapsed_s + BRANCH_SHARE * self.limits.time_limit_s
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

    def begin(self, candidates: Sequence[Choice], *, most: int) -> None:
        """Baselines and bounds of the first candidates that have no run yet."""
        runs = self._enter(candidates, most=most)
        self.make_first_plans(runs, self.how.get("start"))
        self.bound(runs)

    def _enter(self, candidates: Sequence[Choice], *, most: int) -> list[SubsetRun]:
        known = {run.choice for run in self.runs}
        chosen = [choice for choice in candidates if choice not in known][:most]
        share = replace(self.limits, time_limit_s=self.limits.time_limit_s / max(1, len(chosen) + len(known)))
        for choice in chosen:
            run = self._make_run(choice, limits=share)
            run.state.num_runs = len(chosen) + len(known)
            self.runs.append(run)
        return self.runs[len(known) :]

    def _make_run(self, choice: Choice, *, limits: Limits) -> SubsetRun:
        run = SubsetRun(
            self.subsets.kinds,
            choice,
            limits=limits,
            on_progress=self.hear,
            should_stop=self.should_stop,
            target=self.how.get("target"),
            params=self.params,
        )
        return self.stack.enter_context(run)

    def take_up(self, run: SubsetRun, step: Callable[[SubsetRun], object]) -> None:
        """What the step proves of its devices holds for all boxes of which they are the largest subset."""
        super().take_up(run, step)
        if run.state.lower_bound is not None:
            self.subsets.learn(run.choice, run.state.lower_bound)

    def finish(self) -> Plan:
        """The cheapest plan with its evidence."""
        for run in self.runs:
            run.close()
        if self.best is None:
            self.give_up()
        assert self.best is not None
        return self.answer(self.question, self.best)

    def answer(self, question: Question, run: SubsetRun) -> Plan:
        """The best plan of a run as the answer to a question about its cost."""
        others = self._at_other_sizes(run)
        return answer(question, run, others=others, subsets=self.subsets, stopped_by=self.stopped_by())

    def _at_other_sizes(self, run: SubsetRun) -> list[SubsetRun]:
        """The runs on the same devices; of sizes that had none one that knows its quick bound alone."""
        runs = {each.choice: each for each in self.runs}
        found = []
        for size, entry in self.subsets.known(run.counts).items():
            choice = Choice(run.counts, size)
            if size == run.choice.size:
                continue
            if choice not in runs:
                runs[choice] = self._make_run(choice, limits=self.limits)
                runs[choice].note(entry)
            found.append(runs[choice])
        return found

    def give_up(self) -> None:
        """Raise what is known: that no plan fits, or only that none was found."""
        if self.subsets.lower_bound is None:
            deadline = self.question.options.deadline_ns
            reasons = {box.time for box in self.subsets.boxes if isinstance(box.time, str)}
            late = [box.time_ns for box in self.subsets.boxes if box.time_ns is not None]
            if late:
                reasons.add(
                    f"deadline_ns = {deadline}, but no plan is faster than {min(late)} ns; give a later deadline"
                )
            raise InfeasibleProblemError(f"no plan fits on any subset of the devices: {'; '.join(sorted(reasons))}")
        late_ns = min((run.objective_ns for run in self.runs if run.objective_ns is not None), default=None)
        if late_ns is not None:
            deadline = self.question.options.deadline_ns
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

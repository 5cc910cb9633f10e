"""One planning run: a list of candidate problems, each with plan, bound and share of time, and one answer.

    all          on many devices first plans, the least estimate first
    all          baselines, then bounds; the last first
    rounds       every open run has an equal slice of a round; the better half continues to the next one
    the last     what is left belongs to the best

A run is closed as soon as its bound reaches what others have; a quick bound is tried before anything is played. There
are as many rounds as it takes to leave one run, and they last equally long: of two the better one has three quarters of
the time of search, of four the best has 7/12. Where the runs of a round are closed early, those that were left behind
have their time. A single candidate has all of it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, Unpack

from planner.batch_problem import BatchProblem, Question
from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.evidence.certificate import least_over_sizes
from planner.plan import Plan
from planner.plan_kind import kind_of
from planner.planning.complete.complete_search import CLAIM, is_complete, require_answerable
from planner.planning.evidence import Conclusion, finish, why_none_was_found
from planner.planning.planning_params import SearchParams
from planner.planning.runs.candidate_run import CandidateRun, Choice
from planner.planning.runs.run import PlanningOptions, ignore, never
from planner.planning.runs.spread_steps import begin_on_workers
from planner.planning.search_state import FAILED, NO_PLAN_SHARE
from planner.problem import Problem
from planner.progress import Limits, Progress

_TAKEOVER_SHARE = 0.25
"""Last part of the time limit for layouts by the sum of iterations and moving, where a plan takes over."""

_RAISE_SHARE = 0.6
"""Part of the time limit by whose end the least bound of several candidates is raised."""
_NEAR = 0.002
"""Part of an objective that is not worth raising it further."""


class Driver:
    """The runs on the candidates of a question: all sizes of microbatches that may be chosen, or the problem itself.

    Plans are ranked by their objective, or by all that is left where they take over from a running one.
    """

    has_all_candidates = True
    """Whether there is a run on every candidate."""

    def __init__(self, question: Question, stack: ExitStack, *, top: int, **how: Unpack[PlanningOptions]) -> None:
        self.question, self.stack, self.top, self.how = question, stack, top, how
        self.limits = how.get("limits") or Limits()
        self.params = how.get("params", SearchParams())
        self.transition = how.get("transition")
        self.on_progress = how.get("on_progress") or ignore
        self.should_stop = how.get("should_stop") or never
        require_answerable(question, self.limits)
        self.runs: list[CandidateRun] = []

    def plans(self) -> tuple[Plan, ...]:
        """The best plan, and behind it those of other kinds; raises as `planner.planning.make_plan` does."""
        self.run_all()
        for run in self.runs:
            run.look_back(num_runs=len(self.runs))
        if self.best is None:
            self.give_up()
        best, *more = self.answers(self.best)
        return (best, *more, *self._others([best, *more]))

    def run_all(self) -> None:
        """Every step of every run."""
        limits = self.limits
        if self._is_takeover_searched() and limits.max_rounds is None:
            self.limits = replace(limits, time_limit_s=(1 - _TAKEOVER_SHARE) * limits.time_limit_s)
        self.begin_all()
        self.search()
        for run in self.runs:
            run.close()
        self.limits = limits
        self._search_for_takeover()

    def _is_takeover_searched(self) -> bool:
        is_listed = isinstance(self.question, Problem) and self.question.microbatches is not None
        return self.transition is not None and not is_listed

    def begin_all(self) -> None:
        """First plans and bounds of all candidates."""
        question = self.question
        if isinstance(question, BatchProblem):
            pairs = zip(question.sizes, question.candidates, strict=True)
            found = {Choice((), size): problem for size, problem in pairs}
        else:
            found = {Choice((), None): question.at_its_size()}
        self.begin(found, num_runs=len(found))

    def begin(self, candidates: dict[Choice, Problem], *, num_runs: int) -> None:
        """First plans and bounds of some candidates, whose runs are some of so many."""
        share = replace(self.limits, time_limit_s=self.limits.time_limit_s / max(1, num_runs))
        runs = [self.make_run(choice, problem, limits=share) for choice, problem in candidates.items()]
        for run in runs:
            run.state.num_runs = num_runs
        if runs and not self.runs:
            self.stack.enter_context(runs[0].state.collected_rarely())
        self.runs += runs
        is_spread = self.is_spread(runs)
        if is_spread:
            begin_on_workers(self, runs, start=self.how.get("start"))
        if self.best is None or not is_spread:
            self._make_first_plans(runs)
        self._bound(runs)
        self._raise_least(runs)

    def is_spread(self, runs: Sequence[CandidateRun]) -> bool:
        """Whether workers make the first plans and bounds of these runs; all that they make comes back as documents."""
        is_plain = self.transition is None and self.how.get("target") is None and self.top == 1
        is_equal = not any(run.is_listed for run in runs)
        has_workers = self.how.get("workers") is not None
        return has_workers and len(runs) > 1 and is_plain and is_equal and not is_complete(self.limits.method)

    def make_run(self, choice: Choice, problem: Problem, *, limits: Limits) -> CandidateRun:
        """A new search of one size or subset of devices, with limits of its own."""
        run = CandidateRun(
            problem,
            limits,
            choice=choice,
            top=self.top,
            transition=self.transition,
            cluster=self.question.cluster,
            on_progress=self._hear,
            should_stop=self.should_stop,
            target=self.how.get("target"),
            params=self.params,
            workers=self.how.get("workers"),
        )
        return self.stack.enter_context(run)

    def rank(self, run: CandidateRun) -> Any:
        """What speaks for a run, the best first: its plan, its bound, and the smaller size among equals."""
        value, least = run.total_ns, run.lower_bound_ns
        return math.inf if value is None else value, 0 if least is None else least, run.size or 0

    def name(self, run: CandidateRun) -> str:
        """What distinguishes the run from other candidates, as reports show it."""
        return "" if run.size is None else f"microbatches of {run.size}"

    def limit_ns(self, run: CandidateRun) -> int | None:
        """Only iterations of the run that are shorter than this are better than what is known of others."""
        others = (each.total_ns for each in self.runs if each is not run)
        best = min((each for each in others if each is not None), default=None)
        return None if best is None else -(-best // run.steps_left)

    @property
    def best(self) -> CandidateRun | None:
        """The run with the best plan."""
        return min((run for run in self.runs if run.plan is not None), key=self.rank, default=None)

    @property
    def elapsed_s(self) -> float:
        """Seconds of all runs."""
        return sum(run.state.elapsed_s for run in self.runs)

    @property
    def lower_bound_ns(self) -> int | None:
        """What no plan of any run is below, once that is known of all of them."""
        bounds = [run.lower_bound_ns for run in self.runs if not run.infeasible]
        known = [bound for bound in bounds if bound is not None]
        return min(known) if known and len(known) == len(bounds) else None

    @property
    def gap(self) -> float | None:
        """What the bound leaves open below the best plan."""
        if self.best is None or self.best.total_ns is None or self.lower_bound_ns is None:
            return None
        value, least = self.best.total_ns, self.best.steps_left * self.lower_bound_ns
        return (value - least) / max(value, 1)

    def _hear(self, progress: Progress) -> None:
        """A step of one run, told as a step of all."""
        best = self.best
        names = [] if best is None else [each for each in (best.state.source, self.name(best)) if each]
        self.on_progress(
            Progress(
                elapsed_s=self.elapsed_s,
                phase=progress.phase,
                incumbent=None if best is None or best.plan is None else self.told(best.plan),
                incumbent_ns=None if best is None else best.objective_ns,
                lower_bound_ns=self.lower_bound_ns,
                gap=self.gap,
                source=", ".join(names),
            )
        )

    def told(self, plan: Plan) -> Plan:
        """A run's plan as an answer to the question that all of them share."""
        return plan

    @property
    def is_alone(self) -> bool:
        """Whether there is but one candidate, whose run has all the time, and says why it ends."""
        return len(self.runs) == 1

    def _make_first_plans(self, runs: Sequence[CandidateRun]) -> None:
        """Baselines of some runs, or only the proofs that some are closed once the time for first plans is over.

        Of several, the most promising ones first have plans that need little time.
        """
        if not self.is_alone:
            for run in reversed(runs):
                known = min(each.estimate_ns for each in runs)
                self.take_up(run, partial(CandidateRun.lay_out, known=known))
            for run in sorted(runs, key=lambda each: each.estimate_ns):
                if run.estimate_ns < math.inf and not self.is_late(NO_PLAN_SHARE):
                    self.take_up(run, lambda each: each.begin())
        for run in reversed(runs):
            if not self.is_alone and self.is_late(NO_PLAN_SHARE):
                self.take_up(run, lambda each: each.rule_out())
            else:
                self.take_up(run, lambda each: each.make_first_plans(self.how.get("start")))

    def _bound(self, runs: Sequence[CandidateRun]) -> None:
        """The bounds of some runs; what of them is quick once the time is over."""
        for run in reversed(runs):
            if not self.is_alone and self.is_late(1.0):
                self.take_up(run, lambda each: each.bound_quickly())
            elif not run.is_empty:
                self.take_up(run, lambda each: each.bound())

    def _raise_least(self, runs: Sequence[CandidateRun]) -> None:
        """Raise the least bound of several sizes, by halves of what is open, up to a part of the time.

        No size is asked for more than all may have, the one that failed last is asked first: so the time goes to those
        that hold the minimum down.
        """
        field = sorted((run for run in runs if not run.infeasible), key=lambda run: run.shown_ns)
        limits = [run.state.threshold_ns for run in field if run.state.threshold_ns is not None]
        is_timed = self.limits.max_rounds is None and not is_complete(self.limits.method)
        is_open = isinstance(self.question, BatchProblem) and not self.is_alone
        is_plain = is_open and self.question.options.objective == "makespan"
        if not limits or not is_timed or not is_plain or not self.has_all_candidates:
            return
        low, high = field[0].shown_ns, min(limits)
        while high - low > max(1, _NEAR * high) and not self.is_late(_RAISE_SHARE) and not self.is_over():
            middle = int(low + high) // 2
            failed = next((run for run in field if not self._raise_to(run, middle)), None)
            if failed is None:
                low = middle
            else:
                high = middle
                field.sort(key=lambda run: run is not failed)

    def _raise_to(self, run: CandidateRun, value: int) -> bool:
        with run.active():
            return not self.is_late(_RAISE_SHARE) and run.raise_to(value)

    def is_late(self, share: float) -> bool:
        """Whether there is a plan, and that part of the time is over, so that runs not looked at must wait."""
        is_timed = self.limits.max_rounds is None
        return is_timed and self.best is not None and self.elapsed_s >= share * self.limits.time_limit_s

    def take_up(self, run: CandidateRun, step: Callable[[CandidateRun], object]) -> None:
        """Run one step of a candidate, limited by the best objective of all others."""
        run.state.rival_ns = self.limit_ns(run)
        if not run.infeasible:
            with run.active():
                step(run)

    def note_bound(self, run: CandidateRun) -> None:
        """What is known of a run says nothing of other runs: they share no devices that could tell."""

    def search(self) -> None:
        """Rounds from all open runs down to one, and again among those that were left behind."""
        if self.is_alone:
            if not self.runs[0].has_ended:
                self.take_up(self.runs[0], lambda each: each.search_to_the_end(self.seconds_left))
        elif is_complete(self.limits.method):
            self._search_evenly()
        else:
            self._halve()

    @property
    def seconds_left(self) -> float:
        """Until the time limit."""
        return max(0.0, self.limits.time_limit_s - self.elapsed_s)

    def _halve(self) -> None:
        while field := self.open(self.runs):
            while True:
                self._run_round(field)
                if len(field) == 1:
                    break
                field = sorted(field, key=self.rank)[: (len(field) + 1) // 2]
            if field[0].has_had_its_rounds:
                break

    def _search_evenly(self) -> None:
        """Equal slices of what is left for all open runs, until none is open or has anything left to do."""
        while field := self.open(self.runs):
            for number, run in enumerate(field):
                slice_s = self.seconds_left / (len(field) - number)
                if self.open([run]):
                    self._give_slice(run, slice_s)

    def _give_slice(self, run: CandidateRun, slice_s: float) -> None:
        if self.limits.max_rounds is None and not is_complete(self.limits.method):
            self.take_up(run, lambda each: each.search(slice_s, horizon_s=slice_s))
        else:
            self.take_up(run, lambda each: each.search_to_the_end(slice_s))

    def open(self, runs: list[CandidateRun]) -> list[CandidateRun]:
        """Those whose search may find a better plan than is known; none once the time is over."""
        if self.is_over():
            return []
        return [run for run in runs if self.is_open(run) and not run.has_ended]

    def is_open(self, run: CandidateRun) -> bool:
        """Whether a plan of the run may be better than the best."""
        own = None if run.total_ns is None else -(-run.total_ns // run.steps_left)
        limits = (self.limit_ns(run), own)
        return run.is_open(min((each for each in limits if each is not None), default=None))

    def is_over(self) -> bool:
        """Whether the time is, or what was asked for is reached."""
        is_reached = self.gap is not None and self.gap <= self.limits.gap
        return is_reached or self.should_stop() or self.elapsed_s >= self.limits.time_limit_s

    def _run_round(self, field: list[CandidateRun]) -> None:
        """A slice of this round for every run in it; one alone continues to its end."""
        counts = [len(field)]
        while counts[-1] > 1:
            counts.append((counts[-1] + 1) // 2)
        round_s = self.seconds_left / len(counts)
        horizon_s = round_s * sum(1 / count for count in counts)
        most = self.limits.max_rounds
        for run in field:
            if not self.open([run]):
                continue
            if len(field) == 1:
                self.take_up(run, lambda each: each.search_to_the_end(round_s))
            elif most is None:
                self.take_up(run, lambda each: each.search(round_s / len(field), horizon_s=horizon_s))
            else:
                self.take_up(run, lambda each: each.search_rounds(most >> (len(counts) - 1), horizon_s=round_s))

    def _search_for_takeover(self) -> None:
        """Layouts by the sum of iterations and moving, in the runs that may have the least one, the best first."""
        if not self._is_takeover_searched():
            return
        field = sorted((run for run in self.runs if self._may_take_over(run)), key=self.rank)
        for number, run in enumerate(field):
            if self._may_take_over(run):
                slice_s = self.seconds_left / (len(field) - number)
                self.take_up(run, partial(CandidateRun.search_for_takeover, slice_s=slice_s))

    def _may_take_over(self, run: CandidateRun) -> bool:
        limit_ns = self.limit_ns(run)
        is_open = limit_ns is None or (run.lower_bound_ns or 0) < limit_ns
        return run.state.plan is not None and is_open

    def stopped_by(self) -> str:
        """Why the search ended."""
        if self.is_alone:
            return self.runs[0].state.stopped_by
        if self.gap is not None and self.gap <= self.limits.gap:
            return "proof" if self.gap <= 0 else "gap"
        for failed in ("internal_error", FAILED):
            if any(run.state.stopped_by == failed for run in self.runs):
                return failed
        if self.should_stop():
            return "user"
        ends = {run.state.stopped_by for run in self.runs if self.is_open(run)}
        if ends == {"no_improvement"}:
            return "no_improvement"
        if not ends and is_complete(self.limits.method) and self.has_all_candidates:
            return CLAIM
        is_timed = self.limits.max_rounds is None or self.elapsed_s >= self.limits.time_limit_s
        return "time" if is_timed or "time" in ends else "rounds"

    def answers(self, run: CandidateRun) -> list[Plan]:
        """The best plan of a run as an answer to the question, and behind it the one for which least moves."""
        return [self.answer(run, plan) for plan in run.finish(self.concluding(run))]

    def answer(self, run: CandidateRun, plan: Plan) -> Plan:
        """A plan of a run, with its evidence, as the answer to the question."""
        del run
        return plan

    def siblings(self, run: CandidateRun) -> list[CandidateRun]:
        """The runs at all sizes of microbatches that may be chosen."""
        del run
        return self.runs

    def concluding(self, run: CandidateRun) -> Callable[[int], Conclusion]:
        """What says what is shown of all plans, beside a plan of the run that has the objective given."""
        runs = self.siblings(run)
        return lambda objective_ns: self._conclude(run, runs, objective_ns=objective_ns)

    def _conclude(self, chosen: CandidateRun, runs: Sequence[CandidateRun], *, objective_ns: int) -> Conclusion:
        is_alone = chosen.size is None
        found = Conclusion.of(chosen.state) if is_alone else _conclude_all(chosen, runs, objective_ns=objective_ns)
        stopped_by = self.stopped_by()
        # what proves the best plan, or its cost, proves no other plan, and not its time
        is_proved = objective_ns <= found.bound.value_ns
        return replace(found, stopped_by="gap" if stopped_by == "proof" and not is_proved else stopped_by)

    def _others(self, known: Iterable[Plan]) -> list[Plan]:
        """The best plans of other kinds that any run came by."""
        best, *_ = known = list(known)
        found = list[tuple[int, CandidateRun, Plan]]()
        for run in self.runs:
            others = run.others(best, conclude=self.concluding(run), num_runs=len(self.runs))
            allowed = [(value, plan) for value, plan in others if self.is_allowed(plan)]
            found += [(self.value_of(plan, total_ns=value), run, plan) for value, plan in allowed]
        kinds, plans = {kind_of(plan) for plan in known}, list[Plan]()
        for _, run, plan in sorted(found, key=lambda each: each[0]):
            if kind_of(plan) not in kinds and len(plans) < self.top - len(known):
                kinds.add(kind_of(plan))
                plans.append(self.answer(run, plan))
        return plans

    def value_of(self, plan: Plan, *, total_ns: int) -> int:
        """What is minimised, of a plan that takes so long."""
        del plan
        return total_ns

    def is_allowed(self, plan: Plan) -> bool:
        """Whether a plan of a run answers the question."""
        del plan
        return True

    def give_up(self) -> NoReturn:
        """Raise what is known: that no candidate has a plan, or only that none was found."""
        if self.is_alone:
            self._give_up_alone(self.runs[0])
        if all(run.why_infeasible for run in self.runs):
            known = {run.why_infeasible: run.size for run in reversed(self.runs)}
            reasons = "; ".join(f"microbatches of {size}: {reason}" for reason, size in reversed(known.items()))
            raise InfeasibleProblemError(f"no plan fits at any size. {reasons}")
        states = [run.state for run in self.runs if not run.infeasible]
        for state in (each for each in states if each.rejected is not None):
            finish(state)
        raise NoPlanFoundError(
            f"none in {self.elapsed_s:.0f} s of search at any size of microbatches; "
            f"{'; '.join(why_none_was_found(states))}"
        )

    def _give_up_alone(self, run: CandidateRun) -> NoReturn:
        if run.infeasible:
            raise InfeasibleProblemError(run.infeasible)
        if run.failure is not None:
            raise run.failure
        finish(run.state)
        raise AssertionError("a run without a plan cannot be finished")


def _conclude_all(chosen: CandidateRun, runs: Sequence[CandidateRun], *, objective_ns: int) -> Conclusion:
    """What the runs of all sizes have shown together."""
    has_claim = any(run.state.solver_bound_ns is not None or run.is_empty for run in runs)
    entries = {run.size: run.infeasible or run.state.lower_bound for run in runs}
    return Conclusion(
        bound=least_over_sizes({size: each for size, each in entries.items() if size is not None and each}),
        solver_bound_ns=int(min(*(run.ruled_out_ns for run in runs), objective_ns)) if has_claim else None,
        searched_ns=int(min(*(run.shown_ns for run in runs), objective_ns)) if has_claim else None,
        stopped_by="",
        sizes=tuple(run.result(objective_ns, is_chosen=run is chosen) for run in runs),
    )

"""The run on one candidate problem, which can be left and taken up again: several candidates share the time."""

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from types import TracebackType
from typing import Any, NamedTuple, Self, Unpack

from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.evidence.certificate import Bound, count_groups, make_bound, prove_infeasible, rules_out_every_deadline
from planner.plan import Plan, SizeResult, SizeState
from planner.planning.archive import OVERTIME_SHARE, Archive
from planner.planning.evidence import Conclusion, finish, require_not_refuted
from planner.planning.runs.run import RunSetup, begin_run, bound_and_lay_out, make_first_plans, never, search
from planner.planning.runs.transition_search import NAME, TransitionSearch
from planner.planning.runs.variable_microbatches import bound_listed, make_first_listed_plans, search_listed
from planner.planning.search_state import SearchState
from planner.planning.starts.class_pipelines import begin_with_classes, lay_out_classes
from planner.planning.starts.first_starts import propose_best_seed
from planner.problem import Problem
from planner.progress import Limits
from planner.replanning.transition import Transition
from profiles.cluster import Cluster


class _Recipe(NamedTuple):
    """The steps of a run, one after the other."""

    make_first_plans: Callable[[SearchState, Plan | None], Any]
    """Everything before the bound; what it returns is handed to the next step."""
    bound: Callable[[SearchState, Any], None]
    search: Callable[[SearchState], Generator[None, None, None]]
    """It yields wherever the run may be left."""


_EQUAL = _Recipe(make_first_plans, bound_and_lay_out, search)
_LISTED = _Recipe(make_first_listed_plans, bound_listed, search_listed)
"""Recipe for listed microbatches."""


class Choice(NamedTuple):
    """What a run decides nothing about."""

    counts: tuple[int, ...]
    """Devices of every class; empty where all are there."""
    size: int | None
    """Samples of a microbatch; None where the question states them."""


class CandidateRun:
    """A run whose clock stands still while others have their turns."""

    def __init__(
        self,
        problem: Problem,
        limits: Limits,
        *,
        choice: Choice,
        top: int,
        transition: Transition | None,
        cluster: Cluster,
        **how: Unpack[RunSetup],
    ) -> None:
        self.choice = choice
        """The candidate's microbatch size or device subset, by which runs are distinguished."""
        self.state = begin_run(problem, limits, **how)
        self.is_listed = problem.microbatches is not None
        self.takeover = None if transition is None else TransitionSearch(self.state, transition, cluster=cluster)
        """The search for the plan that takes over at the least cost, if one is asked for."""
        self.archive = None if top == 1 else Archive(self.state, top=top, rate=self._rate)
        """What keeps the best plans of other kinds, if more than one plan is asked for."""
        self.state.witnesses = [each for each in (self.takeover, self.archive) if each is not None]
        self.state.rest()
        self.failure: InfeasibleProblemError | NoPlanFoundError | None = None
        """Why it ended without a plan."""
        self.infeasible = ""
        """The proof that no plan fits, in a sentence."""
        self.is_empty = False
        """Whether a complete search found that there is none."""
        self.has_ended = False
        """Whether its search has come to an end of its own."""
        self._recipe = _LISTED if self.is_listed else _EQUAL
        self._layouts: Any = None
        self._steps: Generator[None, None, None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let every part of the search note what it knows, and release the threads."""
        if self._steps is not None:
            self._steps.close()
        self.state.window.close()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Its turn."""
        self.state.resume()
        with self.state.watch:
            yield
            self.state.rest()

    @property
    def size(self) -> int | None:
        """Samples of a microbatch, if that is to be decided."""
        return self.choice.size

    @property
    def steps_left(self) -> int:
        """Iterations that are counted: one, or those of a plan that takes over."""
        return 1 if self.takeover is None else self.takeover.transition.steps_left

    @property
    def plan(self) -> Plan | None:
        """Its best plan."""
        return self.state.plan if self.takeover is None else self.takeover.plan

    @property
    def total_ns(self) -> int | None:
        """What its best plan takes: an iteration, or all that is left with a plan that takes over."""
        return self.state.incumbent_ns if self.takeover is None else self.takeover.total_ns

    @property
    def objective_ns(self) -> int | None:
        """Of an iteration of its best plan."""
        return self.state.incumbent_ns if self.takeover is None else self.takeover.iteration_ns

    def _rate(self, plan: Plan, objective_ns: int) -> int:
        return objective_ns if self.takeover is None else self.takeover.sum_of(plan.stages, objective_ns)

    @property
    def lower_bound_ns(self) -> int | None:
        """What none of its plans is below, by its certificate."""
        return None if self.state.lower_bound is None else self.state.lower_bound.value_ns

    @property
    def ruled_out_ns(self) -> float:
        """What none of its plans is below, by certificate or complete search; infinity where none fits."""
        if self.infeasible or self.is_empty:
            return math.inf
        return max(self.lower_bound_ns or 0, self.state.solver_bound_ns or 0)

    @property
    def shown_ns(self) -> float:
        """The same without what only a solver says."""
        if self.infeasible or (self.is_empty and self.state.searched_ns is None):
            return math.inf
        return max(self.lower_bound_ns or 0, self.state.searched_ns or 0)

    @property
    def why_infeasible(self) -> str:
        """Why no plan fits, if that is known; empty otherwise."""
        if self.is_empty:
            return "a complete search found none"
        return self.infeasible or (str(self.failure) if isinstance(self.failure, InfeasibleProblemError) else "")

    def is_open(self, least_ns: int | None) -> bool:
        """Whether one of its plans may be below `least_ns`."""
        return self.ruled_out_ns < (math.inf if least_ns is None else least_ns)

    def lay_out(self, known: float) -> None:
        """Whether a plan can fit, and the estimates of first plans; few if those are far above `known`."""
        state = self.state
        self.infeasible = prove_infeasible(state.problem, state.costs) or ""
        if not self.infeasible and not self.is_listed:
            lay_out_classes(state, known=known)

    @property
    def estimate_ns(self) -> float:
        """The least estimate of a first plan that was not played; infinity without one."""
        return min((estimate for estimate, _ in self.state.pipelines or ()), default=math.inf)

    def begin(self) -> None:
        """Play the best of what was laid out."""
        begin_with_classes(self.state)
        propose_best_seed(self.state)

    def make_first_plans(self, start: Plan | None) -> None:
        """Its baselines, or the proof that no plan fits or none is better than what other runs have."""
        if self.rule_out():
            return
        try:
            self._layouts = self._recipe.make_first_plans(self.state, start)
        except InfeasibleProblemError as reason:
            self.is_empty, self.failure = True, reason

    def rule_out(self) -> bool:
        """Whether no plan fits, or a quick bound reaches what another run has; then this one is closed."""
        state = self.state
        self.infeasible = prove_infeasible(state.problem, state.costs) or ""
        if self.infeasible or state.rival_ns is None:
            return bool(self.infeasible)
        quick = self._quick_bound()
        state.lower_bound = quick if quick.value_ns >= state.rival_ns else None
        return state.lower_bound is not None

    def bound(self) -> None:
        """Its bound, unless it is closed; where that rules out every deadline, there is nothing to search for."""
        if self.state.lower_bound is None:
            self._recipe.bound(self.state, self._layouts)
            self._end_if_refuted()

    def _end_if_refuted(self) -> None:
        try:
            require_not_refuted(self.state)
        except InfeasibleProblemError as reason:
            self.failure, self.has_ended = reason, True

    def bound_quickly(self) -> None:
        """What of its bound is quick, unless it is closed."""
        if self.state.lower_bound is None:
            self.state.lower_bound = self._quick_bound()

    def raise_to(self, value: int) -> bool:
        """Whether its bound is as large, or the groups bound is; then it is raised."""
        if self.shown_ns < value and (found := self._ask_groups(value)) is not None:
            self.state.lower_bound = found
        return self.shown_ns >= value

    @cached_property
    def _ask_groups(self) -> Callable[[int], Bound | None]:
        return count_groups(self.state.costs)

    def note(self, entry: Bound | str) -> None:
        """Take over what is known of it: its bound, or why no plan fits."""
        if isinstance(entry, str):
            self.infeasible = entry
        else:
            self.state.lower_bound = entry

    def _quick_bound(self) -> Bound:
        state = self.state
        return make_bound(state.problem, state.costs, time_limit_s=0.0, params=state.params.bound)

    def search(self, slice_s: float, *, horizon_s: float) -> None:
        """Search for so many seconds; `horizon_s`: what it has if it remains the best, for which it plans its steps."""
        until_s = self.state.elapsed_s + slice_s
        self._go_on(horizon_s, is_over=lambda: self.state.elapsed_s >= until_s)

    def search_rounds(self, rounds: int, *, horizon_s: float) -> None:
        """Search until so many rounds were started in all."""
        if self.state.rounds < rounds:
            self._go_on(horizon_s, is_over=lambda: self.state.rounds >= rounds)

    def search_to_the_end(self, horizon_s: float) -> None:
        """Search until a limit is reached."""
        self._go_on(horizon_s, is_over=never)

    def _go_on(self, horizon_s: float, *, is_over: Callable[[], bool]) -> None:
        state = self.state
        state.limits = replace(state.limits, time_limit_s=state.elapsed_s + max(horizon_s, 1e-3))
        if self._steps is None:
            self._steps = self._recipe.search(state)
        try:
            for _ in self._steps:
                if is_over():
                    return
        except InfeasibleProblemError as reason:
            self.is_empty, self.failure = True, reason
        except NoPlanFoundError as reason:
            self.failure = reason
        self.has_ended = True
        if self.failure is None:
            self._end_if_refuted()

    def search_for_takeover(self, slice_s: float) -> None:
        """Search for the plan that takes over at the least cost, once all other search has ended."""
        state = self.state
        state.limits = replace(state.limits, time_limit_s=state.elapsed_s + max(slice_s, 1e-3))
        if self.takeover is not None:
            with state.step_of(NAME):
                self.takeover.search(state.time_until(1.0))

    @property
    def has_had_its_rounds(self) -> bool:
        """Whether its search ended because rounds were counted, and nothing else ended it."""
        return self.has_ended and not self.is_empty and not self.state.stopped_by

    def finish(self, conclude: Callable[[int], Conclusion]) -> tuple[Plan, ...]:
        """Its best plan with its evidence; behind it the one for which least moves, if one takes over.

        `conclude`: what is shown of all plans, beside one with that objective.
        """
        if self.takeover is not None:
            return self.takeover.finish(conclude)
        assert self.objective_ns is not None
        return (finish(self.state, conclude(self.objective_ns)),)

    def others(self, best: Plan, *, conclude: Callable[[int], Conclusion], num_runs: int) -> list[tuple[int, Plan]]:
        """The best plan of each other kind that the run met, with its objective in ns."""
        if self.archive is None:
            return []
        with self.active():
            return self.archive.others(best, conclude=conclude, share=OVERTIME_SHARE / 2 / num_runs)

    def look_back(self, *, num_runs: int) -> None:
        """At what its search had at the end, where plans of other kinds are asked for."""
        if self.archive is not None:
            with self.active():
                self.archive.look_at_candidates(share=OVERTIME_SHARE / 2 / num_runs)

    def result(self, chosen_ns: int, *, is_chosen: bool) -> SizeResult:
        """What was found, beside a plan of this size or another; `chosen_ns`: its objective."""
        limits, (baseline, baseline_ns) = self.state.limits, self._best_baseline()
        assert self.size is not None
        return SizeResult(
            microbatch_size=self.size,
            num_microbatches=self.state.problem.num_microbatches,
            state="best" if is_chosen else self._condition(chosen_ns),
            objective_ns=chosen_ns if is_chosen else self.state.incumbent_ns,
            lower_bound_ns=self.lower_bound_ns,
            solver_bound_ns=self.state.solver_bound_ns,
            baseline=baseline,
            baseline_ns=baseline_ns,
            rounds=self.state.rounds,
            seconds=round(self.state.elapsed_s, 3) if limits.max_rounds is None else None,
            note=self._why_no_plan(),
        )

    def _why_no_plan(self) -> str:
        """Why no plan of this size fits, if that is known; empty otherwise."""
        if self.is_empty:
            return "a complete search found no plan that fits"
        is_refuted = self.state.plan is None and rules_out_every_deadline(self.state.problem, self.lower_bound_ns or 0)
        return self.infeasible or ("its bound leaves no time at which a plan could end" if is_refuted else "")

    def _condition(self, chosen_ns: int) -> SizeState:
        if self.infeasible:
            return "infeasible"
        if self.state.incumbent_ns is not None and self.state.incumbent_ns < chosen_ns:
            return "better"
        return "open" if self.is_open(chosen_ns) else "closed"

    def _best_baseline(self) -> tuple[str, int | None]:
        """Name and objective of the best that fits; empty and None if none does."""
        objective, rows = self.state.problem.options.objective, self.state.baselines
        known = ((row.name, row.objective_ns(objective)) for row in rows if row.fits_memory)
        return min(((name, ns) for name, ns in known if ns is not None), key=itemgetter(1), default=("", None))

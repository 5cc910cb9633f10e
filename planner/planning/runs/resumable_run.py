"""A planning run which can be left and taken up again, where several questions share the time."""

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self, Unpack

from planner.errors import InfeasibleProblemError
from planner.evidence.certificate import Bound, make_bound, prove_infeasible
from planner.plan import Plan
from planner.planning.runs.run import RunSetup, begin_run, bound_and_lay_out, make_first_plans, never, search
from planner.planning.starts.class_pipelines import begin_with_classes, lay_out_classes
from planner.planning.starts.first_starts import propose_best_seed
from planner.planning.starts.looped_layouts import LoopedSearch
from planner.problem import Problem
from planner.progress import Limits


class PausableRun:
    """A run whose clock stands still while others have their turns."""

    def __init__(self, problem: Problem, limits: Limits, **how: Unpack[RunSetup]) -> None:
        self.state = begin_run(problem, limits, **how)
        self.state.rest()
        self.infeasible = ""
        """The proof that no plan fits, in a sentence."""
        self.is_empty = False
        """Whether a complete search found that there is none."""
        self.has_ended = False
        """Whether its search has come to an end of its own."""
        self._layouts: LoopedSearch | None = None
        self._steps: Generator[None, None, None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let every part of the search note what it knows, and let go of the threads."""
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
    def objective_ns(self) -> int | None:
        """Of its best plan."""
        return self.state.incumbent_ns

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

    def is_open(self, least_ns: int | None) -> bool:
        """Whether one of its plans may be below `least_ns`."""
        return self.ruled_out_ns < (math.inf if least_ns is None else least_ns)

    def lay_out(self, known: float) -> None:
        """Whether a plan can fit, and the estimates of first plans; few if those are far above `known`."""
        state = self.state
        self.infeasible = prove_infeasible(state.problem, state.costs) or ""
        if not self.infeasible:
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
            self._layouts = make_first_plans(self.state, start)
        except InfeasibleProblemError:
            self.is_empty = True

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
        """Its bound, unless it is closed."""
        if self.state.lower_bound is None:
            bound_and_lay_out(self.state, self._layouts)

    def bound_quickly(self) -> None:
        """What of its bound is quick, unless it is closed."""
        if self.state.lower_bound is None:
            self.state.lower_bound = self._quick_bound()

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
            self._steps = search(state)
        try:
            for _ in self._steps:
                if is_over():
                    return
        except InfeasibleProblemError:
            self.is_empty = True
        self.has_ended = True

    @property
    def has_had_its_rounds(self) -> bool:
        """Whether its search ended because rounds were counted, and nothing else ended it."""
        return self.has_ended and not self.is_empty and not self.state.stopped_by

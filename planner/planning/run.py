"""What all steps of a planning run share: the question, the incumbent, the bound and the clock."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property

from planner.certificate import Bound
from planner.costs import CostModel
from planner.lowering import make_instance
from planner.plan import BaselineResult, Plan, Stage
from planner.problem import Problem
from planner.progress import Limits, Progress
from planner.simulate import Timeline
from planner.verify import Verdict, verify
from solver_models.instance import Instance
from solver_models.large import LARGE_ACTIONS
from solver_models.search import Candidate

PLAYS_PER_ROUND, ACTIONS_PER_S = 8, 1_000_000
"""What the first round of a large problem is expected to take on a slow machine."""


class Run:
    """One planning run: only verified plans become its incumbent."""

    def __init__(
        self,
        problem: Problem,
        limits: Limits,
        *,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
        fit: Callable[[Plan], Plan | None] | None = None,
    ) -> None:
        self.problem, self.limits = problem, limits
        self.on_progress, self.should_stop = on_progress, should_stop
        self.fit = fit
        self.costs = CostModel(problem)
        self.begin = self.improved = time.monotonic()
        self.plan: Plan | None = None
        """The incumbent."""
        self.start: Plan | None = None
        """The plan that the search begins with, if the caller gave one that fits."""
        self.timeline: Timeline | None = None
        self.source = ""
        self.verdict: Verdict | None = None
        self.offer_s = 0.0
        """Seconds that the last look at a plan took."""
        self.seeds: list[Candidate] = []
        """First candidates of a large problem."""
        self.lower_bound: Bound | None = None
        self.solver_bound_ns: int | None = None
        self.baselines: list[BaselineResult] = []
        self.layouts: list[tuple[Stage, ...]] = []
        """Stages of the baselines, whether they fit or not, of the plan to start from, and a few near the bound."""
        self.near_bound: list[tuple[Stage, ...]] = []
        """Stages that a plan close to the bound could have."""
        self.played: list[Plan] = []
        """The baselines that fit."""
        self.rejected: Verdict | None = None
        self.stopped_by = ""
        self.solvers: dict[str, str] = {}

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.begin

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit."""
        return self.limits.time_limit_s - self.elapsed_s

    @property
    def incumbent_ns(self) -> int | None:
        """The objective of the incumbent."""
        return None if self.timeline is None else self.timeline.objective_ns(self.problem.options.objective)

    @property
    def gap(self) -> float | None:
        """(incumbent - lower bound) / incumbent, once there are both."""
        if self.incumbent_ns is None or self.lower_bound is None:
            return None
        return (self.incumbent_ns - self.lower_bound.value_ns) / max(self.incumbent_ns, 1)

    @property
    def is_large(self) -> bool:
        """Whether plans of the problem take so long to play that not everything can be tried."""
        return self.num_actions > LARGE_ACTIONS

    @property
    def num_actions(self) -> int:
        """Actions of a plan with one stage per device."""
        size = min(len(self.problem.cluster.devices), len(self.problem.profile.layers))
        return 3 * self.problem.num_microbatches * size

    @cached_property
    def instance(self) -> Instance:
        """The problem in integers."""
        return make_instance(self.problem, self.costs)

    @contextmanager
    def collected_rarely(self) -> Iterator[None]:
        """Millions of actions are no garbage: without this, Python looks at each of them over and over again."""
        was_enabled = gc.isenabled() and self.is_large
        if was_enabled:
            gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()

    def report(self, phase: str) -> None:
        """Tell the caller how far the run is."""
        self.on_progress(
            Progress(
                elapsed_s=self.elapsed_s,
                phase=phase,
                incumbent=self.plan,
                incumbent_ns=self.incumbent_ns,
                lower_bound_ns=None if self.lower_bound is None else self.lower_bound.value_ns,
                gap=self.gap,
                source=self.source,
            )
        )

    def offer(self, plan: Plan, timeline: Timeline | None, *, source: str) -> bool:
        """Make `plan`, or what `fit` makes of it, the incumbent if it is better and the verifier passes it."""
        best = self.incumbent_ns
        if self.fit is not None:
            fitted = self.fit(plan)
            if fitted is None:
                return False
            plan, timeline = fitted, timeline if fitted.schedule == plan.schedule else None
        if timeline is not None and best is not None and timeline.objective_ns(self.problem.options.objective) >= best:
            return False
        begin = time.monotonic()
        verdict = verify(self.problem, plan)
        self.offer_s = time.monotonic() - begin
        if verdict.timeline is None or not verdict.passed:
            self.rejected = verdict
            return False
        if best is not None and verdict.timeline.objective_ns(self.problem.options.objective) >= best:
            return False
        self.plan, self.timeline, self.source = plan, verdict.timeline, source
        self.verdict = verdict
        self.improved = time.monotonic()
        return True

    def is_over(self) -> bool:
        """Whether a limit is reached; remembers which."""
        patience = self.limits.patience_s
        if patience is None:
            patience = max(10.0, self.limits.time_limit_s / 2)
        if self.gap is not None and self.gap <= 0:
            self.stopped_by = "proof"
        elif self.gap is not None and self.gap <= self.limits.gap:
            self.stopped_by = "gap"
        elif self.should_stop():
            self.stopped_by = "user"
        elif self.elapsed_s >= self.limits.time_limit_s:
            self.stopped_by = "time"
        elif self.plan is not None and time.monotonic() - self.improved > patience and self.limits.max_rounds is None:
            self.stopped_by = "no_improvement"
        return bool(self.stopped_by)

    def rounds_are_over(self, rounds: int, round_s: float) -> bool:
        """Whether the deterministic limit is reached, or the next round would end beyond the time limit."""
        if self.limits.max_rounds is not None:
            return rounds >= self.limits.max_rounds
        if not self.has_time_for_round(round_s):
            self.stopped_by = "time"
        return bool(self.stopped_by)

    def has_time_for_round(self, round_s: float) -> bool:
        """Whether a round, and the check of what it finds, would end within the time limit, or not far beyond."""
        if self.limits.max_rounds is not None:
            return True
        needed = round_s / 2 + self.offer_s
        if self.is_large:
            needed += round_s / 2 or PLAYS_PER_ROUND * self.num_actions / ACTIONS_PER_S
        return self.elapsed_s + needed <= self.limits.time_limit_s

"""What all steps of a planning run share: the question, the incumbent, the bound and the clock."""

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import pairwise
from threading import RLock
from typing import Any, Protocol

from planner.clock import HasTime
from planner.errors import OutOfRangeError, PlanError
from planner.evidence.certificate import Bound
from planner.layout.costs import CostModel
from planner.lowering import make_instance
from planner.plan import BaselineResult, ImproverTally, Plan, Stage
from planner.planning.dropped_plans import DroppedPlans
from planner.planning.planning_params import SearchParams
from planner.problem import Problem
from planner.progress import COMPILING, Limits, Progress
from planner.simulation.simulate import Timeline, simulate
from planner.verify import Verdict, verify
from solver_models.compile_events import CompileWatch
from solver_models.instance import Instance
from solver_models.local_search.portable_tasks import PortableTask, Workers
from solver_models.local_search.search import Candidate, Searcher
from solver_models.local_search.task_window import TaskWindow
from solver_models.precompile import compile_groups, is_warm

_MAX_LATE_S = 0.3
"""By how much a run may exceed its time limit for the sake of a schedule bound or of verifying a last plan."""
_MAX_LATE_SHARE = 0.02
"""By which part of the time limit a run may exceed it beyond that."""
_BOUNDED_ACTIONS_PER_S = 10_000
"""Actions and transfers for which a slow machine finds the schedule bound in a second."""
NO_PLAN_SHARE = 0.6
"""Part of the time limit by whose end the baselines are played as long as none of them fits."""
SEED_SHARE = 0.3
"""Part of the time left that first candidates, or the sequential planner's stages, may take."""
MAX_BOUNDED_ACTIONS = 400_000
"""Larger plans come without a schedule bound, which would take as long as the rest."""
_LONGER_ROUND = 1.25
"""How many times as long as the one before a round is expected to take: they grow, and other processes come and go."""
_PLAYS_PER_ROUND = 8
"""Plays that the first round of a large problem is expected to take."""
_ACTIONS_PER_S = 1_000_000
"""Actions that a slow machine plays in a second."""

FAILED = "solver_failed"
"""Why a run ends whose solver gave no answer that holds."""

COMPLETE = "complete_search"
"""Why a run ends once no partition, mapping or order is left that could be better."""

REPORT_EVERY_S = 2.0
"""Without news the caller hears of the search about as often."""


@dataclass(slots=True)
class _Tally:
    """What an improver did so far."""

    turns: int = 0
    """Times that it was its step."""
    seconds: float = 0.0
    """On the thread that starts steps; those on other threads are counted by `TaskWindow`."""
    improvements: int = 0
    """Better plans."""
    gain_ns: int = 0
    """By how much they were better than what was there before, in all."""
    bounds_raised: int = 0
    """Turns that raised the certified bound."""
    bound_gain_ns: int = 0
    """By how much, in all."""
    cases_closed: int = 0

    def note_bound(self, before: Bound | None, after: Bound | None) -> None:
        """A step has ended: what became of the bound."""
        if after is None or (before is not None and after.value_ns <= before.value_ns):
            return
        self.bounds_raised += 1
        self.bound_gain_ns += 0 if before is None else after.value_ns - before.value_ns
        self.cases_closed += after.num_cases


class Witness(Protocol):
    """A listener that gets each verified plan."""

    def see(self, plan: Plan, timeline: Timeline, *, source: str, verdict: Verdict | None = None) -> None:
        """A plan as played, who found it, and what the verifier said, if it was asked."""

    def take(self, searcher: Searcher, candidates: Sequence[Candidate]) -> None:
        """What the joint search had at its end."""


class SearchState:
    """One planning run: only verified plans become its incumbent."""

    pipelines: list[tuple[float, tuple[Stage, ...]]] | None = None
    """Estimates and stages of first plans on classes of devices that were not played yet; None: not made."""

    seed_source = ""
    """What found the best of the first candidates."""

    workers: Workers | None = None
    """Who does tasks of the search elsewhere; set by `employ`."""

    pending_effort = 0
    """Loads of devices that the packing bound has yet to rate, which the first bound left to the search."""

    searched_ns: int | None = None
    """What a complete search has shown by rules of its own; `solver_bound_ns` is that and what solvers claim."""

    def __init__(
        self,
        problem: Problem,
        limits: Limits,
        *,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
        fit: Callable[[Plan], Plan] | None = None,
        fits_stages: bool = False,
        params: SearchParams = SearchParams(),
    ) -> None:
        self.problem, self.limits, self.params = problem, limits, params
        self.on_progress, self.should_stop, self.fit = on_progress, should_stop, fit
        self.fits_stages = fits_stages
        """Whether `fit` looks at stages only, so that the same ones need not be looked at twice."""
        self.seen_stages: set[tuple[Stage, ...]] = set()
        self.costs = CostModel(problem)
        self.watch = CompileWatch(on_begin=lambda: self.report(COMPILING))
        """Compiling stops the clock."""
        self.begin, self.reported = time.monotonic(), -REPORT_EVERY_S
        self.rest_s, self.rests_since = 0.0, math.inf
        """Seconds in which the run rested, and since when it does."""
        self.num_runs = 1
        """Runs that share the time, and the effort for bounds."""
        self.rival_ns: int | None = None
        """Objective of the best plan known of another run, above which nothing is worth proving here."""
        self.reporting = RLock()
        """Kernels may be compiled on any thread, and each compilation is reported."""
        self.window = self._make_window()
        """The threads of the search."""
        self.tallies: dict[str, _Tally] = {}
        """What every improver did, by its name."""
        self.rounds = self.improved_round = 0
        """Rounds of the search that were started, and how many had been when the incumbent was found."""
        self.improved_s = 0.0
        """When the incumbent was found, or the search began if that is later."""
        self.plan: Plan | None = None
        """The incumbent."""
        self.start: Plan | None = None
        """The plan that the search begins with, if the caller gave one that fits."""
        self.timeline: Timeline | None = None
        self.source = self.stopped_by = ""
        self.verdict: Verdict | None = None
        self.offer_s = 0.0
        """Seconds that the last look at a plan took."""
        self.offered_actions = 1
        """Actions that it had."""
        self.seeds: list[Candidate] = []
        """First candidates, where devices are many or the problem is large, the best last."""
        self.lower_bound: Bound | None = None
        self.solver_bound_ns: int | None = None
        self.baselines: list[BaselineResult] = []
        self.layouts: list[tuple[Stage, ...]] = []
        """Stages of the baselines, whether they fit or not, of the plan to start from, and of what bounds left open."""
        self.played: list[Plan] = []
        """The baselines that fit."""
        self.rejected: Verdict | None = None
        self.solvers: dict[str, str] = {}
        self.witnesses: list[Witness] = []
        """See every plan that the verifier passed, better or not, where somebody asks for more than the best."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began, without those in which it rested or kernels were compiled."""
        return min(time.monotonic(), self.rests_since) - self.begin - self.rest_s - self.watch.seconds

    def rest(self) -> None:
        """Take in what is under way; the clock stands still until the run is taken up again."""
        self.window.drain()
        self.rests_since = time.monotonic()

    def resume(self) -> None:
        """The clock continues."""
        self.rest_s += max(0.0, time.monotonic() - self.rests_since)
        self.rests_since = math.inf

    def _make_window(self) -> TaskWindow:
        """Where rounds are counted, as many tasks at a time on every machine; otherwise as few as keep all busy."""
        limits = self.limits
        make = partial(
            TaskWindow,
            limits.num_threads,
            has_time=self.has_time_for_round,
            workers=self.workers,
            is_over=self._is_left,
        )
        if limits.max_rounds is not None:
            return make()
        width = max(limits.num_threads, self.num_workers) + 1
        return make(first=width, most=width)

    def employ(self, workers: Workers | None) -> None:
        """Have workers do the tasks of the search that they can do."""
        self.window.close()
        self.workers = workers
        self.window = self._make_window()

    @cached_property
    def beside(self) -> "list[tuple[Future[Any], Callable[[Any], Plan | None]]]":
        """What workers do beside the search, and who takes in what they find."""
        return []

    def start_beside(self, task: PortableTask, take: Callable[[Any], Plan | None]) -> None:
        """Have a worker do a task that no step waits for; `take` returns what of it is a better plan."""
        assert self.workers is not None
        future = self.workers.submit(task, may_start=lambda: True, is_over=self._is_left)
        self.beside.append((future, take))

    def take_beside(self, *, waits: bool) -> Iterator[Plan]:
        """Take in what workers have ended beside the search, or all of it if it `waits`; the better plans of it."""
        ended = [each for each in self.beside if waits or each[0].done()]
        self.beside = [each for each in self.beside if each not in ended]
        for future, take in ended:
            found = future.result()
            plan = None if found is None else take(found[0])
            if plan is not None:
                yield plan

    def _is_left(self) -> bool:
        """Whether nobody waits any more for what tasks find."""
        is_late = self.limits.max_rounds is None and self.seconds_left < -self.most_late_s
        return self.should_stop() or is_late

    @property
    def num_workers(self) -> int:
        """Tasks that are done at once elsewhere; 1 where all is done here."""
        return 1 if self.workers is None else self.workers.num_workers

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit."""
        return self.limits.time_limit_s - self.elapsed_s

    @property
    def incumbent_ns(self) -> int | None:
        """The objective of the incumbent."""
        return None if self.timeline is None else self.timeline.objective_ns(self.problem.options.objective)

    @property
    def threshold_ns(self) -> int | None:
        """The least objective known, here or elsewhere: only plans below it are worth finding."""
        return min((each for each in (self.incumbent_ns, self.rival_ns) if each is not None), default=None)

    @property
    def gap(self) -> float | None:
        """(least objective known - lower bound) / the former, once there are both."""
        if self.threshold_ns is None or self.lower_bound is None:
            return None
        return (self.threshold_ns - self.lower_bound.value_ns) / max(self.threshold_ns, 1)

    @property
    def is_large(self) -> bool:
        """Whether plans of the problem take so long to play that not everything can be tried."""
        return self.num_actions > self.params.first_plans.large_actions

    @property
    def num_actions(self) -> int:
        """Actions of a plan with one stage, or one replica of a stage, per device."""
        problem = self.problem
        size = min(len(problem.cluster.devices), len(problem.profile.layers) * problem.max_replicas)
        return 3 * self.problem.num_microbatches * size

    @cached_property
    def dropped(self) -> DroppedPlans:
        """Why plans did not count that were found; where the verifier refused one as it was: `rejected`."""
        return DroppedPlans()

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

    def make_ready(self, *groups: str) -> None:
        """Wait until the kernels of the groups are compiled, on all cores; the clock stands still."""
        if not is_warm(*groups):
            with self.watch.counted():
                compile_groups(*groups)

    @contextmanager
    def step_of(self, name: str) -> Iterator[None]:
        """A step of an improver: what it finds and the seconds it takes are counted as its own."""
        tally, owner = self.tally(name), self.window.owner
        begin, waited_s, bound = time.monotonic(), self.window.waited_s, self.lower_bound
        self.window.owner = name
        try:
            yield
        finally:
            self.window.owner = owner
            tally.turns += 1
            tally.note_bound(bound, self.lower_bound)
            tally.seconds += time.monotonic() - begin - (self.window.waited_s - waited_s)

    def tally(self, name: str) -> _Tally:
        """What an improver did so far."""
        return self.tallies.setdefault(name, _Tally())

    @property
    def improvers(self) -> tuple[ImproverTally, ...]:
        """What every improver did, in the order of their first steps; no seconds where rounds are counted."""

        def seconds_of(name: str, tally: _Tally) -> float | None:
            seconds = round(tally.seconds + self.window.seconds.get(name, 0.0), 3)
            return seconds if self.limits.max_rounds is None else None

        return tuple(
            ImproverTally(name=name, **(asdict(tally) | {"seconds": seconds_of(name, tally)}))
            for name, tally in self.tallies.items()
        )

    def report(self, phase: str) -> None:
        """Tell the caller how far the run is."""
        with self.reporting:
            self.reported = self.elapsed_s
            self.on_progress(
                Progress(
                    elapsed_s=self.reported,
                    phase=phase,
                    incumbent=self.plan,
                    incumbent_ns=self.incumbent_ns,
                    lower_bound_ns=None if self.lower_bound is None else self.lower_bound.value_ns,
                    gap=self.gap,
                    source=self.source,
                )
            )

    def report_if_due(self, phase: str) -> None:
        """Report progress if the last report is older than the reporting interval."""
        if self.elapsed_s - self.reported >= REPORT_EVERY_S:
            self.report(phase)

    def propose(self, plan: Plan | None, *, source: str) -> None:
        """Offer a plan of the search if there is time to verify it, and tell the caller of it if it is better."""
        if plan is not None and self.has_time_to_verify(_count_actions(plan)) and self.offer(plan, None, source=source):
            self.report("search")

    def offer(self, plan: Plan, timeline: Timeline | None, *, source: str, improver: str | None = None) -> bool:
        """Make `plan`, or what `fit` makes of it, the incumbent if it is better and the verifier passes it.

        `improver`: who is said to have found it, if that is not its `source`.
        """
        best = self.incumbent_ns
        if self.fits_stages:
            if plan.stages in self.seen_stages:
                return False
            self.seen_stages.add(plan.stages)
        fitted = self.fitted(plan)
        if fitted is None:
            return False
        is_changed = fitted.schedule != plan.schedule
        plan, timeline = fitted, None if is_changed else timeline
        if timeline is not None and best is not None and timeline.objective_ns(self.problem.options.objective) >= best:
            return False
        begin = time.monotonic()
        verdict = verify(self.problem, plan)
        self.offer_s, self.offered_actions = time.monotonic() - begin, max(1, _count_actions(plan))
        if verdict.timeline is None or not verdict.passed:
            if is_changed or self._is_out_of_range(plan):
                self.dropped.add(verdict.violations[0].message)
            else:
                self.rejected = verdict
            return False
        self.show(plan, verdict.timeline, source=source, verdict=verdict)
        if best is not None and verdict.timeline.objective_ns(self.problem.options.objective) >= best:
            return False
        self.plan, self.timeline, self.source = plan, verdict.timeline, source
        self.verdict = verdict
        tally = self.tally(improver or source)
        tally.improvements += 1
        if best is not None:
            tally.gain_ns += best - verdict.timeline.objective_ns(self.problem.options.objective)
        self.improved_round, self.improved_s = self.rounds, self.elapsed_s
        return True

    def show(self, plan: Plan, timeline: Timeline, *, source: str, verdict: Verdict | None = None) -> None:
        """Let the witnesses see a plan; `verdict`: what the verifier said, if it was asked."""
        for witness in self.witnesses:
            witness.see(plan, timeline, source=source, verdict=verdict)

    def _is_out_of_range(self, plan: Plan) -> bool:
        """Whether its times or bytes are more than can be counted."""
        try:
            simulate(self.problem, plan, costs=self.costs)
        except OutOfRangeError:
            return True
        except (PlanError, ValueError, KeyError, IndexError):
            return False
        return False

    def fitted(self, plan: Plan) -> Plan | None:
        """The plan as it is run, or None, with the reason in `dropped`, if it cannot be."""
        if self.fit is None:
            return plan
        try:
            return self.fit(plan)
        except ValueError as reason:
            self.dropped.add(str(reason))
            return None

    def is_over(self) -> bool:
        """Whether a limit is reached; remembers which."""
        if self.gap is not None and self.gap <= 0:
            self.stopped_by = "proof"
        elif self.stopped_by in (COMPLETE, FAILED):
            return True
        elif self.gap is not None and self.gap <= self.limits.gap:
            self.stopped_by = "gap"
        elif self.should_stop():
            self.stopped_by = "user"
        elif self.elapsed_s >= self.limits.time_limit_s - self.finish_s:
            self.stopped_by = "time"
        elif self.plan is not None and self.is_out_of_patience():
            self.stopped_by = "no_improvement"
        return bool(self.stopped_by)

    def has_time_to_verify(self, num_actions: int) -> bool:
        """Whether another plan could be verified before the limit, or that takes no time, or there is no plan yet."""
        needed_s = self.offer_s * max(1.0, num_actions / self.offered_actions)
        if self.plan is None or self.limits.max_rounds is not None or needed_s <= self.most_late_s:
            return True
        return self.elapsed_s + needed_s + self.finish_s <= self.limits.time_limit_s + self.most_late_s

    def time_until(self, share: float) -> HasTime:
        """Whether less than this part of the time left now has passed; where rounds are counted, all of it counts."""
        until = self.elapsed_s + (1.0 if self.limits.max_rounds is not None else share) * self.seconds_left
        return lambda: self.elapsed_s < until and not self.should_stop()

    def begin_search(self) -> None:
        """From here on patience counts."""
        self.improved_s = self.elapsed_s

    def is_out_of_patience(self) -> bool:
        """Whether the rounds since the incumbent was found are too many, or took too long; without a round, never."""
        rounds, seconds = self.limits.patience_rounds, self.limits.patience_s
        idle = self.rounds - self.improved_round
        if not self.rounds:
            return False
        return (rounds is not None and idle >= rounds) or (
            seconds is not None and idle > 0 and self.elapsed_s - self.improved_s > seconds
        )

    @property
    def most_late_s(self) -> float:
        """Seconds beyond the time limit that a last step may end."""
        return _MAX_LATE_S + _MAX_LATE_SHARE * self.limits.time_limit_s

    @property
    def finish_s(self) -> float:
        """Seconds that are set aside for the last look at the plan and its evidence, where plans are not small."""
        if self.limits.max_rounds is not None:
            return 0.0
        return min(2 * self.offer_s + self.schedule_bound_s, 0.1 * self.limits.time_limit_s)

    @property
    def schedule_bound_s(self) -> float:
        """Seconds that the bound of the incumbent's stages is expected to take; 0 if it is too large to be derived."""
        return self.bounded_jobs / _BOUNDED_ACTIONS_PER_S if self.bounded_jobs <= MAX_BOUNDED_ACTIONS else 0.0

    @property
    def bounded_jobs(self) -> int:
        """Actions of the incumbent, and its transfers between one stage and the next, which its bound looks at."""
        if self.plan is None:
            return self.num_actions
        sizes = [len(stage.replicas) for stage in self.plan.stages]
        transfers = sum(2 * (one + two - math.gcd(one, two)) for one, two in pairwise(sizes))
        return self.problem.num_microbatches * (3 * sum(sizes) + transfers)

    def rounds_are_over(self, rounds: int, round_s: float) -> bool:
        """Whether the deterministic limit is reached, or a task of the next round would end beyond the time limit."""
        self.rounds = rounds
        if self.limits.max_rounds is not None:
            return rounds >= self.limits.max_rounds
        if not self.has_time_for_round(round_s):
            self.stopped_by = "time"
        return bool(self.stopped_by)

    def has_time_for_round(self, round_s: float) -> bool:
        """Whether a task, and the check of what it finds, would end within the time limit, or not far beyond."""
        if self.limits.max_rounds is not None:
            return True
        needed = _LONGER_ROUND * round_s or _PLAYS_PER_ROUND * self.num_actions / _ACTIONS_PER_S
        return self.elapsed_s + needed + self.offer_s + self.finish_s <= self.limits.time_limit_s


def _count_actions(plan: Plan) -> int:
    return sum(map(len, plan.schedule.values()))

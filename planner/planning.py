"""The recipe that turns a problem into a verified plan."""

import gc
import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version

import numpy

from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.portfolio import make_baselines, play_baseline
from planner.baselines.sequential import sequential_seating
from planner.certificate import Bound, make_bound, prove_infeasible, schedule_bound
from planner.costs import CostModel
from planner.device_groups import has_listed_groups
from planner.enclosure import enclose
from planner.errors import InfeasibleProblemError, NoPlanFoundError, PipeplanError, PlanError
from planner.exact import ExactSearch
from planner.lowering import (
    make_candidate_arrays,
    make_instance,
    make_plan_from_words,
    make_schedule_instance,
    make_stages,
    make_words,
)
from planner.plan import BaselineResult, Evidence, Plan, Stage
from planner.problem import Problem
from planner.progress import Limits, Progress
from planner.simulate import Timeline, simulate
from planner.verify import Verdict, verify
from solver_models.covering import Covering
from solver_models.instance import Instance, Word
from solver_models.kernels import FAR
from solver_models.large import LARGE_ACTIONS, large_seeds
from solver_models.ordering import MOST_ACTIONS, OrderSearch
from solver_models.portfolio import JointSearch
from solver_models.recomputing import as_if_recomputing, recompute_variants
from solver_models.schedule.one_by_one import one_by_one
from solver_models.search import Candidate, Searcher
from solver_models.seeds import make_seeds

EXACT_AFTER_ROUNDS = 3
"""Rounds of joint search before a small problem is searched exactly."""

MIN_BOUND_S, MAX_BOUND_S = 1.0, 6.0
"""Seconds that the bound over all plans may take, roughly; a tenth of the time limit in between."""

ORDER_LIMIT_S = 5.0
"""Seconds that CP-SAT gets for one order."""

INTERVAL_LIMIT_S, MAX_INTERVAL_CANDIDATES, MAX_INTERVAL_DEVICES = 2.0, 8, 128
"""Seconds for the integer programme over intervals, dynamic-programming cuts taken, and the most devices for either."""

SESSION_EVERY_ROUNDS, SESSION_ROUNDS, MAX_SESSIONS, SESSION_ACTIONS = 4, 2, 4, 4_000_000
"""Joint rounds between two sessions of order search, their rounds, how many are under way, and work per round."""

MAX_SEQUENTIAL_CELLS, SEQUENTIAL_WORK = 500_000, 200
"""Most devices x layers x layers for which the sequential planner is asked; how often it may look at all of them."""

MAX_VEES, MAX_VEE_ACTIONS, HOPELESS = 2, 30_000, 1.05
"""Two-chunk V that get sessions of their own, their most actions, and the ratio to the incumbent that ends them."""

ORDER_EVERY_ROUNDS, MAX_ORDER_ACTIONS = 12, 300
"""Rounds between two orders given to CP-SAT, and the largest number of actions it is given."""

MIN_SEED_PLAYS, MAX_SEED_ACTIONS, ALL_SEEDS = 6, 200_000_000, 1_000
"""First candidates of a large problem: how many are played at least, how many actions that may be in all, and how many
plays all the seeds of smaller problems take."""

SEED_SHARE, BASELINE_SHARE = 0.1, 0.3
"""Parts of the time limit by whose end the first candidates, and the baselines, of a large problem are played."""

MAX_BOUNDED_ACTIONS = 400_000
"""Larger plans come without a schedule bound, which would take as long as the rest."""

SEED_ACTIONS_PER_S = 3_000_000
"""How many actions of seeds a slow machine plays in a second."""

PLAYS_PER_ROUND, ACTIONS_PER_S = 8, 1_000_000
"""What the first round of a large problem is expected to take on a slow machine."""

__all__ = ["Limits", "Progress", "make_plan"]


def make_plan(
    problem: Problem,
    *,
    limits: Limits | None = None,
    start: Plan | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Plan:
    """The best verified plan found within the limits, never worse than any baseline that fits, nor than `start`.

    `start` may answer a similar question: if its stages and orders pass the verifier here, the search begins with them.
    `on_progress` hears of every step; `should_stop` is asked several times a second and ends the search early.
    Raises InfeasibleProblemError if no plan can exist, NoPlanFoundError if none was found,
    PlanError if our own verifier rejects every plan found.
    """
    recipe = _Recipe(problem, limits or Limits(), on_progress=on_progress or _ignore, should_stop=should_stop or _never)
    with recipe.collected_rarely():
        return _follow(recipe, start)


def _follow(recipe: "_Recipe", start: Plan | None) -> Plan:
    recipe.prove_feasible()
    recipe.begin_large()
    recipe.play_baselines()
    if start is not None:
        recipe.play_start(start)
    recipe.bound()
    recipe.search()
    return recipe.finish()


def _is_laid_out(plan: Plan, stages: tuple[Stage, ...]) -> bool:
    """Whether a plan has exactly these stages, on single devices."""
    return plan.stages == stages and all(len(group) == 1 for stage in stages for group in stage.replicas)


def _ignore(progress: Progress) -> None:
    del progress


def _never() -> bool:
    return False


_Key = tuple[bytes, tuple[tuple[int, ...], ...]]
"""A partition and a mapping: stage of every layer, and devices per stage."""


class _Recipe:
    """The steps of `make_plan` and what they share: the incumbent, the bound, the clock."""

    def __init__(
        self,
        problem: Problem,
        limits: Limits,
        *,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self.problem, self.limits = problem, limits
        self.on_progress, self.should_stop = on_progress, should_stop
        self.costs = CostModel(problem)
        self.begin = self.improved = time.monotonic()
        self.plan: Plan | None = None
        self.start: Plan | None = None
        self.timeline: Timeline | None = None
        self.source = ""
        self.verdict: Verdict | None = None
        self.offer_s = 0.0
        self.seeds: list[Candidate] = []
        self.lower_bound: Bound | None = None
        self.solver_bound_ns: int | None = None
        self.baselines: list[BaselineResult] = []
        self.layouts: list[tuple[Stage, ...]] = []
        self.played: list[Plan] = []
        self.orders: dict[_Key, OrderSearch] = {}
        self.contenders: dict[_Key, Candidate] = {}
        self.rejected: Verdict | None = None
        self.stopped_by = ""
        self.solvers: dict[str, str] = {}
        self.ordered: set[_Key] = set()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.begin

    @property
    def incumbent_ns(self) -> int | None:
        return None if self.timeline is None else self.timeline.objective_ns(self.problem.options.objective)

    @property
    def gap(self) -> float | None:
        if self.incumbent_ns is None or self.lower_bound is None:
            return None
        return (self.incumbent_ns - self.lower_bound.value_ns) / max(self.incumbent_ns, 1)

    def report(self, phase: str) -> None:
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

    def prove_feasible(self) -> None:
        """Raise InfeasibleProblemError if a limit alone rules out every plan."""
        reason = prove_infeasible(self.problem, self.costs)
        if reason is not None:
            raise InfeasibleProblemError(reason)

    def play_baselines(self) -> None:
        """Every baseline is played; those that fit become incumbents in turn."""
        for baseline in make_baselines(self.problem, self.costs, has_time=self.has_time_for_baseline):
            row, timeline = play_baseline(self.problem, baseline, costs=self.costs)
            self.baselines.append(row)
            if baseline.plan is None or timeline is None:
                continue
            self.layouts.append(baseline.plan.stages)
            if row.fits_memory:
                self.played.append(baseline.plan)
                self.offer(baseline.plan, timeline, source=row.name)
                self.report("baselines")

    def has_time_for_baseline(self) -> bool:
        """Whether another baseline may be played: on large problems they get a part of the time limit only."""
        if not self.is_large or self.limits.max_rounds is not None:
            return True
        return self.elapsed_s + 2 * self.offer_s < BASELINE_SHARE * self.limits.time_limit_s

    @property
    def is_large(self) -> bool:
        """Whether plans of the problem take so long to play that not everything can be tried."""
        return self.num_actions > LARGE_ACTIONS

    @property
    def num_actions(self) -> int:
        """Actions of a plan with one stage per device."""
        size = min(len(self.problem.cluster.devices), len(self.problem.profile.layers))
        return 3 * self.problem.num_microbatches * size

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

    @cached_property
    def instance(self) -> Instance:
        """The problem in integers."""
        return make_instance(self.problem, self.costs)

    def begin_large(self) -> None:
        """A first plan of a large problem, found among many cuts and mappings before anything slow begins."""
        if not self.is_large:
            return
        self.seeds = []
        searcher = Searcher(self.instance)
        is_timed = self.limits.max_rounds is None
        until = time.monotonic() + (SEED_SHARE * self.limits.time_limit_s if is_timed else math.inf)
        most = max(MIN_SEED_PLAYS, MAX_SEED_ACTIONS // self.num_actions)
        self.seeds = list(large_seeds(searcher, most_plays=most, until=until))
        if self.seeds and self.seeds[-1].is_feasible:
            self.offer(self._plan_of(searcher, self.seeds[-1]), None, source="large seeds")
            self.report("search")

    def play_start(self, start: Plan) -> None:
        """The plan to start from becomes the incumbent if it is one, and the search takes its stages and orders in."""
        plan = replace(start, problem=self.problem.reference(), evidence=None)
        if not verify(self.problem, plan).passed:
            return
        self.offer(plan, None, source="the plan to start from")
        self.report("start")
        if not any(stage.is_split for stage in plan.stages) and has_listed_groups(self.problem, plan.stages):
            self.start = plan
            self.layouts.append(plan.stages)

    def offer(self, plan: Plan, timeline: Timeline | None, *, source: str) -> bool:
        """Make `plan` the incumbent if it is better and the verifier passes it."""
        best = self.incumbent_ns
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

    def bound(self) -> None:
        """The certified bound over every plan that the options allow."""
        seconds = min(MAX_BOUND_S, max(MIN_BOUND_S, self.limits.time_limit_s / 10))
        self.lower_bound = make_bound(self.problem, self.costs, time_limit_s=seconds, make_covering=Covering)
        self.report("bound")

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

    def search(self) -> None:
        """Solvers propose, the verifier disposes, until a limit is reached."""
        if self.is_over():
            return
        try:
            for plan, source in self.proposals():
                if plan is not None and self.offer(plan, None, source=source):
                    self.report("search")
                if self.is_over():
                    return
        except PipeplanError:
            raise
        except Exception as error:
            if self.plan is None:
                raise
            # a bug of ours must not cost the user a plan that is already verified
            warnings.warn(
                f"the search failed ({error!r}); the best verified plan is returned", RuntimeWarning, stacklevel=2
            )
            self.stopped_by = "internal_error"

    def proposals(self) -> Iterator[tuple[Plan | None, str]]:
        """Plans to consider, one every fraction of a second, None where nothing new was found."""
        search = JointSearch(self.instance, seed=self.limits.seed)
        try:
            search.add(self.seeds)
            seeds = make_seeds(search.searcher) if self._has_time_for_all_seeds() else []
            search.add(seeds)
            if self._has_time_for_round(search.round_s):
                search.add(self._rate(search, stages) for stages in dict.fromkeys(self.layouts))
            if self.start is not None:
                search.keep(self._to_candidate(search, self.start))
            if self._has_time_for_round(search.round_s):
                search.take(self._played_candidates(search))
            is_known = any(search.best is seed for seed in self.seeds)  # its plan was offered before anything else
            yield None if is_known else self._to_plan(search, search.best), "balanced seeds"
            if self.instance.given_groups is not None and not self.instance.recompute:
                yield from self._order_proposals(search)
                return
            self._note_vees(search, seeds)
            yield from self._interval_proposals(search)
            self._note_sequential(search)
            yield self._to_plan(search, search.best), "sequential planner"
            if not search.pool:
                yield from self._exact_proposals(search)
            while search.pool and not self._rounds_are_over(search.round, search.round_s):
                before = search.best
                search.end_round(search.start_round())
                yield (None if search.best is before else self._to_plan(search, search.best)), "joint search"
                if search.round == EXACT_AFTER_ROUNDS:
                    yield from self._exact_proposals(search)
                elif search.round % ORDER_EVERY_ROUNDS == 0 and search.best is not None:
                    yield self._solved_order(search, search.best), "CP-SAT order"
                if search.round % SESSION_EVERY_ROUNDS == 0:
                    yield from self._sessions(search)
        finally:
            search.close()
            for order in self.orders.values():
                order.close()

    def _played_candidates(self, search: JointSearch) -> Iterator[Candidate]:
        """The baselines that fit, with their words, as the search sees them."""
        for plan in self.played:
            if all(len(group) == 1 for stage in plan.stages for group in stage.replicas):
                stage_of, groups = make_candidate_arrays(self.problem, plan.stages)
                rated = search.searcher.rate(stage_of, groups)
                words = replace(rated, words=make_words(self.problem, plan))
                yield replace(words, objective=search.searcher.words(words)[1])

    def _order_proposals(self, search: JointSearch) -> Iterator[tuple[Plan | None, str]]:
        """Partition and mapping are given: all time goes into the order."""
        seeds = make_seeds(search.searcher)[:1]
        if not seeds or not search.searcher.is_allowed(seeds[0]):
            return
        order = self._order_search(search, seeds[0])
        is_small = order.num_actions <= MAX_ORDER_ACTIONS
        yield self._to_plan(search, order.best), "order seeds"
        if not order.pool:
            yield from self._exact_proposals(search)
        while not self._rounds_are_over(order.round, order.round_s):
            before = order.pool[:1]
            order.run_round()
            yield (None if order.pool[:1] == before else self._to_plan(search, order.best)), "order search"
            if is_small and order.round == EXACT_AFTER_ROUNDS:
                yield from self._exact_proposals(search)

    def _note_vees(self, search: JointSearch, seeds: list[Candidate]) -> None:
        """Remember the two-chunk V with the least floors: policies play them badly in little memory, words do not."""
        rated = list[tuple[int, int, Candidate]]()
        for seed in seeds:
            half = len(seed.groups) // 2
            is_vee = half and len(set(seed.groups)) == half and seed.groups[half:] == seed.groups[:half][::-1]
            num_actions = 3 * self.problem.num_microbatches * len(seed.groups)
            if is_vee and num_actions <= MAX_VEE_ACTIONS and search.searcher.is_allowed(seed):
                floor = search.searcher.floor(seed.stage_of, seed.groups, recompute=seed.recompute)
                if floor is not None:
                    rated.append((floor, len(rated), seed))
        self.contenders = {(seed.stage_of.tobytes(), seed.groups): seed for *_, seed in sorted(rated)[:MAX_VEES]}

    def _note_sequential(self, search: JointSearch) -> None:
        """Start also from the best that deciding stages first and the order afterwards can do: never lose to it."""
        num_cells = len(self.problem.cluster.devices) * len(self.problem.profile.layers) ** 2
        if num_cells > MAX_SEQUENTIAL_CELLS or self.problem.options.partition is not None:
            return
        try:
            stages = sequential_seating(self.costs, max_cells=SEQUENTIAL_WORK * MAX_SEQUENTIAL_CELLS).stages
        except DoesNotApplyError:
            return
        candidate = self._rate(search, stages)
        if search.searcher.is_allowed(candidate):
            search.add([candidate])
            self.contenders[candidate.stage_of.tobytes(), candidate.groups] = candidate

    def _sessions(self, search: JointSearch) -> Iterator[tuple[Plan | None, str]]:
        """In turn, the order of the best candidate, and that of every contender that is not hopeless yet."""
        turn = search.round // SESSION_EVERY_ROUNDS - 1
        if search.best is not None and (not self.contenders or turn % 2):
            yield from self._order_session(search, search.best)
        elif self.contenders:
            key = list(self.contenders)[turn // 2 % len(self.contenders)]
            yield from self._order_session(search, self.contenders[key])
            order = self.orders[key]
            best, incumbent = order.pool[0].objective if order.pool else FAR, self.incumbent_ns
            if incumbent is not None and (best > HOPELESS * incumbent or order.floor >= incumbent):
                del self.contenders[key]

    def _order_session(self, search: JointSearch, candidate: Candidate) -> Iterator[tuple[Plan | None, str]]:
        """A few rounds on the order of a good candidate; the next session of the same one goes on from there."""
        order = self._order_search(search, candidate)
        for _ in range(SESSION_ROUNDS):
            if order.pool and order.pool[0].objective <= order.floor:
                break
            order.run_round()
            if order.best is not None:
                search.take([order.best])
            yield self._to_plan(search, order.best), "order search"

    def _order_search(self, search: JointSearch, candidate: Candidate) -> OrderSearch:
        """The order search of a candidate's partition and mapping, with everything known about their orders."""
        key = (candidate.stage_of.tobytes(), candidate.groups)
        if key not in self.orders:
            while len(self.orders) >= MAX_SESSIONS:
                self.orders.pop(next(old for old in self.orders if old not in self.contenders)).close()
            stages = make_stages(
                self.problem, candidate.stage_of, groups=candidate.groups, recompute=candidate.recompute
            )
            schedule = make_schedule_instance(self.problem, stages, costs=self.costs)
            assert self.lower_bound is not None
            floor = self.lower_bound.value_ns
            work = MOST_ACTIONS if self.problem.options.placement is not None else SESSION_ACTIONS
            order = OrderSearch(
                search.searcher, candidate, seed=self.limits.seed, schedule=schedule, floor=floor, most_actions=work
            )
            same = (plan for plan in self.played if _is_laid_out(plan, stages))
            order.add([one_by_one(schedule), *(make_words(self.problem, plan) for plan in same)])
            order.add_blocks()
            self.orders[key] = order
        self.orders[key].add([search.searcher.words(candidate)[0]])
        return self.orders[key]

    def _rate(self, search: JointSearch, stages: tuple[Stage, ...]) -> Candidate:
        stage_of, groups = make_candidate_arrays(self.problem, stages)
        flags = numpy.array([int(stage.recompute) for stage in stages], dtype=numpy.int64)
        return search.searcher.rate(stage_of, groups, recompute=flags)

    def _interval_proposals(self, search: JointSearch) -> Iterator[tuple[Plan | None, str]]:
        """Cuts of the layers in one topological order: by dynamic programming, then by an integer programme."""
        instance = search.searcher.instance
        if instance.given_stages is not None or len(instance.capacity) > MAX_INTERVAL_DEVICES:
            return
        # pulp takes a third of a second to import: not before the first plans are out
        from solver_models.partition import Interval, candidates, make_partition_instance, seat, solve_partition

        partition = make_partition_instance(instance)
        found = candidates(partition, limit=MAX_INTERVAL_CANDIDATES, uneven=instance.uneven_replication)
        search.add(search.searcher.rate(*seat(partition, stages)) for stages in found)
        if instance.recompute:
            smaller = make_partition_instance(as_if_recomputing(instance))
            cuts = candidates(smaller, limit=MAX_INTERVAL_CANDIDATES, uneven=instance.uneven_replication)
            rated = [search.searcher.rate(*seat(smaller, stages)) for stages in cuts]
            search.add([*rated, *recompute_variants(search.searcher, rated)])
        yield self._to_plan(search, search.best), "dynamic programme"
        if not found or self.limits.time_limit_s - self.elapsed_s < 2 * INTERVAL_LIMIT_S:
            return
        result = solve_partition(
            partition,
            incumbent=found[0],
            time_limit_s=INTERVAL_LIMIT_S,
            seed=self.limits.seed,
            should_stop=self.should_stop,
        )
        self.solvers["highspy"] = result.solver
        if result.stages is not None:
            stages = tuple(Interval(*stage) for stage in result.stages)
            search.add([search.searcher.rate(*seat(partition, stages))])
            yield self._to_plan(search, search.best), "interval programme"

    def _rounds_are_over(self, rounds: int, round_s: float) -> bool:
        """Whether the deterministic limit is reached, or the next round would end beyond the time limit."""
        if self.limits.max_rounds is not None:
            return rounds >= self.limits.max_rounds
        if not self._has_time_for_round(round_s):
            self.stopped_by = "time"
        return bool(self.stopped_by)

    def _has_time_for_all_seeds(self) -> bool:
        """Whether all balanced cuts can be played with all standard policies."""
        actions = ALL_SEEDS * self.num_actions
        if not self.is_large or self.limits.max_rounds is not None:
            return actions <= MAX_SEED_ACTIONS or not self.is_large
        return self.elapsed_s + actions / SEED_ACTIONS_PER_S <= self.limits.time_limit_s

    def _has_time_for_round(self, round_s: float) -> bool:
        """Whether a round, and the check of what it finds, would end within the time limit, or not far beyond."""
        if self.limits.max_rounds is not None:
            return True
        needed = round_s / 2 + self.offer_s
        if self.is_large:
            needed += round_s / 2 or PLAYS_PER_ROUND * self.num_actions / ACTIONS_PER_S
        return self.elapsed_s + needed <= self.limits.time_limit_s

    def _exact_proposals(self, search: JointSearch) -> Iterator[tuple[Plan | None, str]]:
        """Close every partition and mapping of a small problem by its floor or by its best order."""
        exact = ExactSearch(
            self.problem,
            self.costs,
            searcher=search.searcher,
            incumbent_ns=lambda: self.incumbent_ns,
            seconds_left=lambda: self.limits.time_limit_s - self.elapsed_s,
            should_stop=self.should_stop,
            seed=self.limits.seed,
        )
        try:
            for plan in exact.proposals(least=self.lower_bound.value_ns if self.lower_bound else 0):
                yield plan, "exact search"
        finally:
            if exact.covers_all_plans:
                self.solver_bound_ns = exact.bound_ns
            if exact.solver:
                self.solvers["ortools"] = exact.solver
        if exact.is_closed:
            self.stopped_by = "no_improvement"
            yield None, "exact search"

    def _solved_order(self, search: JointSearch, candidate: Candidate) -> Plan | None:
        """A better order of the best partition and mapping, if it is small enough for CP-SAT and open."""
        num_actions = 3 * self.problem.num_microbatches * sum(len(group) for group in candidate.groups)
        key = (candidate.stage_of.tobytes(), candidate.groups)
        if num_actions > MAX_ORDER_ACTIONS or key in self.ordered or self.incumbent_ns is None or self.plan is None:
            return None
        self.ordered.add(key)
        if schedule_bound(self.problem, self.plan.stages, costs=self.costs) >= self.incumbent_ns:
            return None
        return self._solve_order(candidate, self.incumbent_ns, hint=search.searcher.words(candidate)[0])[0]

    def _solve_order(
        self, candidate: Candidate, below: int, *, hint: dict[int, Word] | None = None
    ) -> tuple[Plan | None, bool]:
        """What CP-SAT makes of the order; settled if it closes it and its words replay to what it claims."""
        # takes a second to import, and most problems never need it
        from solver_models.schedule.solve import solve_order

        stages = make_stages(self.problem, candidate.stage_of, groups=candidate.groups, recompute=candidate.recompute)
        instance = make_schedule_instance(self.problem, stages, costs=self.costs)
        result = solve_order(
            instance,
            hint=hint,
            upper_bound=below - 1,
            time_limit_s=min(ORDER_LIMIT_S, max(0.1, (self.limits.time_limit_s - self.elapsed_s) / 4)),
            seed=self.limits.seed,
            should_stop=self.should_stop,
        )
        self.solvers["ortools"] = result.solver
        if result.words is None:
            return None, result.status == "infeasible"
        plan = make_plan_from_words(self.problem, stages, words=result.words)
        played = simulate(self.problem, plan, costs=self.costs).objective_ns(self.problem.options.objective)
        return plan, result.status == "optimal" and played == result.objective

    def _to_candidate(self, search: JointSearch, plan: Plan) -> Candidate:
        """A plan with its orders as the search sees it."""
        rated = self._rate(search, plan.stages)
        return search.searcher.play(replace(rated, words=make_words(self.problem, plan)))

    def _to_plan(self, search: JointSearch, candidate: Candidate | None) -> Plan | None:
        if candidate is None:
            return None
        return self._plan_of(search.searcher, candidate)

    def _plan_of(self, searcher: Searcher, candidate: Candidate) -> Plan:
        words, _ = searcher.words(candidate)
        stages = make_stages(self.problem, candidate.stage_of, groups=candidate.groups, recompute=candidate.recompute)
        return make_plan_from_words(self.problem, stages, words=words)

    def finish(self) -> Plan:
        """The incumbent with its evidence, verified once more as a whole."""
        if self.plan is None or self.timeline is None:
            if self.rejected is not None:
                first = self.rejected.violations[0]
                raise PlanError(f"the verifier rejected every plan found; the last one: {first.message}")
            raise NoPlanFoundError(
                f"no plan was found in {self.elapsed_s:.0f} s; no limit was proved to rule one out: allow more time, "
                "more memory, recomputation or more stages per device"
            )
        plan = replace(self.plan, evidence=self._evidence(self.plan, self.timeline))
        verdict = verify(self.problem, plan, earlier=self.verdict if self.is_large else None)
        if not verdict.passed:
            raise PlanError(f"the verifier rejected the final plan: {verdict.violations[0].message}")
        return plan

    def _evidence(self, plan: Plan, timeline: Timeline) -> Evidence:
        assert self.lower_bound is not None
        objective = timeline.objective_ns(self.problem.options.objective)
        gap = self.gap or 0.0
        is_bounded = self.num_actions <= MAX_BOUNDED_ACTIONS
        fixed = None
        if is_bounded:
            fixed = schedule_bound(self.problem, plan.stages, costs=self.costs, reached=objective)
        return Evidence(
            makespan_ns=timeline.makespan_ns,
            span_ns=timeline.span_ns,
            bubble=timeline.bubble,
            peak_bytes=dict(timeline.peak_bytes),
            lower_bound_ns=self.lower_bound.value_ns,
            bound_kind=self.lower_bound.kind,
            certificate={**self.lower_bound.certificate, **enclose(self.problem)},
            gap=gap,
            schedule_bound_ns=None if fixed is None else max(fixed, self.lower_bound.value_ns),
            solver_bound_ns=self.solver_bound_ns,
            solution_status="optimal" if objective <= self.lower_bound.value_ns else "feasible",
            stopped_by=self.stopped_by or ("proof" if gap <= 0 else "rounds"),
            source=self.source,
            baselines=tuple(self.baselines),
            interpolated_costs=self.costs.unmeasured_costs(plan.stages),
            planner_version=version("pipeline-planner"),
            solver_versions=self.solvers,
            seed=self.limits.seed,
            verdict={"passed": True, "violations": []},
        )

"""The search: first candidates, and then improvers that take turns, round by round."""

import math
import time
from collections.abc import Generator, Iterator, Sequence

from planner import decisions
from planner.clock import while_time
from planner.planning.complete.complete_search import is_complete
from planner.planning.improvers.bound_improver import BoundImprover
from planner.planning.improvers.cp_sat_orders import MAX_ACTIONS, GivenOrder, SingleOrders
from planner.planning.improvers.exact_improver import ExactImprover
from planner.planning.improvers.improver import DecisionImprover, Improver, Leader
from planner.planning.improvers.order_sessions import Sessions
from planner.planning.improvers.sequential_improver import SequentialImprover
from planner.planning.improvers.time_indexed_improver import TimeIndexedImprover
from planner.planning.improvers.tree_bounds import OrderTrees
from planner.planning.search_state import SEED_SHARE, SearchState
from planner.planning.starts.conversions import candidate_of, plan_of, played_candidates, rate
from planner.planning.starts.interval_cuts import INTERVAL_CUTS, add_interval_cuts, may_cut
from solver_models.local_search.multistart import JointSearch
from solver_models.local_search.order_search import OrderSearch
from solver_models.local_search.search import STANDARD_POLICY_PARAMS, Candidate, Searcher
from solver_models.precompile import FIRST
from solver_models.starts.first_candidates import make_seeds

_SLOW_PLAY_S = 0.001
"""A play that takes longer says how long the first round of the joint search takes."""
_TIMED_PLAYS = 5
"""Plays that are timed to tell how long the first round takes, at most; the least counts."""
_ALL_SEEDS = 1_000
"""How many plays all balanced seeds take, about."""
_SEED_ACTIONS_PER_S = 3_000_000
"""Actions of seeds that a slow machine plays in a second."""
_SEEDS_PER_WORKER = 2
"""Seeds that are rated before there is a look at the clock."""
_MAX_SEED_ACTIONS = 200_000_000
"""Actions that all balanced seeds of a large problem may be in all."""


class _Pace(Improver):
    """A search in rounds, each followed by steps of the other parts that are due."""

    search: JointSearch | OrderSearch

    @property
    def rounds(self) -> int:
        """Rounds that were started."""
        return self.search.round

    @property
    def round_s(self) -> float:
        """Seconds that a task of the next round is expected to take."""
        return self.search.round_s

    def is_due(self, rounds: int) -> bool:
        """Whether this part takes part in a round: it does in every one."""
        del rounds
        return True


class _JointImprover(_Pace):
    """Rounds of the joint search: one task after the other improves partition, mapping and order."""

    name = "joint search"

    def __init__(self, search: JointSearch, leader: Leader) -> None:
        self.search: JointSearch = search
        self.leader = leader

    def take_step(self) -> Iterator[None]:
        """The next round; before the first that polishes orders, what was found is taken in and kernels are awaited."""
        if self.rounds + 1 == self.search.annealing.first_polish_round:
            self.leader.run.window.drain()
            yield
            self.leader.run.make_ready(*FIRST)
        self.search.run_round(lambda: self.leader.propose(self.name))
        yield


class _OrderImprover(_Pace):
    """Rounds of order search on the one partition and mapping that is given."""

    name = "order search"

    def __init__(self, run: SearchState, searcher: Searcher, *, order: OrderSearch) -> None:
        self.run, self.searcher = run, searcher
        self.search: OrderSearch = order

    def take_step(self) -> Iterator[None]:
        """The next round."""
        self.search.run_round(lambda: self.propose(self.name))
        yield

    def propose(self, source: str) -> None:
        """Propose the best order."""
        best = self.search.best
        if best is not None:
            self.run.propose(plan_of(self.run.problem, self.searcher, candidate=best), source=source)


class SearchLoop:
    """The improvers of a run, and whose turn it is."""

    def __init__(self, run: SearchState) -> None:
        self.run = run
        self.search = JointSearch(run.instance, seed=run.limits.seed, window=run.window, params=run.params)
        self.leader = Leader(run, self.search)
        self.sessions = Sessions(run, self.search, leader=self.leader)
        self.sequential = SequentialImprover(run, self.search, leader=self.leader)
        self.exact = ExactImprover(run, self.search.searcher)
        makers = [each.make_improver for each in decisions.modules("move")]
        self.decisions: list[DecisionImprover] = [make(run, self.search) for make in makers]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """What the joint search knows: orders of their own first, then the best of each shape, then its starts."""
        return (*self.search.polished, *self.search.pool, *self.search.elite, *self.search.starts)

    def steps(self) -> Generator[None, None, None]:
        """Search until the rounds are over; it yields wherever the run may end."""
        yield from self._begin()
        instance = self.run.instance
        if instance.given_groups is not None and not ("recompute" in instance.rules or instance.may_choose_shards):
            yield from self._pack_at_once()
            yield from self._search_orders()
        else:
            yield from self._search_jointly()

    def _begin(self) -> Iterator[None]:
        with self.run.step_of("balanced seeds"):
            seeds = self._add_seeds()
            self.leader.propose("balanced seeds")
        self.sessions.note_vees(seeds)
        yield

    def _search_jointly(self) -> Iterator[None]:
        """Cuts and orders of other origins, and then rounds of joint search with the other improvers in between."""
        run, search = self.run, self.search
        if may_cut(run):
            with run.step_of(INTERVAL_CUTS):
                add_interval_cuts(run, search)
                self.leader.propose(INTERVAL_CUTS)
            yield
        if run.has_time_for_round(search.round_s) and run.params.has("sequential planner"):
            with run.step_of("sequential planner"):
                self.sequential.begin()
            yield
        time_indexed = TimeIndexedImprover(run)
        if run.instance.given_groups is not None and time_indexed.is_due(0):
            yield from self._take_step(time_indexed)
        yield from self._begin_decisions(None)
        if not search.pool:
            yield from self._finish_without_pool()
            return
        single = SingleOrders(run, search)
        complete = (self.exact, single) if self._is_complete else (single,) if self._prepares_solver else ()
        bound = BoundImprover(run, search, leader=self.leader)
        others = (
            self.sequential,
            *self.decisions,
            time_indexed,
            *complete,
            self.sessions,
            bound,
        )
        self._expect_first_round()
        yield from self._take_steps(_JointImprover(search, self.leader), others)

    def _begin_decisions(self, given: Candidate | None) -> Iterator[None]:
        """First steps of the decisions that are open; `given`: stages and devices, where both are decided."""
        for decision in self.decisions:
            if decision.is_open and self.run.params.has(decision.name):
                with self.run.step_of(decision.name):
                    yield from decision.begin(given)

    def _expect_first_round(self) -> None:
        """Tell how long the first round takes, where a play is slow: many devices, or links that many of them share."""
        search, slow_s, seconds = self.search, _SLOW_PLAY_S, math.inf
        # the least of several: the first may load kernels, and other programs may interrupt a quick play, but
        # they interrupt no two for so long as to take a hundred times what a slow one does
        for number in range(_TIMED_PLAYS):
            begin = time.monotonic()
            search.searcher.play(search.pool[0])
            seconds = min(seconds, time.monotonic() - begin)
            if seconds <= slow_s or (number > 0 and seconds >= 100 * slow_s):
                break
        if seconds > slow_s:
            plays = search.iterations + len(STANDARD_POLICY_PARAMS)  # its tasks first rate what low bounds lead to
            search.round_s = max(search.round_s, seconds * plays)

    @property
    def _is_complete(self) -> bool:
        """Whether the exact search may say that nothing is left: it knows stages that recompute, not parts of them."""
        return self.run.limits.method == "auto" and self.run.problem.options.decides_whole_stages

    @property
    def _prepares_solver(self) -> bool:
        """Whether a solver continues from what is found here."""
        return is_complete(self.run.limits.method) and self.run.problem.options.decides_whole_stages

    def _search_orders(self) -> Iterator[None]:
        """Partition and mapping are given: all time goes into the order."""
        self.run.make_ready(*FIRST)
        seeds = make_seeds(self.search.searcher)[:1]
        if not seeds or not self.search.searcher.is_allowed(seeds[0]):
            yield from self._take_decisions()
            return
        with self.run.step_of("order seeds"):
            order = self.sessions.order_search(seeds[0])
            orders = _OrderImprover(self.run, self.search.searcher, order=order)
            orders.propose("order seeds")
        yield
        if not order.pool:
            yield from self._finish_without_pool()
        yield from self._begin_decisions(seeds[0])
        given = (GivenOrder(self.run, order), OrderTrees(self.run, self.search.searcher)) if self._is_complete else ()
        self.exact.is_final = order.num_actions <= MAX_ACTIONS and self.run.limits.method == "auto"
        exact = (self.exact,) if self.exact.is_final else ()
        others = (*self.decisions, *given, *exact)
        yield from self._take_steps(orders, others)

    def _take_steps(self, pace: _JointImprover | _OrderImprover, others: Sequence[Improver]) -> Iterator[None]:
        """One round of `pace` after the other, each followed by a step of the others that are due."""
        improvers: tuple[Improver, ...] = (pace, *(each for each in others if self.run.params.has(each.name)))
        try:
            while not self.run.rounds_are_over(pace.rounds, pace.round_s):
                for improver in improvers:
                    if improver.is_due(pace.rounds):
                        yield from self._take_step(improver)
            self.run.window.drain()
        finally:
            for improver in improvers:
                improver.close()

    def _take_step(self, improver: Improver) -> Iterator[None]:
        """A step of an improver that is not left out."""
        if self.run.params.has(improver.name):
            with self.run.step_of(improver.name):
                yield from improver.take_step()

    def _take_decisions(self) -> Iterator[None]:
        """A step of each decision with a folder of its own, where the joint search has nothing to offer."""
        for decision in self.decisions:
            if decision.is_open and decision.finds_alone and self.run.params.has(decision.name):
                with self.run.step_of(decision.name):
                    yield from decision.take_step()

    def _pack_at_once(self) -> Iterator[None]:
        """What the first bound left to the search, where that does not come back to it."""
        if self.run.pending_effort:
            yield from self._take_step(BoundImprover(self.run, self.search, leader=self.leader))

    def _finish_without_pool(self) -> Iterator[None]:
        yield from self._pack_at_once()
        yield from self._take_decisions()
        yield from self._finish_exactly()

    def _finish_exactly(self) -> Iterator[None]:
        """The exact search to its end: where nothing else can find a plan."""
        if not self.run.problem.options.decides_whole_stages or not self.run.params.has(self.exact.name):
            return
        try:
            with self.run.step_of(self.exact.name):
                yield from self.exact.to_the_end()
        finally:
            self.exact.close()

    def _add_seeds(self) -> list[Candidate]:
        """Balanced cuts, the stages of the baselines, and their orders where there is time for it."""
        run, search, searcher = self.run, self.search, self.search.searcher
        share = SEED_SHARE / run.num_workers
        search.add(run.seeds)
        has_time = run.time_until(share)
        seeds = []
        if self._has_time_for_all_seeds() and (run.plan is None or run.has_time_for_round(search.round_s)):
            seeds = make_seeds(
                searcher,
                has_time=has_time if self._may_take_long() else None,
                do_all=run.window.do_all if run.workers is not None else None,
                at_once=_SEEDS_PER_WORKER * run.num_workers if run.workers is not None else 1,
            )
        search.add(seeds)
        if run.has_time_for_round(search.round_s):
            rated = (rate(run.problem, searcher, stages=stages) for stages in dict.fromkeys(run.layouts))
            search.add(while_time(rated, has_time=has_time))
        if run.start is not None:
            search.take([candidate_of(run.problem, searcher, plan=run.start)])
        if run.has_time_for_round(search.round_s):
            played = played_candidates(run.problem, searcher, plans=run.played)
            search.take(while_time(played, has_time=run.time_until(share)))
        return seeds

    def _may_take_long(self) -> bool:
        """Whether rating all balanced cuts could take much of the time that is left."""
        run = self.run
        seconds = _ALL_SEEDS * run.num_actions / _SEED_ACTIONS_PER_S
        return run.limits.max_rounds is None and seconds > SEED_SHARE * run.seconds_left

    def _has_time_for_all_seeds(self) -> bool:
        """Whether all balanced cuts can be played with all standard policies."""
        run = self.run
        actions = _ALL_SEEDS * run.num_actions
        if not run.is_large or run.limits.max_rounds is not None:
            return actions <= _MAX_SEED_ACTIONS or not run.is_large
        return run.elapsed_s + actions / _SEED_ACTIONS_PER_S <= run.limits.time_limit_s

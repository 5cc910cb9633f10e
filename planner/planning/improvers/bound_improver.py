"""The packing bound in turns with the joint search: the bound rises, and plans that it lets pass are tried as plans.

Before the search little is known of how good a plan can be, so that bound has to wait: the search gains most in its
first seconds. Once there is a good plan, the bound knows where to look; and where memory is tight, stages that the
bound cannot rule out are often better than any that the moves of the search come by.
"""

import math
import time
from collections.abc import Iterator

from planner.bounds.shared_layers import shared_layers
from planner.evidence.certificate import Bound, raise_bound
from planner.plan import Stage
from planner.planning.complete.complete_search import is_complete
from planner.planning.improvers.improver import Improver, Leader
from planner.planning.improvers.order_sessions import begin_order_search
from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import rate
from solver_models.covering import Covering
from solver_models.local_search.multistart import JointSearch
from solver_models.precompile import FIRST

_AFTER_ROUNDS = 2
"""Rounds of the joint search before it continues."""
_SHARE = 0.4
"""Part of the search's time that it gets at most."""
_LEAST_SHARE, _GAP_SHARES = 0.1, 4
"""It gets so many times the gap as a part of the search's time, and never less than the first part: what it takes to
refute one deadline more does not shrink with the gap, and the sooner a good plan is found, the less would be left.
"""
_STEP_S, _MOST_STEP_S, _MOST_STEP_SHARE = 0.5, 2.0, 1 / 30
"""Seconds of a step, about: the least, and the most where that much of its share is left, in all and of the limit."""
_QUIET_SHARE, _MOST_QUIET_S = 0.25, 8.0
"""Part of the time left, and seconds at most, that the search has to itself before the first step."""
_MIN_LEFT_S = 4.0
"""With fewer seconds left the first step belongs to the bound before the search."""
_NEAR = 0.01
"""A gap up to which the first step need not wait."""
_MOST_ACTIONS = 4_000_000
"""Work up to which that of a round doubles, in played actions."""
_ORDER_ROUNDS = 2
"""Rounds of order search on the stages of a plan that it lets pass."""


def raises_bound(run: SearchState) -> bool:
    """Whether the bound runs beside the search: not where rounds are counted, since somebody waits for every one."""
    is_free = run.problem.options.partition is None and not run.fits_stages
    return is_free and run.limits.max_rounds is None and not run.is_large and not is_complete(run.limits.method)


def packs_later(run: SearchState) -> bool:
    """Whether the first bound leaves packing to the search: not where it decides whether there is one, or ends it."""
    is_alone = run.num_runs == 1 and run.rival_ns is None and not run.limits.gap
    has_time = run.seconds_left >= _MIN_LEFT_S and run.params.has(BoundImprover.name)
    return raises_bound(run) and is_alone and has_time and not shared_layers(run.problem)


class BoundImprover(Improver):
    """Steps of the packing bound, and order search on what it lets pass."""

    name = "packing bound"

    def __init__(self, run: SearchState, search: JointSearch, *, leader: Leader) -> None:
        self.run, self.search, self.leader = run, search, leader
        self.seen = set(run.layouts)
        """Stages that the search knows."""
        self.found: list[tuple[Stage, ...]] = []
        """Stages that were not tried yet, those for the shortest deadlines last."""
        self.steps: Iterator[Bound] | None = None
        self.is_done = run.lower_bound is None or not raises_bound(run)
        self.used_s, self.begin_s = 0.0, run.elapsed_s
        patience_s = math.inf if run.limits.patience_s is None else run.limits.patience_s
        quiet_s = min(_QUIET_SHARE * run.seconds_left, _MOST_QUIET_S, patience_s / 2)
        self.quiet_s = quiet_s if run.pending_effort else 0.0
        """Seconds that the search has to itself."""

    def is_due(self, rounds: int) -> bool:
        """As soon as the others had their first rounds, as long as it has used no more than its share of the time."""
        if rounds < _AFTER_ROUNDS or (self.is_done and not self.found):
            return False
        if self.steps is None and self._gap > _NEAR and self.run.elapsed_s < self.begin_s + self.quiet_s:
            return False
        return self._left_s >= 0 and self.run.has_time_for_round(max(self.search.round_s, _STEP_S))

    @property
    def _gap(self) -> float:
        return 1.0 if self.run.gap is None else self.run.gap

    @property
    def _left_s(self) -> float:
        """Seconds of its share that are left."""
        share = min(_SHARE, max(_LEAST_SHARE, _GAP_SHARES * self._gap))
        return share * (self.run.elapsed_s - self.begin_s) - self.used_s

    @property
    def _step_s(self) -> float:
        """Seconds of the next step: in short ones it would not come to its share, for rounds of the search are long."""
        most_s = min(_MOST_STEP_S, _MOST_STEP_SHARE * self.run.limits.time_limit_s)
        return max(_STEP_S, min(self._left_s, most_s))

    def take_step(self) -> Iterator[None]:
        """Some steps of the bound, or the order of one plan that it lets pass."""
        if self.found:
            yield from self._try(self.found.pop())
            return
        is_first, begin = self.run.pending_effort > 0, time.monotonic()
        self._raise_bound(until=begin + (0.0 if is_first else self._step_s))
        if not is_first:
            self.used_s += time.monotonic() - begin
        yield

    def _raise_bound(self, *, until: float) -> None:
        run = self.run
        if self.steps is None:
            assert run.lower_bound is not None
            self.steps = raise_bound(
                run.costs, run.lower_bound,
                make_covering=Covering,
                reached=lambda: run.threshold_ns,
                has_time=lambda: run.has_time_for_round(0.0) and not run.should_stop(),
                first_effort=run.pending_effort,
                params=run.params.bound,
            )  # fmt: skip
            run.pending_effort = 0
        while True:
            bound = next(self.steps, None)
            if bound is None:
                self.is_done = True
                break
            self._take(bound)
            if time.monotonic() >= until:
                break

    def _take(self, bound: Bound) -> None:
        """A higher bound, and stages that nobody has seen."""
        run = self.run
        if run.lower_bound is None or bound.value_ns > run.lower_bound.value_ns:
            run.lower_bound = bound
            run.report("bound")
        timely = filter(run.problem.is_as_given, dict.fromkeys(bound.timely))
        fresh = [stages for stages in timely if stages not in self.seen]
        self.seen.update(fresh)
        self.found += reversed(fresh)

    def _try(self, stages: tuple[Stage, ...]) -> Iterator[None]:
        """Some rounds of order search, unless no order of these stages is better than the incumbent."""
        run, searcher = self.run, self.search.searcher
        candidate = rate(run.problem, searcher, stages=stages)
        if not searcher.is_allowed(candidate):
            return
        self.search.add([candidate])
        run.make_ready(*FIRST)
        lower_bound = searcher.exact_lower_bound(candidate)
        if lower_bound is not None and run.threshold_ns is not None and lower_bound >= run.threshold_ns:
            return
        order = begin_order_search(run, searcher, candidate=candidate, plans=[], most_actions=_MOST_ACTIONS)
        order.add([searcher.device_orders(candidate)[0]])
        self.leader.take_best(order, source=self.name)
        for _ in range(_ORDER_ROUNDS):
            if not run.has_time_for_round(order.round_s):
                break
            order.run_round(lambda: self.leader.take_best(order, source=self.name))
            yield

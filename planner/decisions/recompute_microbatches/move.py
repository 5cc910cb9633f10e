"""Which microbatches recompute, as a decision of the search: together with the orders of the best stages.

The joint search knows stages that recompute every microbatch, or none. Here its best stages are ordered anew, and every
microbatch of them may recompute or keep everything (`solver_models.recomputation.microbatch_orders`). Stages are left
out once no order of theirs can be better than the incumbent, whatever recomputes.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from planner.decisions.recompute_microbatches.option import DECISION
from planner.evidence.certificate import schedule_bound
from planner.layout.device_groups import overlap_anywhere
from planner.lowering import make_orders, make_plan_from_orders, make_schedule_instance
from planner.plan import Stage
from planner.planning.improvers.improver import DecisionImprover
from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import stages_of
from solver_models.instance import DeviceOrder, ScheduleInstance
from solver_models.local_search.multistart import JointSearch
from solver_models.local_search.search import Candidate
from solver_models.recomputation.beam_starts import BeamStarts, make_beams
from solver_models.recomputation.microbatch_recomputation import MicrobatchRecomputation, RecomputedOrders
from solver_models.recomputation.order_program import ProgramEffort, choose_recomputed

_FIRST_WORK, _MOST_WORK = 32_000_000, 256_000_000
"""Actions that a step of annealing plays, about: of the same stages twice as many every time, up to a limit."""
_COUNTED_WORK = 8_000_000
"""The same of every step where rounds are counted."""
_EVERY_ROUNDS = 2
"""Rounds of the search between two steps, where rounds are counted."""
_TIME_SHARE = 0.3
"""Of the time, that of one thread."""
_MOST_ACTIONS = 6_000
"""Of a plan with a stage on every device, about; of larger ones annealing plays too few."""
_STEPS_WHERE_GIVEN = 3
"""Steps between two rounds of the joint search where partition and mapping are given, which leaves it little to do."""
_MOST_SHARE = 0.15
"""Of the time limit that a step may take."""
_TEMPERATURES = (0.2, 0.1, 0.6, 0.3)
"""First temperatures of the steps, in turn, in mean actions."""
_JOINT_STARTS = 4
"""Candidates of the joint search whose stages are looked at."""
_EXACT_ACTIONS = 300
"""Of a plan that CP-SAT is given."""
_EXACT_SHARE, _EXACT_WORK = 0.3, 4.0
"""Of the time left that it gets; and its work where rounds are counted."""
_LATENESS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""For how many backwards W waits in starts of one F for one backward, of the stages before."""
_PROGRAMS_SHARE, _MOST_NODES = 0.12, 500
"""Of the time limit that programmes of starts get; and nodes of the search of each."""
_BEAM_WIDTH, _MOST_WIDTH = 64, 4_096
"""Nodes of a first beam; of the next four times as many, up to a limit."""
_BEAMS_EVERY, _BEAMS_SHARE = 4, 0.3
"""Steps of the same stages of which one is beams; and of the time limit, what it gets."""
_HOPEFUL = 16
"""Beams, one of each guide without noise, after which the rest is left if none is better than what there is."""
_KEPT = 4
"""Orders that are kept of the same stages."""
_PATIENCE = 3
"""Steps from which the best orders of all stages are begun from, for each that begins with others."""

Orders = dict[int, DeviceOrder]


@dataclass(slots=True, kw_only=True)
class _Ordered:
    """Stages, and the best orders of theirs so far."""

    stages: tuple[Stage, ...]
    """As they recompute where they do."""
    search: MicrobatchRecomputation
    pool: list[RecomputedOrders] = field(default_factory=list)
    starts: list[RecomputedOrders]
    """Of which HiGHS says first what recomputes."""
    beams: list[BeamStarts]
    """Of stages that are a chain."""
    width: int = _BEAM_WIDTH
    """Of the next beams."""
    is_exact: bool = False
    """Whether CP-SAT was given them whole."""
    is_closed: bool = False
    """Whether CP-SAT says that none of these orders is better."""
    steps: int = 0
    """Steps that were started."""
    work: int
    """Of the next step."""

    def keep(self, found: Iterable[RecomputedOrders]) -> None:
        """Keep the best of what is new; of orders that end together the latest."""
        ends = {each.end: each for each in (*self.pool, *found)}
        self.pool = [ends[end] for end in sorted(ends)][:_KEPT]


class MicrobatchRecomputeImprover(DecisionImprover):
    """Orders of the best stages in which some microbatches recompute, better with every step."""

    name = DECISION.part

    def __init__(self, run: SearchState, search: JointSearch) -> None:
        self.run, self.search = run, search
        self.known: dict[tuple[Stage, ...], _Ordered | None] = {}
        """By stages as they recompute where they do; None where nothing is to be hoped for."""
        self.step, self.second_work = 0, float(_COUNTED_WORK)
        """Steps so far, and the work of a second."""

    @property
    def is_open(self) -> bool:
        """Whether the options leave it open, the makespan is minimised, and plans are small enough."""
        options, is_small = self.run.problem.options, self.run.num_actions <= _MOST_ACTIONS
        return options.recompute_microbatches and options.objective == "makespan" and is_small

    def is_due(self, rounds: int) -> bool:
        """Where it is open: as often as its part of the time allows, and always where nothing but orders is open."""
        run = self.run
        if not self.is_open or run.instance.given_groups is not None:
            return self.is_open
        if run.limits.max_rounds is not None:
            return rounds % _EVERY_ROUNDS == 1
        return run.window.seconds.get(self.name, 0.0) <= _TIME_SHARE * run.elapsed_s

    def begin(self, given: Candidate | None) -> Iterator[None]:
        """A step, where partition and mapping are given and the joint search has orders."""
        del given
        if self.run.instance.given_groups is not None and self.search.pool:
            yield from self.take_step()

    def take_step(self) -> Iterator[None]:
        """Anneal the orders of some stages; what is better is proposed."""
        self.run.make_ready("microbatch-orders")
        for _ in range(1 if self.run.instance.given_groups is None else _STEPS_WHERE_GIVEN):
            self.run.window.make_room(1)
            self.step += 1
            self._start(self._choose())
            yield

    def _start(self, chosen: _Ordered | None) -> None:
        """Start a step from one of the best orders of these stages: CP-SAT's, or annealing."""
        if chosen is None:
            return
        number = chosen.steps
        start = chosen.pool[number // 2 % len(chosen.pool) if number % 2 else 0]
        chosen.steps += 1
        if chosen.starts:
            self._start_programs(chosen)
        elif chosen.beams and number % _BEAMS_EVERY == 1 and chosen.width <= self._most_width():
            self._start_beams(chosen)
        elif chosen.search.num_actions <= _EXACT_ACTIONS and not chosen.is_exact and number > 1:
            chosen.is_exact = True
            self._start_cp_sat(chosen)
        else:
            self._start_annealing(chosen, start, temperature=_TEMPERATURES[number // 2 % len(_TEMPERATURES)])

    def _most_width(self) -> int:
        """Of beams; where rounds are counted, of the first ones."""
        return _MOST_WIDTH if self.run.limits.max_rounds is None else _BEAM_WIDTH

    def _start_beams(self, chosen: _Ordered) -> None:
        """Search beams, each time wider."""
        width, seed = chosen.width, (self.run.limits.seed * 1_000_003 + self.step) % 2**31
        chosen.width *= 4
        most_s = _BEAMS_SHARE * self.run.limits.time_limit_s

        def search() -> RecomputedOrders:
            best, has_time = chosen.pool[0].end, self._until(most_s)
            found = list[RecomputedOrders]()
            for beams in chosen.beams:
                for number, each in enumerate(beams.search_all(width=width, seed=seed, has_time=has_time)):
                    found += [each] if each.end < best else []
                    if number + 1 == _HOPEFUL and not found:
                        break
            chosen.starts = sorted(found, key=lambda each: each.end)[:_KEPT]
            return min([*chosen.starts, *chosen.pool], key=lambda each: each.end)

        self.run.window.start([search], partial(self._take_in, chosen=chosen), expected_s=most_s)

    def _start_annealing(self, chosen: _Ordered, start: RecomputedOrders, *, temperature: float) -> None:
        work = chosen.work
        self.run.window.start(
            [partial(self._anneal, chosen, start, work=work, temperature=temperature, number=self.step)],
            partial(self._take_in, chosen=chosen, work=work),
            expected_s=work / self.second_work,
        )
        chosen.work = self._work(2 * work)

    def _start_programs(self, chosen: _Ordered) -> None:
        """Have HiGHS say what recomputes in the starts."""
        starts, chosen.starts = chosen.starts, []
        most_s = _PROGRAMS_SHARE * self.run.limits.time_limit_s

        def solve() -> RecomputedOrders:
            effort = ProgramEffort(most_nodes=_MOST_NODES, has_time=self._until(most_s))
            chosen.keep(choose_recomputed(chosen.search, starts, effort=effort))
            return chosen.pool[0]

        self.run.window.start([solve], partial(self._take_in, chosen=chosen), expected_s=most_s)

    def _start_cp_sat(self, chosen: _Ordered) -> None:
        """Have CP-SAT look for better orders, or say that there are none."""
        run, number, start = self.run, self.step, chosen.pool[0]
        is_counted = run.limits.max_rounds is not None
        limit_s = run.seconds_left * (1 if is_counted else _EXACT_SHARE)

        def solve() -> RecomputedOrders:
            # takes a second to import, and most problems never need it
            from solver_models.recomputation.cp_sat_recomputation import solve_orders
            from solver_models.schedule.effort import SolveEffort

            effort = SolveEffort(
                time_limit_s=max(0.1, limit_s),
                deterministic_limit=_EXACT_WORK if is_counted else None,
                seed=(run.limits.seed * 1_000_003 + number) % 2**31,
                should_stop=run.should_stop,
            )
            found, chosen.is_closed = solve_orders(chosen.search, start, effort=effort)
            return found

        run.window.start([solve], partial(self._take_in, chosen=chosen), expected_s=limit_s)

    def _work(self, most: int) -> int:
        """Of a step: at most so much, and no more than there is time for."""
        if self.run.limits.max_rounds is not None:
            return _COUNTED_WORK
        in_time = int(_MOST_SHARE * self.run.limits.time_limit_s * self.second_work)
        return min(most, _MOST_WORK, max(_COUNTED_WORK, in_time))

    def _choose(self) -> _Ordered | None:
        """Stages to be ordered: mostly those with the best orders, otherwise those with the fewest steps."""
        for stages, orders in self._candidates():
            self._note(stages, orders)
        open_ones = [each for each in self.known.values() if each is not None and each.pool and not each.is_closed]
        if not open_ones:
            return None
        if self.step % (_PATIENCE + 1):
            return min(open_ones, key=lambda each: each.pool[0].end)
        return min(open_ones, key=lambda each: each.steps)

    def _candidates(self) -> Iterator[tuple[tuple[Stage, ...], Orders | None]]:
        """Stages of the incumbent and of the joint search, with their orders where they are new."""
        plan, searcher = self.run.plan, self.search.searcher
        if plan is not None and not plan.dealing:
            yield plan.stages, make_orders(self.run.problem, plan)
        for candidate in (*self.search.polished[:1], *self.search.pool[:_JOINT_STARTS]):
            if candidate.is_feasible:
                stages = stages_of(self.run.problem, candidate)
                yield stages, None if _key(stages) in self.known else searcher.device_orders(candidate)[0]

    def _note(self, stages: tuple[Stage, ...], orders: Orders | None) -> None:
        key = _key(stages)
        if key not in self.known:
            self.known[key] = self._begin(key)
        ordered = self.known[key]
        if ordered is not None and orders is not None:
            forced = [stage.recompute_microbatches for stage in stages]
            found = ordered.search.of_orders(orders, forced)
            ordered.keep([] if found is None else [found])

    def _begin(self, stages: tuple[Stage, ...]) -> _Ordered | None:
        """Stages that are new, with their list schedules; None where their orders cannot be searched, or are closed."""
        run, best = self.run, self.run.incumbent_ns
        if overlap_anywhere(stages) or any(stage.is_split or stage.samples for stage in stages):
            return None
        if best is not None and schedule_bound(run.problem, stages, costs=run.costs) >= best:
            return None
        kept, all_of_them = (
            make_schedule_instance(run.problem, tuple(map(made, stages)), costs=run.costs)
            for made in (lambda stage: replace(stage, recompute=False), lambda stage: stage)
        )
        if not _memory_binds(kept):
            return None
        search = MicrobatchRecomputation(kept, all_of_them)
        kinds = [search.greedy(), *map(search.alternating, _LATENESS)]
        starts = [min(found, key=lambda each: each.end) for found in map(list, kinds) if found]
        beams, work = make_beams(search), self._work(_FIRST_WORK)
        found = _Ordered(stages=stages, search=search, work=work, starts=starts, beams=beams)
        found.keep(starts)
        return found

    def _anneal(
        self, chosen: _Ordered, start: RecomputedOrders, *, work: int, temperature: float, number: int
    ) -> RecomputedOrders:
        iterations = max(1, work // chosen.search.num_actions)
        seed = (self.run.limits.seed * 1_000_003 + number) % 2**31
        return chosen.search.anneal(
            start, iterations=iterations, seed=seed, temperature=temperature, has_time=self._has_time
        )

    def _has_time(self) -> bool:
        """Whether a step may continue; where rounds are counted it ends by itself."""
        run = self.run
        return not run.should_stop() and (run.limits.max_rounds is not None or run.seconds_left > 0)

    def _until(self, most_s: float) -> Callable[[], bool]:
        """Whether a step that has so many seconds may continue; where rounds are counted it ends by itself."""
        deadline = time.monotonic() + (math.inf if self.run.limits.max_rounds is not None else most_s)
        return lambda: time.monotonic() < deadline and self._has_time()

    def _take_in(self, found: RecomputedOrders, seconds: float, *, chosen: _Ordered, work: int = 0) -> None:
        if work:
            self.second_work = work / max(seconds, 1e-3)
        chosen.keep([found])
        best = self.run.incumbent_ns
        if best is not None and found.end >= best:
            return
        device_orders = chosen.search.device_orders(found)
        stages = tuple(
            _recomputing(stage, row) for stage, row in zip(chosen.stages, found.recomputed.tolist(), strict=True)
        )
        self.run.propose(make_plan_from_orders(self.run.problem, stages, device_orders=device_orders), source=self.name)


make_improver = MicrobatchRecomputeImprover


def _key(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The stages as they recompute where they do: all layers, unless they say which."""
    return tuple(replace(stage, recompute=stage.recompute or True, recompute_microbatches=()) for stage in stages)


def _memory_binds(kept: ScheduleInstance) -> bool:
    """Whether a device lacks room for two microbatches per device in all of its stages, if everything is kept."""
    held = [0] * len(kept.devices)
    for replica in kept.replicas:
        held[replica.device] += replica.held
    most = min(kept.num_microbatches, 2 * len(kept.devices))
    return any(most * each > device.memory for each, device in zip(held, kept.devices, strict=True))


def _recomputing(stage: Stage, flags: list[bool]) -> Stage:
    """The stage with the microbatches that recompute."""
    listed = tuple(number for number, flag in enumerate(flags) if flag)
    if not listed:
        return replace(stage, recompute=False)
    return stage if len(listed) == len(flags) else replace(stage, recompute_microbatches=listed)

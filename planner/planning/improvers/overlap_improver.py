"""Plans whose groups overlap: layouts first, then orders that repeat, and CP-SAT where there are few actions.

The kernels of the joint search hold a group as one device, so these plans have a search of their own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from planner.evidence.certificate import schedule_bound
from planner.layout.costs import CostModel
from planner.lowering import make_instance, make_plan_from_orders, make_schedule_instance
from planner.plan import Stage
from planner.planning.improvers.cp_sat_orders import start_orders
from planner.planning.improvers.improver import Improver
from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import stages_of
from planner.planning.starts.overlapping_layouts import (
    OverlappingLayouts,
    given_stages,
    narrow_problem,
    needs_overlaps,
)
from solver_models.instance import ScheduleInstance
from solver_models.local_search.multistart import JointSearch
from solver_models.schedule.periodic_orders import PeriodicOrder, PeriodicSearch
from solver_models.starts.first_candidates import make_seeds

_EVERY_ROUNDS = 2
"""Rounds of the joint search between two of this one."""
_LAYOUT_SHARE = 0.3
"""Part of the time left after which no further layout is tried."""
_KEPT = 6
"""Layouts whose orders are searched, those with the best first orders."""
_ALIGNMENTS = 4
"""In how many ways wide stages are put beside a layout."""
_BASE_ROUNDS = 3
"""Rounds of the joint search on the layers that single devices can run."""
_BASES = 12
"""How many layouts of the joint search wide stages are put beside."""
_FIRST_PERIODS = (0, 25, 50, 75, 100, 110, 125, 150, 200, 300, 400, 600, 800)
"""Times from one microbatch to the next that are tried first, in percent of what the busiest device needs for one."""
_SOLVER_EVERY_ROUNDS = 4
"""Rounds after which a layout is given to CP-SAT, each layout once."""
_MAX_SOLVER_ACTIONS = 600
"""The largest number of actions that CP-SAT is given."""
_ROUND_ACTIONS = 30_000
"""Actions that a round plays in all."""
_SOLVER_LIMIT_S = 20.0
"""Seconds for one layout, where rounds are not counted."""
_SOLVER_WORK = 20.0
"""CP-SAT's deterministic limit."""


@dataclass(slots=True, kw_only=True)
class _Layout:
    """Stages on their devices, and what is known of their orders."""

    stages: tuple[Stage, ...]
    search: PeriodicSearch
    order: PeriodicOrder
    """The best that repeats."""
    is_given_to_solver: bool = False

    @property
    def instance(self) -> ScheduleInstance:
        """The ordering problem."""
        return self.search.instance

    @property
    def num_actions(self) -> int:
        """How many actions a plan has, those of a group counted once."""
        return 3 * self.instance.num_microbatches * len(self.instance.replicas)


class OverlapImprover(Improver):
    """Rounds on the best layouts whose groups overlap, one layout after the other."""

    name = "overlapping groups"

    def __init__(self, run: SearchState) -> None:
        self.run = run
        self.is_open = needs_overlaps(run.problem) and not run.fits_stages
        self.layouts: list[_Layout] = []
        """The best first."""
        self.rounds = 0
        self.round_s = 0.0
        """Seconds of the last task that was taken in."""

    def is_due(self, rounds: int) -> bool:
        """Once in a while, where another search sets the pace."""
        return bool(self.layouts) and rounds % _EVERY_ROUNDS == 0

    def begin(self) -> Iterator[None]:
        """Find layouts, and a first order of each; the best are kept."""
        run, has_time, found = self.run, self.run.time_until(_LAYOUT_SHARE), list[_Layout]()
        for stages in self._all_stages():
            layout = self._made(stages)
            if layout is not None:
                found.append(layout)
                run.propose(
                    make_plan_from_orders(run.problem, stages, device_orders=layout.order.device_orders),
                    source=self.name,
                )
            yield
            if found and not has_time():
                break
        found.sort(key=lambda layout: layout.order.objective)
        self.layouts = found[:_KEPT]

    def _all_stages(self) -> Iterator[tuple[Stage, ...]]:
        run = self.run
        if run.problem.options.placement is not None:
            yield given_stages(run.problem)
            return
        known, bases = set[tuple[Stage, ...]](), set[tuple[Stage, ...]]()
        layouts = OverlappingLayouts(run.problem)
        for base in self._bases(layouts):
            if base in bases:
                continue
            bases.add(base)
            for stages in layouts.around(base, most=_ALIGNMENTS, seed=run.limits.seed):
                if stages not in known:
                    known.add(stages)
                    yield stages

    def _bases(self, layouts: OverlappingLayouts) -> Iterator[tuple[Stage, ...]]:
        """Stages of the other layers, as the joint search lays them out; none where there are no other layers."""
        run = self.run
        problem = narrow_problem(run.problem, layouts.units)
        if problem is None:
            yield ()
            return
        instance = make_instance(problem, CostModel(problem))
        search = JointSearch(instance, seed=run.limits.seed, window=run.window, params=run.params)
        search.add(make_seeds(search.searcher))
        for rounds in range(1 + _BASE_ROUNDS if search.pool else 0):
            if rounds and run.has_time_for_round(search.round_s):
                search.run_round()
            run.window.drain()
            for candidate in islice(search.pool, _BASES):
                yield stages_of(problem, candidate)

    def _made(self, stages: tuple[Stage, ...]) -> _Layout | None:
        """A layout with the first order that fits; with recomputation where none does without."""
        run = self.run
        for recompute in (False, True) if run.problem.options.recompute else (False,):
            chosen = tuple(replace(stage, recompute=True) for stage in stages) if recompute else stages
            search = PeriodicSearch(make_schedule_instance(run.problem, chosen, costs=run.costs))
            order = search.begin(_FIRST_PERIODS)
            if order is not None:
                return _Layout(stages=chosen, search=search, order=order)
        return None

    def take_step(self) -> Iterator[None]:
        """Start the next round: CP-SAT on a layout that it has not seen, if one is small enough, or moves."""
        self.run.window.make_room(1)
        self.rounds += 1
        self.layouts.sort(key=lambda layout: layout.order.objective)
        unseen = [each for each in self.layouts if not each.is_given_to_solver and self._is_small(each)]
        if unseen and self.rounds % _SOLVER_EVERY_ROUNDS == 0:
            self._solve(unseen[0])
        elif self.layouts:
            self._move(self.layouts[(self.rounds - 1) % len(self.layouts)])
        yield

    def _is_small(self, layout: _Layout) -> bool:
        return layout.num_actions <= _MAX_SOLVER_ACTIONS

    def _move(self, layout: _Layout) -> None:
        tries = max(1, _ROUND_ACTIONS // layout.num_actions)
        seed, order = self.run.limits.seed * 1_000_003 + self.rounds, layout.order

        def improve() -> PeriodicOrder:
            return layout.search.improve(order, tries=tries, seed=seed)

        def take(found: PeriodicOrder, seconds: float) -> None:
            self.round_s = seconds
            if found.objective <= layout.order.objective:
                layout.order = found
                self._propose(layout, device_orders=found.device_orders)

        self.run.window.start([improve], take, expected_s=self.round_s)

    def _solve(self, layout: _Layout) -> None:
        """Have CP-SAT look for an order better than the incumbent."""
        run, below = self.run, self.run.incumbent_ns
        layout.is_given_to_solver = True
        if below is not None and schedule_bound(run.problem, layout.stages, costs=run.costs) >= below:
            return
        hint, most_s = layout.order.device_orders, min(_SOLVER_LIMIT_S, 0.5 * run.seconds_left)
        start_orders(run, layout.stages, hint=hint, source=self.name, work=_SOLVER_WORK, most_s=most_s)

    def _propose(self, layout: _Layout, *, device_orders: dict[int, list[tuple[int, int, int]]]) -> None:
        plan = make_plan_from_orders(self.run.problem, layout.stages, device_orders=device_orders)
        self.run.propose(plan, source=self.name)

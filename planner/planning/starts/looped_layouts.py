"""Layouts for programs that run stages in a loop with 1F1B, interleaved or not: how many chunks, and where to cut.

The order of such programs is fixed, so that only the width of all groups, the number of replicas of the whole pipeline,
the chunks per rank, recomputation and the cuts are open. Each combination but for the cuts is a shape
(`planner.planning.starts.looped_shapes`); cuts are annealed shape by shape on the exact order
(`solver_models.starts.looped_construction`), the better a shape the more often.
"""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy

from planner.export.looped_pipelines import as_looped
from planner.plan import Plan, Stage
from planner.planning.planning_params import LoopedParams
from planner.planning.search_state import SearchState
from planner.planning.starts.looped_shapes import LoopedShapes, Shape, proportional_cut
from solver_models.instance import Integers
from solver_models.moves.annealing import Cooling
from solver_models.starts.looped_construction import anneal_cut

_STALE_STEPS = 120
"""Anneals without a better cut after which the search ends."""
_ROUND_STEPS = 2
"""Anneals of a shape for one round of a limit on rounds."""
_RANK_WEIGHT = 0.7
"""How likely each next shape is to be annealed, relative to the one before."""
_MAX_STEPS = 20_000
"""Steps of an anneal, at most."""
_MIN_STEPS = 200
"""Steps of an anneal, at least, whatever their work."""
_TEMPERATURES = (0.0003, 0.001, 0.003, 0.0001)
"""First temperatures of anneals, as parts of the objective; they take turns and fall to a twentieth."""


class LoopedSearch:
    """All shapes of a problem, better with every round."""

    def __init__(self, run: SearchState) -> None:
        self.run, self.problem, self.costs, self.params = run, run.problem, run.costs, run.params.looped
        self.rng = numpy.random.default_rng(run.limits.seed)
        self.shapes = self._shapes()
        self.best: int | None = None
        self.stale, self.turn_s = 0, 0.0
        """The best value of any shape, anneals since it was found, and seconds of the last one that was taken in."""

    def _shapes(self) -> list[Shape]:
        """Those of the problem; none, with the reason, where cuts alone are not what is open."""
        options = self.problem.options
        if options.objective != "makespan" or options.partition is not None or options.pinned:
            self.run.dropped.note("layouts in a loop are searched for the makespan alone, without partition and pins")
            return []
        shapes = LoopedShapes(self.problem, self.costs).make()
        if not shapes:
            size = self.problem.profile.microbatch_size
            self.run.dropped.note(
                f"no loop has {len(self.problem.profile.layers)} layers on {len(self.problem.cluster.devices)} devices "
                f"with replicas that take equal parts of microbatch_size = {size} and were measured"
            )
        return shapes

    def plans(self, *, share: float) -> Iterator[Plan]:
        """Ever better plans, until no shape has got better for a while or a part of the time limit is over."""
        window, best, self.stale = self.run.window, self.best, 0
        stale_turns = max(_STALE_STEPS, len(self.shapes))
        most_steps = self.num_steps + _ROUND_STEPS * len(self.shapes) * (self.run.limits.max_rounds or 0)
        while self.shapes and self.stale < stale_turns and self._has_time(share=share, most_steps=most_steps):
            window.make_room(1)
            if self._are_all_busy:
                window.drain()
            if self._are_all_busy:  # there was no time left for what was under way
                break
            self._start(self._choose())
            if _is_less(self.best, best):
                best = self.best
                yield self.plan_of(min(self.shapes, key=_objective))
        window.drain()
        if _is_less(self.best, best):
            yield self.plan_of(min(self.shapes, key=_objective))

    def _start(self, shape: Shape) -> None:
        """Anneal the cut of a shape."""

        def take(found: tuple[int | None, Integers], seconds: float) -> None:
            shape.is_busy, self.turn_s, self.stale = False, seconds, self.stale + 1
            if found[0] is None and shape.value is None:
                self.run.dropped.add(f"{shape.describe()}: no cut was found that fits into memory")
            value = None if found[0] is None else found[0] + self._closing(shape, found[1])
            if _is_less(value, shape.value):
                shape.value, shape.cut = value, found[1]
            if _is_less(shape.value, self.best):
                self.best, self.stale = shape.value, 0

        seed = int(self.rng.integers(1 << 31))
        anneal_it = partial(anneal, shape, cut=shape.cut, step=shape.steps, seed=seed, params=self.params)
        self.run.window.start([anneal_it], take, expected_s=self.turn_s)
        shape.steps, shape.is_busy = shape.steps + 1, True

    def plan_of(self, shape: Shape) -> Plan:
        """The plan of the best cut of a shape."""
        stages = self._stages(shape, shape.cut)
        plan = Plan(problem=self.problem.reference(), stages=stages, schedule={})
        return as_looped(self.problem, plan, has_widths=True)

    def _stages(self, shape: Shape, cut: Integers) -> tuple[Stage, ...]:
        names = self.problem.profile.topological_order
        bounds = enumerate(pairwise(cut.tolist()))
        return tuple(shape.stage(number, names[begin:end]) for number, (begin, end) in bounds)

    def _closing(self, shape: Shape, cut: Integers) -> int:
        """What the optimizer takes after the last synchronisation, where shapes differ in how it does."""
        differs = self.problem.may_shard or self.problem.options.max_width > 1
        return self.costs.optimizer_ns(self._stages(shape, cut)) if differs else 0

    @property
    def _are_all_busy(self) -> bool:
        return all(shape.is_busy for shape in self.shapes)

    @property
    def num_steps(self) -> int:
        """Anneals so far."""
        return sum(shape.steps for shape in self.shapes)

    def _has_time(self, *, share: float, most_steps: int) -> bool:
        if self.run.should_stop() or (self.run.gap is not None and self.run.gap <= self.run.limits.gap):
            return False
        if self.run.limits.max_rounds is not None:
            return self.num_steps < most_steps
        return self.run.elapsed_s + self.turn_s < share * self.run.limits.time_limit_s

    def _choose(self) -> Shape:
        """One that had no step yet, or only one in vain; then a good one, the better the likelier; none under way."""
        free = [shape for shape in self.shapes if not shape.is_busy]
        fresh = [shape for shape in free if shape.steps < (1 if shape.value is not None else 2)]
        if fresh:
            return fresh[0]
        ranked = sorted(free, key=_objective)
        weights = _RANK_WEIGHT ** numpy.arange(len(ranked))
        return ranked[int(self.rng.choice(len(ranked), p=weights / weights.sum()))]


def _is_less(found: int | None, best: int | None) -> bool:
    """Whether a makespan is less than the best one so far; None stands for none at all."""
    return found is not None and (best is None or found < best)


def _objective(shape: Shape) -> tuple[bool, int]:
    """Shapes with a cut that fits come first, the least makespan before all."""
    return shape.value is None, shape.value or 0


def anneal(shape: Shape, *, cut: Integers, step: int, seed: int, params: LoopedParams) -> tuple[int | None, Integers]:
    """The best cut of one anneal and its makespan, if it fits: from the best known one, now and then an even one."""
    cut = cut.copy()
    if step % 4 == 1:
        stages, size = len(cut) - 1, shape.loop.times.shape[2] - 1
        cut = numpy.array([size * number // stages for number in range(stages + 1)], dtype=numpy.int64)
    elif step % 4 == 3:
        cut = proportional_cut(shape.loop, len(cut) - 1)
    actions = 2 * (len(cut) - 1) * shape.loop.microbatches
    work = min(params.first_actions * (1 + step), params.most_actions)
    iterations = min(_MAX_STEPS, max(_MIN_STEPS, work // actions))
    temperature = _TEMPERATURES[step % len(_TEMPERATURES)]
    cooling = Cooling(steps=iterations, first=temperature, last=temperature / 20, seed=seed)
    missing, value = anneal_cut(shape.loop, cut, len(shape.ranks), cooling)
    return None if missing else int(value), cut

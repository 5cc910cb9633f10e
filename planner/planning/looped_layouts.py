"""Layouts for programs that run stages in a loop with 1F1B, interleaved or not: how many chunks, and where to cut.

The order of such programs is fixed, so that only the number of replicas of the whole pipeline, the chunks per rank,
recomputation and the cuts are open. Each of their combinations is a shape; cuts are annealed shape by shape on the
exact order (`solver_models.looped_construction`), the better a shape the more often.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product

import numpy

from planner.baselines.partitions import crossing_bytes
from planner.costs import LayerWork
from planner.export.looped_pipelines import as_looped
from planner.plan import SHARDS, Plan, Shard, Stage
from planner.planning.planning_params import LoopedParams
from planner.planning.search_state import SearchState
from planner.problem import ShardChoice
from solver_models.annealing import Cooling
from solver_models.instance import Integers
from solver_models.looped_construction import Loop, anneal_cut


@dataclass(slots=True)
class Shape:
    """Everything but the cuts, and the best of those."""

    replicas: int
    """Of the whole pipeline."""
    chunks: int
    """Stages per rank."""
    recompute: bool
    """In all stages or in none."""
    shard: Shard
    """What all stages shard over their replicas."""
    ranks: tuple[tuple[str, ...], ...]
    """Devices of every rank."""
    loop: Loop
    """In integers."""
    cut: Integers
    """Bounds of the best stages so far."""
    value: int | None = None
    """Their makespan, where nothing shards without the optimizer; None if none that was found fits."""
    turns: int = 0
    """Anneals that were started."""
    is_busy: bool = False
    """Whether one of them has not been taken in yet."""


class LoopedSearch:
    """All shapes of a problem, better with every round."""

    def __init__(self, run: SearchState) -> None:
        self.run, self.problem, self.costs, self.params = run, run.problem, run.costs, run.params.looped
        self.layers = [self.problem.profile.by_name[name] for name in self.problem.profile.topological_order]
        self.rng = numpy.random.default_rng(run.limits.seed)
        self.shapes = list(self._shapes())
        self.best: int | None = None
        self.stale, self.turn_s = 0, 0.0
        """The best value of any shape, anneals since it was found, and seconds of the last one that was taken in."""

    def plans(self, *, share: float) -> Iterator[Plan]:
        """Ever better plans, until no shape has got better for a while or a part of the time limit is over."""
        window, best, self.stale = self.run.window, self.best, 0
        stale_turns = self.params.stale_turns
        most_turns = self.num_turns + self.params.round_turns * len(self.shapes) * (self.run.limits.max_rounds or 0)
        while self.shapes and self.stale < stale_turns and self._has_time(share=share, most_turns=most_turns):
            window.make_room(1)
            if all(shape.is_busy for shape in self.shapes):
                window.drain()
            self._start(self._choose())
            if is_less(self.best, best):
                best = self.best
                yield self.plan_of(min(self.shapes, key=_worth))
        window.drain()
        if is_less(self.best, best):
            yield self.plan_of(min(self.shapes, key=_worth))

    def _start(self, shape: Shape) -> None:
        """Anneal the cut of a shape."""

        def take(found: tuple[int | None, Integers], seconds: float) -> None:
            shape.is_busy, self.turn_s, self.stale = False, seconds, self.stale + 1
            value = None if found[0] is None else found[0] + self._closing(shape, found[1])
            if is_less(value, shape.value):
                shape.value, shape.cut = value, found[1]
            if is_less(shape.value, self.best):
                self.best, self.stale = shape.value, 0

        seed = int(self.rng.integers(1 << 31))
        anneal_it = partial(anneal, shape, cut=shape.cut, turn=shape.turns, seed=seed, params=self.params)
        self.run.window.start([anneal_it], take, expected_s=self.turn_s)
        shape.turns, shape.is_busy = shape.turns + 1, True

    def plan_of(self, shape: Shape) -> Plan:
        """The plan of the best cut of a shape."""
        stages = self._stages(shape, shape.cut)
        return as_looped(self.problem, Plan(problem=self.problem.reference(), stages=stages, schedule={}))

    def _stages(self, shape: Shape, cut: Integers) -> tuple[Stage, ...]:
        names = [layer.name for layer in self.layers]
        return tuple(
            Stage(
                layers=tuple(names[begin:end]),
                replicas=tuple((device,) for device in shape.ranks[number % len(shape.ranks)]),
                recompute=shape.recompute,
                shard=shape.shard,
            )
            for number, (begin, end) in enumerate(pairwise(cut.tolist()))
        )

    def _closing(self, shape: Shape, cut: Integers) -> int:
        """What the optimizer takes after the last synchronisation, where shapes differ in how it does."""
        return self.costs.optimizer_ns(self._stages(shape, cut)) if self.problem.may_shard else 0

    @property
    def num_turns(self) -> int:
        """Anneals so far."""
        return sum(shape.turns for shape in self.shapes)

    def _has_time(self, *, share: float, most_turns: int) -> bool:
        if self.run.should_stop() or (self.run.gap is not None and self.run.gap <= self.run.limits.gap):
            return False
        if self.run.limits.max_rounds is not None:
            return self.num_turns < most_turns
        return self.run.elapsed_s + self.turn_s < share * self.run.limits.time_limit_s

    def _choose(self) -> Shape:
        """One that had no turn yet; then a good one, the better the likelier; none that is being annealed."""
        free = [shape for shape in self.shapes if not shape.is_busy]
        fresh = [shape for shape in free if not shape.turns]
        if fresh:
            return fresh[0]
        ranked = sorted(free, key=_worth)
        weights = self.params.rank_weight ** numpy.arange(len(ranked))
        return ranked[int(self.rng.choice(len(ranked), p=weights / weights.sum()))]

    def _shapes(self) -> Iterator[Shape]:
        """Every number of replicas that the devices and the samples allow, with every number of chunks."""
        problem, options = self.problem, self.problem.options
        if options.objective != "makespan" or options.partition is not None or options.pinned:
            return
        devices = [device.name for device in problem.cluster.devices]
        for replicas in problem.allowed_replicas:
            if len(devices) % replicas:
                continue
            num_ranks = len(devices) // replicas
            ranks = tuple(tuple(devices[k * replicas : (k + 1) * replicas]) for k in range(num_ranks))
            flags = (False, True) if options.recompute else (False,)
            for recompute, shard in product(flags, _shards(options.shard_optimizer, replicas)):
                loop = self._loop(ranks, recompute=recompute, shard=shard)
                if loop is not None:
                    yield from self._shapes_of(ranks, loop, recompute=recompute, shard=shard)

    def _shapes_of(
        self, ranks: tuple[tuple[str, ...], ...], loop: Loop, *, recompute: bool, shard: Shard
    ) -> Iterator[Shape]:
        count, size = self.problem.num_microbatches, len(self.layers)
        for chunks in range(1, min(self.problem.options.max_stages_per_device, size // len(ranks)) + 1):
            stages = chunks * len(ranks)
            if (chunks > 1 and count % len(ranks)) or 2 * stages * count > self.params.max_shape_actions:
                continue
            if chunks > 1 and len(ranks) == 1:
                continue
            yield Shape(
                replicas=len(ranks[0]), chunks=chunks, recompute=recompute, shard=shard, ranks=ranks, loop=loop,
                cut=proportional_cut(loop, stages),
            )  # fmt: skip

    def _loop(self, ranks: tuple[tuple[str, ...], ...], *, recompute: bool, shard: Shard) -> Loop | None:
        """The layers as sums over the first of them; None if some have no costs there."""
        replicas = len(ranks[0])
        rows = [self._works(rank) for rank in ranks]
        if any(work is None for row in rows for work in row):
            return None
        works = [[work for work in row if work is not None] for row in rows]
        forward = [[_share(work.forward_ns, replicas) for work in row] for row in works]
        extra = [[work.recompute_ns if recompute else 0 for work in row] for row in works]
        backward = [
            [_share(work.backward_ns + more, replicas) for work, more in zip(row, extras, strict=True)]
            for row, extras in zip(works, extra, strict=True)
        ]
        layers, size = self.layers, len(self.layers)
        held = [_share(layer.checkpoint_bytes if recompute else layer.stash_bytes, replicas) for layer in layers]
        stash = [_share(layer.stash_bytes, replicas) for layer in layers]
        beside = [most - least for most, least in zip(stash, held, strict=True)]
        sharers = replicas if shard == "optimizer" else 1
        shared = [(layer.state_bytes, layer.shardable_bytes_at(1)) for layer in layers]
        state = [whole - part + _share(part, sharers) for whole, part in shared]
        crossing = crossing_bytes(self.problem.profile).astype(numpy.int64)
        workspace = max(layer.workspace_bytes for layer in layers)
        memory = self.problem.cluster.by_name
        return Loop(
            times=numpy.stack(
                [_sums(forward), _sums(backward), _sums([self._synchronisation(rank, shard) for rank in ranks])]
            ),
            sizes=_sums([held, state, beside]),
            crossing=numpy.stack([self._delays(ranks, crossing), self._delays(ranks, crossing, is_backward=True)]),
            buffers=self.problem.options.receive_buffers * -(-crossing[: size + 1] // replicas),
            budget=numpy.array([min(memory[d].usable_bytes for d in rank) - workspace for rank in ranks], numpy.int64),
            microbatches=self.problem.num_microbatches,
        )

    def _works(self, rank: tuple[str, ...]) -> list[LayerWork | None]:
        """Per layer, the work on the slowest device of a rank."""
        types = {self.problem.cluster.by_name[device].type for device in rank}
        found: list[LayerWork | None] = []
        for layer in self.layers:
            works = [self.costs.layer_work(layer.name, kind, width=1, replicas=len(rank)) for kind in sorted(types)]
            known = [work for work in works if work is not None]
            is_known = len(known) == len(works)
            found.append(max(known, key=lambda work: work.forward_ns + work.backward_ns) if is_known else None)
        return found

    def _synchronisation(self, rank: tuple[str, ...], shard: Shard) -> list[int]:
        """Per layer, what it adds to the all-reduce, or the reduce-scatter, of its stage."""
        if len(rank) == 1:
            return [0] * len(self.layers)
        replicas = tuple((device,) for device in rank)
        alone = (Stage(layers=(layer.name,), replicas=replicas, shard=shard) for layer in self.layers)
        return [self.costs.synchronisation_ns(stage) for stage in alone]

    def _delays(self, ranks: tuple[tuple[str, ...], ...], crossing: Integers, *, is_backward: bool = False) -> Integers:
        """[ranks, boundaries] ticks to the next rank, or back from it."""
        table = numpy.zeros((len(ranks), len(crossing)), dtype=numpy.int64)
        for number, rank in enumerate(ranks):
            ends = rank[0], ranks[(number + 1) % len(ranks)][0]
            if ends[0] == ends[1]:
                continue
            source, target = ends[::-1] if is_backward else ends
            for boundary, size in enumerate(crossing.tolist()):
                share = -(-size // len(rank))
                table[number, boundary] = self.problem.cluster.route(source, target, num_bytes=share).duration_ns(share)
        return table


def is_less(found: int | None, best: int | None) -> bool:
    """Whether a makespan is less than the best one so far; None stands for none at all."""
    return found is not None and (best is None or found < best)


def _worth(shape: Shape) -> tuple[bool, int]:
    """Shapes with a cut that fits come first, the least makespan before all."""
    return shape.value is None, shape.value or 0


def anneal(shape: Shape, *, cut: Integers, turn: int, seed: int, params: LoopedParams) -> tuple[int | None, Integers]:
    """The best cut of one anneal and its makespan, if it fits: from the best known one, now and then an even one."""
    cut = cut.copy()
    if turn % 4 == 1:
        stages, size = len(cut) - 1, shape.loop.times.shape[2] - 1
        cut = numpy.array([size * number // stages for number in range(stages + 1)], dtype=numpy.int64)
    elif turn % 4 == 3:
        cut = proportional_cut(shape.loop, len(cut) - 1)
    actions = 2 * (len(cut) - 1) * shape.loop.microbatches
    work = min(params.first_actions * (1 + turn), params.most_actions)
    iterations = min(params.max_steps, max(params.min_steps, work // actions))
    heat = params.heats[turn % len(params.heats)]
    cooling = Cooling(steps=iterations, first=heat, last=heat / 20, seed=seed)
    missing, value = anneal_cut(shape.loop, cut, len(shape.ranks), cooling, False)
    return None if missing else int(value), cut


def proportional_cut(loop: Loop, stages: int) -> Integers:
    """Bounds closest to equal parts of the work, no stage empty."""
    work = (loop.times[0] + loop.times[1]).mean(axis=0)
    size = len(work) - 1
    goals = work[-1] * numpy.arange(stages + 1) / stages
    cut = numpy.clip(numpy.searchsorted(work, goals), 1, size)
    cut = numpy.where(goals - work[cut - 1] < work[cut] - goals, cut - 1, cut)
    cut[0], cut[-1] = 0, size
    for number in range(1, stages):
        cut[number] = max(cut[number], cut[number - 1] + 1)
    for number in range(stages - 1, 0, -1):
        cut[number] = min(cut[number], cut[number + 1] - 1)
    bounds: Integers = cut.astype(numpy.int64)
    return bounds


def _shards(choice: ShardChoice, replicas: int) -> tuple[Shard, ...]:
    """What stages with so many replicas may do with the optimizer's state."""
    if replicas == 1 or choice == "never":
        return ("none",)
    return ("optimizer",) if choice == "always" else SHARDS


def _share(value: int, replicas: int) -> int:
    return -(-value // replicas)


def _sums(rows: list[list[int]]) -> Integers:
    """Sums of the first 0, 1, 2 ... of every row."""
    table = numpy.array(rows, dtype=numpy.int64)
    return numpy.concatenate((numpy.zeros((len(rows), 1), numpy.int64), numpy.cumsum(table, axis=1)), axis=1)

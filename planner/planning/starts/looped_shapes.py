"""Shapes of pipelines in a loop: all that is decided about one but its cuts, and its layers as sums for the kernel.

A shape has one width of device groups for all stages, a number of replicas of the whole pipeline, chunks per rank, and
what all stages recompute and shard: what programs that run stages in a loop have one switch for.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product

import numpy

from planner.baselines.partitions import crossing_bytes
from planner.export.megatron import SELECTIVE
from planner.export.model_parts import is_block
from planner.layout.costs import CostModel, LayerWork, checkpoint_bytes
from planner.layout.device_groups import listed_blocks
from planner.plan import FULL_RECOMPUTATION, DeviceGroup, RecomputeMap, Shard, Stage
from planner.problem import Problem
from profiles.model_profile import Layer, WidthBytes
from solver_models.instance import Integers
from solver_models.starts.looped_construction import Loop, promise_cut

_MOST_SHAPES = 128
"""Shapes whose cuts are annealed, of more those whose equal parts of the work promise most."""
_MAX_SHAPE_ACTIONS = 4_000_000
"""Largest pipeline whose cuts are annealed."""

Ranks = tuple[tuple[DeviceGroup, ...], ...]
"""Per rank the groups that are its replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageRecomputation:
    """Recomputation that all stages have in common."""

    kind: str | None = None
    """Kind of recomputation; None: the stage keeps all activations."""
    blocks: int | None = None
    """So many of its first blocks; None: all of its layers."""

    def of(self, layers: tuple[str, ...]) -> bool | RecomputeMap:
        """As a stage with these layers states it."""
        if self.kind is None or self.blocks is None:
            return self.kind is not None
        return tuple((name, self.kind) for name in layers if is_block(name))[: self.blocks] or False

    def kind_of(self, layer: str) -> str | None:
        """By which kind a layer recomputes that is among those that do."""
        return self.kind if self.blocks is None or is_block(layer) else None


@dataclass(slots=True)
class Shape:
    """Everything but the cuts, and the best of those."""

    ranks: Ranks
    chunks: int
    """Stages per rank."""
    recomputation: _StageRecomputation
    shard: Shard
    """What all stages shard over their replicas."""
    loop: Loop
    """In integers."""
    cut: Integers
    """Bounds of the best stages so far."""
    value: int | None = None
    """Their makespan, and the optimizer's time where shapes differ in it; None if none that was found fits."""
    steps: int = 0
    """Anneals that were started."""
    is_busy: bool = False
    """Whether one of them has not been taken in yet."""

    def stage(self, number: int, layers: tuple[str, ...]) -> Stage:
        """A stage of a plan of this shape."""
        return Stage(
            layers=layers,
            replicas=self.ranks[number % len(self.ranks)],
            recompute=self.recomputation.of(layers),
            shard=self.shard,
        )

    def describe(self) -> str:
        """Stages, ranks, replicas and width in a phrase for progress lines."""
        replicas, width = len(self.ranks[0]), len(self.ranks[0][0])
        many = f"{self.chunks} stages" if self.chunks > 1 else "one stage"
        return f"{many} on each of {len(self.ranks)} ranks, {replicas} replicas of width {width}"


class LoopedShapes:
    """The shapes of a problem."""

    def __init__(self, problem: Problem, costs: CostModel) -> None:
        self.problem, self.costs = problem, costs
        self.layers = [problem.profile.by_name[name] for name in problem.profile.topological_order]
        self.crossing = crossing_bytes(problem.profile).astype(numpy.int64)
        self._delays = cache(self._make_delays)
        self._works = cache(self._find_works)

    def make(self) -> list[Shape]:
        """All of them on all devices; where there are none, on fewer; of too many those that promise most.

        Equal parts of the work may lack memory that other cuts leave, so some of those that lack least are kept as
        well. Of shapes that recompute more blocks than their stages have the first is kept.
        """
        shapes = list(self._shapes(leaves_idle=False))
        if not shapes and self.problem.options.idle_devices:
            shapes = list(self._shapes(leaves_idle=True))
        if len(shapes) <= _MOST_SHAPES:
            return shapes
        known: dict[tuple[object, ...], Shape] = {}
        for shape in shapes:
            key = (len(shape.ranks), len(shape.ranks[0]), len(shape.ranks[0][0]), shape.chunks, shape.shard)
            known.setdefault((*key, promise(shape)), shape)
        rated = sorted(((promise(shape), number, shape) for number, shape in enumerate(known.values())))
        fitting, lacking = ([each[-1] for each in rated if bool(each[0][0]) is lacks] for lacks in (False, True))
        places = [(float(number), shape) for number, shape in enumerate(fitting)]
        places += [(3 * number + 2.5, shape) for number, shape in enumerate(lacking)]
        return [shape for _, shape in sorted(places, key=lambda each: each[0])][:_MOST_SHAPES]

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """The widths at which every layer was measured on every type of device, ascending."""
        sizes = [
            set(self.problem.widths_of(layer, device_type))
            for layer in self.layers
            for device_type in self.problem.cluster.device_types
        ]
        return tuple(sorted(set.intersection(*sizes)))

    @cached_property
    def recomputations(self) -> tuple[_StageRecomputation, ...]:
        """Nothing and all layers; where layers are decided, the first 1, 2, 4 ... blocks, or all by another kind."""
        options, blocks = self.problem.options, [layer for layer in self.layers if is_block(layer.name)]
        found = [_StageRecomputation()]
        if options.recompute and not options.recompute_layers:
            found.append(_StageRecomputation(kind=FULL_RECOMPUTATION))
        if options.recompute_layers and blocks:
            counts = [1 << power for power in range(len(blocks).bit_length()) if 1 << power < len(blocks)]
            found += [_StageRecomputation(kind=FULL_RECOMPUTATION, blocks=count) for count in (*counts, len(blocks))]
            if all(SELECTIVE in {entry.kind for entry in layer.recompute_kinds} for layer in blocks):
                found.append(_StageRecomputation(kind=SELECTIVE, blocks=len(blocks)))
        return tuple(found)

    def _shapes(self, *, leaves_idle: bool) -> Iterator[Shape]:
        """Every width and number of replicas that devices and samples allow, with every number of chunks."""
        problem, options = self.problem, self.problem.options
        for width, replicas in product(self.widths, problem.allowed_replicas):
            groups = self._groups(width)
            num_ranks = min(len(groups) // replicas, len(self.layers))
            is_idle = num_ranks * replicas * width < len(problem.cluster.devices)
            if not num_ranks or is_idle is not leaves_idle:
                continue
            ranks = tuple(groups[k * replicas : (k + 1) * replicas] for k in range(num_ranks))
            for recomputation, shard in product(self.recomputations, options.shards(replicas)):
                loop = self._loop(ranks, recomputation=recomputation, shard=shard)
                if loop is not None:
                    yield from self._shapes_of(ranks, loop, recomputation=recomputation, shard=shard)

    def _groups(self, width: int) -> tuple[DeviceGroup, ...]:
        if width == 1:
            return tuple((device.name,) for device in self.problem.cluster.devices)
        return tuple(listed_blocks(self.problem, width))

    def _shapes_of(
        self, ranks: Ranks, loop: Loop, *, recomputation: _StageRecomputation, shard: Shard
    ) -> Iterator[Shape]:
        count, size = self.problem.num_microbatches, len(self.layers)
        for chunks in range(1, min(self.problem.options.max_stages_per_device, size // len(ranks)) + 1):
            stages = chunks * len(ranks)
            if (chunks > 1 and count % len(ranks)) or 2 * stages * count > _MAX_SHAPE_ACTIONS:
                continue
            if chunks > 1 and len(ranks) == 1:
                continue
            cut = proportional_cut(loop, stages)
            yield Shape(ranks=ranks, chunks=chunks, recomputation=recomputation, shard=shard, loop=loop, cut=cut)

    def _loop(self, ranks: Ranks, *, recomputation: _StageRecomputation, shard: Shard) -> Loop | None:
        """The layers as sums over the first of them; None if some have no costs there."""
        replicas, width, size = len(ranks[0]), len(ranks[0][0]), len(self.layers)
        works = [self._works(rank) for rank in ranks]
        held = [layer.bytes_at(width) for layer in self.layers]
        sizes = [entry for entry in held if entry is not None]
        if None in works or len(sizes) < size:
            return None
        rows = [row for row in works if row is not None]
        kinds = [recomputation.kind_of(layer.name) for layer in self.layers]
        forward = _sums([[work.forward_ns for work in row] for row in rows])
        backward = _sums([[work.backward_ns for work in row] for row in rows])
        moving, latency = self._synchronisation(ranks, shard)
        return Loop(
            times=numpy.stack([forward, backward, moving, _sums([_extra(row, kinds) for row in rows])]),
            fixed=numpy.stack([*(self._overhead(ranks, kind) for kind in "FB"), latency]),
            sizes=_sums(self._sizes(sizes, kinds)),
            replicas=replicas,
            sharers=replicas if shard == "optimizer" else 1,
            until=self._ends(recomputation),
            crossing=self._delays(ranks),
            buffers=-(-self.problem.options.receive_buffers * self.crossing[: size + 1] // replicas),
            budget=self._budget(ranks, shard) - max(entry.workspace_bytes for entry in sizes),
            microbatches=self.problem.num_microbatches,
        )

    def _overhead(self, ranks: Ranks, kind: str) -> Integers:
        """[p] what an action of a kind costs beyond its layers."""
        profile, costs = self.problem.profile, self.costs
        return _row(
            [
                max(profile.overhead_ns(costs.group_type(group), kind, has_stages=True) for group in rank)
                for rank in ranks
            ]
        )

    def _budget(self, ranks: Ranks, shard: Shard) -> Integers:
        """[p] bytes that devices have, less the most that it takes to reduce gradients."""
        memory, profile = self.problem.cluster.by_name, self.problem.profile
        is_reduced = len(ranks[0]) > 1
        has_buckets = is_reduced and (shard == "optimizer" or not profile.gradient_as_bucket_view)
        usable = [min(memory[device].usable_bytes for group in rank for device in group) for rank in ranks]
        return _row(usable) - profile.bucket_bytes * has_buckets - profile.reduction_bytes * is_reduced

    def _sizes(self, sizes: list[Layer | WidthBytes], kinds: list[str | None]) -> list[list[int]]:
        """Per layer: its stash, its state that none share, what recomputation saves of the stash, and other state."""
        width = 1 if isinstance(sizes[0], Layer) else sizes[0].width
        states = [self.costs.resident(layer.name, width) for layer in self.layers]
        pairs = list(zip(sizes, kinds, strict=True))
        return [
            [entry.stash_bytes for entry in sizes],
            [each.state - each.shardable for each in states],
            [entry.stash_bytes - checkpoint_bytes(entry, kind) for entry, kind in pairs],
            [each.shardable for each in states],
        ]

    def _ends(self, recomputation: _StageRecomputation) -> Integers:
        """[L + 1] up to which layer a stage recomputes that begins there, if it is long enough."""
        size = len(self.layers)
        if recomputation.kind is None:
            return numpy.arange(size + 1, dtype=numpy.int64)
        if recomputation.blocks is None:
            return numpy.full(size + 1, size, numpy.int64)
        blocks = [number for number, layer in enumerate(self.layers) if is_block(layer.name)]
        ends = [*(number + 1 for number in blocks), *([size] * recomputation.blocks)]
        last = [bisect_left(blocks, first) + recomputation.blocks - 1 for first in range(size + 1)]
        return _row([max(first, ends[number]) for first, number in enumerate(last)])

    def _find_works(self, rank: tuple[DeviceGroup, ...]) -> list[LayerWork] | None:
        """Per layer, the work on the slowest group of a rank; None where it was not measured."""
        types = sorted({self.costs.group_type(group) for group in rank})
        found = []
        for layer in self.layers:
            works = [self.costs.layer_work(layer.name, t, width=len(rank[0]), replicas=len(rank)) for t in types]
            known = [work for work in works if work is not None]
            if len(known) < len(works):
                return None
            found.append(max(known, key=lambda work: work.forward_ns + work.backward_ns))
        return found

    def _synchronisation(self, ranks: Ranks, shard: Shard) -> tuple[Integers, Integers]:
        """[p, L + 1] sums of what layers add to the all-reduce, or reduce-scatter, of a stage, and [p] its latency."""
        if len(ranks[0]) == 1:
            return numpy.zeros((len(ranks), len(self.layers) + 1), numpy.int64), numpy.zeros(len(ranks), numpy.int64)
        latency = [self.costs.ring_ns(rank, 0, rounds=1 if shard == "optimizer" else 2) for rank in ranks]
        rows = []
        for rank, least in zip(ranks, latency, strict=True):
            alone = (Stage(layers=(layer.name,), replicas=rank, shard=shard) for layer in self.layers)
            rows.append([max(0, self.costs.synchronisation_ns(stage) - least) for stage in alone])
        return _sums(rows), _row(latency)

    def _make_delays(self, ranks: Ranks) -> Integers:
        """[2, ranks, boundaries] ticks to the next rank, and back from it."""
        table = numpy.zeros((2, len(ranks), len(self.crossing)), dtype=numpy.int64)
        for number, rank in enumerate(ranks):
            ends = rank[0][0], ranks[(number + 1) % len(ranks)][0][0]
            if ends[0] == ends[1]:
                continue
            for direction, (source, target) in enumerate((ends, ends[::-1])):
                for boundary, size in enumerate(self.crossing.tolist()):
                    share = _share(size, len(rank))
                    route = self.problem.cluster.route(source, target, num_bytes=share)
                    table[direction, number, boundary] = route.duration_ns(share)
        return table


def promise(shape: Shape) -> tuple[int, int]:
    """How much memory a shape lacks with equal parts of the work, and a lower bound of its makespan then."""
    missing, lower_bound = promise_cut(shape.loop, shape.cut, len(shape.ranks))
    return int(missing), int(lower_bound)


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


def _extra(works: list[LayerWork], kinds: list[str | None]) -> list[int]:
    """Per layer: what recomputation adds to B where the layer recomputes."""
    return [0 if kind is None else work.recomputation_ns(kind) for work, kind in zip(works, kinds, strict=True)]


def _share(value: int, replicas: int) -> int:
    return -(-value // replicas)


def _row(values: list[int]) -> Integers:
    return numpy.array(values, dtype=numpy.int64)


def _sums(rows: list[list[int]]) -> Integers:
    """Sums of the first 0, 1, 2 ... of every row."""
    table = numpy.array(rows, dtype=numpy.int64)
    return numpy.concatenate((numpy.zeros((len(rows), 1), numpy.int64), numpy.cumsum(table, axis=1)), axis=1)

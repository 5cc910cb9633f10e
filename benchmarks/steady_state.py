"""The exact least time per sample of a pipeline in its steady state: no fill, no drain, no order; unlimited batches.

The objective is that of Piper (Tarnawski, Narayanan, Phanishayee, NeurIPS 2021): alike devices; a stage is a convex
set of layers on r replicas of w devices; its time per sample is

    (compute + bytes over its boundary / bandwidth) / r + 4 (r - 1) / r x weights / (microbatches x bandwidth),

it holds ceil(R / r) microbatches, where R is the sum of the replicas of this stage and all after it, and its memory is
the sum over its layers of growing x microbatches + fixed. Every layer has one or two variants per width (the second:
with recomputation). The largest stage is minimised.

*Exactness.* For a limit T, `cover` finds for every suffix of the layers and every sum of replicas the fewest devices
whose stages all keep T. A stage's own choice of variants depends on T and on the microbatches it holds alone, and both
devices and replicas add up, so that the recursion over the last suffix is complete. Of two covers of a suffix, one that
has neither fewer replicas nor fewer devices is never needed. T falls to the value of each plan found and rises to
each limit that has none, until the two meet within the precision of the arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks.steady_kernels import (
    INNER,
    OUTER,
    PLAIN,
    RECOMPUTED,
    SHRINKING,
    SYNCHRONISING,
    LayerCosts,
    PairTables,
    RecomputationChoices,
    StageBoundaries,
    cover,
    pair_tables,
)
from solver_models.instance import Floats, Integers

MOST_SUFFIXES = 1500
"""Largest number of suffixes that is tried (a chain of L layers has L + 1)."""

MOST_POINTS = 1 << 15
"""Most combinations of recomputing layers that a stage may have."""

PRECISION = 1e-12
"""Relative distance within which the best value is determined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyInstance:
    """L layers in a topological order, E edges, W widths; seconds and bytes per sample."""

    widths: tuple[int, ...]
    """Devices of a group, ascending."""
    seconds: Floats
    """[W, 2, L] compute of forward and backward, without and with recomputation; inf where it was not measured."""
    weights: Floats
    """[W, L] bytes that replicas synchronise once per batch."""
    growing: Floats
    """[W, 2, L] bytes per microbatch in flight."""
    fixed: Floats
    """[W, 2, L] bytes held in any case."""
    edges: Integers
    """[E, 2] producer and consumer."""
    crossing: Floats
    """[W, 2, E] bytes that the producer's stage (0) and the consumer's stage (1) move, if they are different stages."""
    num_devices: int
    """Alike devices."""
    num_microbatches: int
    """Per batch; numbers of replicas must divide it, and all replicas together may not exceed it."""
    memory: float
    """Bytes of every device."""
    bandwidth: float
    """Bytes per second from a device to the outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyStage:
    """One stage of the best pipeline."""

    layers: tuple[int, ...]
    """Its layers, ascending."""
    width: int
    """Devices of each group."""
    replicas: int
    """Groups."""
    recompute: tuple[int, ...]
    """Those of its layers that recompute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyPlan:
    """The best pipeline, first stage first."""

    seconds_per_sample: float
    """Time of the slowest stage."""
    stages: tuple[SteadyStage, ...]
    """The stages."""
    limits_tried: int
    """How many limits were decided."""

    @property
    def num_devices(self) -> int:
        """Devices in use."""
        return sum(stage.replicas * stage.width for stage in self.stages)


def plan_steady_state(instance: SteadyInstance) -> SteadyPlan | None:
    """The pipeline with the least time per sample; None if none fits into memory.

    Raises ValueError if the graph has too many suffixes, or a stage too many combinations of recomputing layers.
    """
    is_measured = np.isfinite(instance.seconds).any(axis=(0, 1)).all()
    return _Search(instance).run() if is_measured else None


class _Search:
    """The tables of one instance, and the bisection over limits."""

    def __init__(self, instance: SteadyInstance) -> None:
        self.instance = instance
        self.seconds, self.growing, self.fixed = _with_measured_first(instance)
        self.extra = np.full(self.seconds[:, PLAIN].shape, np.inf)
        measured = np.all(np.isfinite(self.seconds), axis=1)
        np.subtract(self.seconds[:, RECOMPUTED], self.seconds[:, PLAIN], out=self.extra, where=measured)
        self.group, self.order = self._group_layers()
        self.suffixes = list_suffixes(instance.edges, num_layers=instance.seconds.shape[2])
        self.pairs, self.first_pair = _list_pairs(self.suffixes)
        counts = [r for r in range(1, instance.num_microbatches + 1) if instance.num_microbatches % r == 0]
        self.replicas = np.array([r for r in counts if r <= instance.num_devices], dtype=np.int64)
        self.most_replicas = min(instance.num_microbatches, instance.num_devices)
        self.work_before = self._work_before()
        self.tables = self._tables()

    def _group_layers(self) -> tuple[Integers, list[Integers]]:
        """[W, L] layers that save alike, and per width the layers with two variants by group and extra time."""
        saving = np.stack(
            (self.growing[:, RECOMPUTED] - self.growing[:, PLAIN], self.fixed[:, RECOMPUTED] - self.fixed[:, PLAIN]),
            axis=-1,
        )
        group = np.zeros(self.extra.shape, np.int64)
        orders = []
        for w in range(len(self.instance.widths)):
            _, group[w] = np.unique(np.where(np.isfinite(saving[w]), saving[w], 0), axis=0, return_inverse=True)
            is_open = np.isfinite(self.extra[w]) & np.any(saving[w] != 0, axis=1)
            chosen = np.nonzero(is_open)[0]
            orders.append(chosen[np.lexsort((self.extra[w, chosen], group[w, chosen]))])
        return group, orders

    def _work_before(self) -> Floats:
        """[I] least device seconds per sample of the layers that are not in a suffix."""
        widths = np.array(self.instance.widths, dtype=np.float64)
        least = np.min(np.min(self.seconds, axis=1) * widths[:, None], axis=0)
        total = float(least.sum())
        return np.array([total - sum(float(least[x]) for x in suffix) for suffix in self.suffixes])

    def _tables(self) -> PairTables:
        instance = self.instance
        member = np.zeros((len(self.suffixes), instance.seconds.shape[2]), np.bool_)
        for i, suffix in enumerate(self.suffixes):
            member[i, list(suffix)] = True
        order = np.zeros((len(instance.widths), max(1, max(map(len, self.order)))), np.int64)
        for w, layers in enumerate(self.order):
            order[w, : len(layers)] = layers
        num_ordered = np.array([len(layers) for layers in self.order], dtype=np.int64)
        costs = LayerCosts(
            seconds=self.seconds,
            extra=self.extra,
            growing=self.growing,
            fixed=self.fixed,
            weights=instance.weights,
        )
        choices = RecomputationChoices(order=order, num_ordered=num_ordered, group=self.group, most_points=MOST_POINTS)
        boundaries = StageBoundaries(
            edges=instance.edges,
            crossing=instance.crossing,
            seconds_per_byte=1 / instance.bandwidth,
            seconds_per_weight=4 / (instance.num_microbatches * instance.bandwidth),
        )
        base, start, rows, is_complete = pair_tables(
            member, self.pairs, costs, choices, boundaries, instance.memory, self.most_replicas + 1
        )
        if not is_complete:
            raise ValueError(
                f"a stage has more than {MOST_POINTS:,} combinations of layers that recompute; merge alike layers"
            )
        return PairTables(pairs=self.pairs, first_pair=self.first_pair, base=base, start=start, rows=rows)

    def run(self) -> SteadyPlan | None:
        """Raise and lower the limit until it is tight."""
        floor = float(self.work_before[0]) / self.instance.num_devices
        floor = max(floor, np.finfo(np.float64).tiny)
        best, tried, limit = None, 0, floor * (1 + PRECISION)
        while best is None:
            best, tried = self.try_limit(limit), tried + 1
            if best is None:
                floor, limit = limit, limit * (1.01 if tried < 30 else 2)
                if limit > 1e15:
                    return None
        while best.seconds_per_sample * (1 - PRECISION) > floor:
            ceiling = best.seconds_per_sample
            limit = max((floor + ceiling) / 2, floor * (1 + PRECISION)) if tried % 4 else ceiling * (1 - PRECISION)
            found, tried = self.try_limit(min(limit, ceiling * (1 - PRECISION))), tried + 1
            if found is None:
                floor = min(limit, ceiling * (1 - PRECISION))
            elif found.seconds_per_sample < ceiling:
                best = found
            else:
                break
        return SteadyPlan(seconds_per_sample=best.seconds_per_sample, stages=best.stages, limits_tried=tried)

    def try_limit(self, limit: float) -> SteadyPlan | None:
        """A plan whose stages take at most `limit` per sample, if there is one."""
        need, choice = cover(
            limit, self.tables, np.array(self.instance.widths, dtype=np.int64), self.replicas, self.work_before,
            self.instance.num_devices, self.most_replicas,
        )  # fmt: skip
        last = len(self.suffixes) - 1
        replicas = int(np.argmin(need[last]))
        if need[last, replicas] > self.instance.num_devices:
            return None
        stages, slowest = [], 0.0
        while last != 0:
            pair, w, r, before = (int(value) for value in choice[last, replicas])
            stage, seconds = self._make_stage(pair, w, replicas=r, in_flight=-(-replicas // r))
            stages.append(stage)
            slowest = max(slowest, seconds)
            last, replicas = int(self.pairs[pair, INNER]), before
        return SteadyPlan(seconds_per_sample=slowest, stages=tuple(stages), limits_tried=1)

    def _make_stage(self, pair: int, w: int, *, replicas: int, in_flight: int) -> tuple[SteadyStage, float]:
        """The stage of a pair with the cheapest recomputation that fits, and its time per sample."""
        layers = sorted(self.suffixes[self.pairs[pair, OUTER]] - self.suffixes[self.pairs[pair, INNER]])
        extra, chosen = self._cheapest_recompute(layers, w, in_flight=in_flight)
        seconds = (
            self.tables.base[pair, w, SHRINKING] + self.tables.base[pair, w, SYNCHRONISING] * (replicas - 1) + extra
        ) / replicas
        stage = SteadyStage(
            layers=tuple(layers), width=self.instance.widths[w], replicas=replicas, recompute=tuple(sorted(chosen))
        )
        return stage, float(seconds)

    def _cheapest_recompute(self, layers: Sequence[int], w: int, *, in_flight: int) -> tuple[float, list[int]]:
        used = self.growing[w] * in_flight + self.fixed[w]
        total = float(used[PLAIN, layers].sum())
        by_group: dict[int, list[int]] = {}
        for x in self.order[w].tolist():
            if x in layers:
                by_group.setdefault(int(self.group[w, x]), []).append(x)
        best: tuple[float, list[int]] | None = None
        for counts in product(*(range(len(members) + 1) for members in by_group.values())):
            chosen = [x for members, n in zip(by_group.values(), counts, strict=True) for x in members[:n]]
            extra = float(self.extra[w, chosen].sum())
            fits = total + float((used[RECOMPUTED, chosen] - used[PLAIN, chosen]).sum()) <= self.instance.memory * (
                1 + PRECISION
            )
            if fits and (best is None or extra < best[0]):
                best = extra, chosen
        assert best is not None
        return best


def _with_measured_first(instance: SteadyInstance) -> tuple[Floats, Floats, Floats]:
    """Where only the second variant was measured it stands in for the first, which then has no alternative."""
    seconds, growing, fixed = instance.seconds.copy(), instance.growing.copy(), instance.fixed.copy()
    alone = ~np.isfinite(seconds[:, PLAIN])
    for table in (seconds, growing, fixed):
        table[:, PLAIN][alone] = table[:, RECOMPUTED][alone]
    return seconds, growing, fixed


def list_suffixes(edges: Integers, *, num_layers: int) -> list[frozenset[int]]:
    """Every set of layers that holds all consumers of its layers, smallest first; the empty one is number 0."""
    consumers: list[set[int]] = [set() for _ in range(num_layers)]
    for producer, consumer in edges.tolist():
        consumers[producer].add(consumer)
    found: set[frozenset[int]] = {frozenset()}
    newest = found
    while newest:
        newest = {
            suffix | {x} for suffix in newest for x in range(num_layers) if x not in suffix and consumers[x] <= suffix
        } - found
        found = found | newest
        if len(found) > MOST_SUFFIXES:
            raise ValueError(f"the layers have more than {MOST_SUFFIXES:,} suffixes; merge layers of parallel branches")
    return sorted(found, key=lambda suffix: (len(suffix), sorted(suffix)))


def _list_pairs(suffixes: Sequence[frozenset[int]]) -> tuple[Integers, Integers]:
    """[P, 2] a suffix and a smaller one inside it, by the first, and [I + 1] where the pairs of a suffix begin."""
    pairs = [(i, j) for i, suffix in enumerate(suffixes) for j in range(i) if suffixes[j] < suffix]
    counts = np.bincount([i for i, _ in pairs], minlength=len(suffixes))
    return np.array(pairs, dtype=np.int64).reshape(-1, 2), np.concatenate(([0], np.cumsum(counts))).astype(np.int64)

"""Small partition instances, and every partition of them."""

import itertools
from collections.abc import Iterator

import numpy as np

from solver_models.partition.dynamic import Partitioner, Stages
from solver_models.partition.interval_kernels import fits
from solver_models.partition.partition_instance import Interval, PartitionInstance, prefix_sums, range_maxima


def make_instance(num_layers: int, counts: tuple[int, ...], *, seed: int = 0, **changes: object) -> PartitionInstance:
    """Random layers; class c is c + 1 times as fast as class 0; no transfers, no buffers, ample memory."""
    random = np.random.default_rng(seed)
    base = random.integers(10, 200, (3, num_layers))
    base[2] += base[1]
    work = np.array([[base[kind] // (1 + c) for c in range(len(counts))] for kind in range(3)])[None]
    values: dict[str, object] = {
        "num_microbatches": 8,
        "work": work.astype(np.int64),
        "table_of_replicas": np.zeros(max(counts) + 1, np.int64),
        "gradient": random.integers(0, 300, num_layers),
        "ring": np.tile(np.array([5, 10**9]), (len(counts), max(counts) + 1, 1)),
        "state": random.integers(1, 20, num_layers),
        "stash": random.integers(1, 20, num_layers),
        "workspace": random.integers(0, 9, num_layers),
        "class_sizes": np.array(counts, np.int64),
        "capacity": np.full(len(counts), 10**6),
        "cut_ticks": np.zeros((2, num_layers + 1), np.int64),
        "cut_units": np.zeros((2, num_layers + 1), np.int64),
        "devices": np.concatenate([np.arange(10 * c, 10 * c + count) for c, count in enumerate(counts)]),
    }
    values |= changes
    summed = {name: prefix_sums(values[name]) for name in ("work", "gradient", "state", "stash")}
    return PartitionInstance(**(values | summed | {"workspace": range_maxima(values["workspace"])}))


def with_transfers(num_layers: int, *, seed: int = 0) -> dict[str, object]:
    """Changes to `make_instance`: every cut has its own transfer and its own receive buffers."""
    random = np.random.default_rng(seed + 1)
    inner = np.ones((2, num_layers + 1), np.int64)
    inner[:, [0, -1]] = 0
    return {
        "cut_ticks": inner * random.integers(1, 400, inner.shape),
        "cut_units": inner * random.integers(1, 20, inner.shape),
    }


def every_partition(instance: PartitionInstance) -> Iterator[Stages]:
    """Every cut with every class and number of replicas per stage."""
    seats = [(c, r) for c, n in enumerate(instance.class_sizes) for r in range(1, min(n, instance.most_replicas) + 1)]
    for num_stages in range(1, min(instance.num_layers, len(instance.devices)) + 1):
        for cuts in itertools.combinations(range(1, instance.num_layers), num_stages - 1):
            ends = list(itertools.pairwise((0, *cuts, instance.num_layers)))
            for chosen in itertools.product(seats, repeat=num_stages):
                yield tuple(Interval(*layers, *seat) for layers, seat in zip(ends, chosen, strict=True))


def is_feasible(partitioner: Partitioner, stages: Stages) -> bool:
    """Whether all layers are covered in order, the devices suffice, and every stage fits in memory."""
    instance, at = partitioner.instance, 0
    used = np.zeros(len(instance.class_sizes), np.int64)
    for stage in stages:
        used[stage.device_class] += stage.replicas
        if stage.first != at or not instance.allowed[stage.replicas] or not fits(partitioner.instance, *stage):
            return False
        at = stage.end
    return at == instance.num_layers and bool((used <= instance.class_sizes).all())


def least_load(instance: PartitionInstance) -> int | None:
    """The least largest load by enumeration; None if nothing fits."""
    own = Partitioner(instance)
    return min(
        (own.largest_load(stages) for stages in every_partition(instance) if is_feasible(own, stages)), default=None
    )


def least_largest_load(own: Partitioner) -> Stages | None:
    """The partition with the least largest load, by bisection of `reach`; None if nothing fits in memory."""
    numbers, most = own.instance.allowed, min(own.instance.num_layers, len(own.instance.devices))
    low, high = own.lower_bound() - 1, own.ceiling()
    best = own.read(*own.within(high, allowed=numbers, most_stages=most))
    while best is not None and low + 1 < high:
        middle = (low + high) // 2
        found = own.read(*own.within(middle, allowed=numbers, most_stages=most))
        low, high, best = (middle, high, best) if found is None else (low, min(middle, own.largest_load(found)), found)
    return best

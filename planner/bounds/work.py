"""The work bound: the devices together cannot work faster than each layer's best use of them."""

from fractions import Fraction

import numpy
from numpy.typing import NDArray

from planner.bounds.minimum_costs import Least

Floats = NDArray[numpy.float64]

WEIGHT = 1 << 20
"""Largest weight of a device in a certificate."""

STEPS = 120
"""Steps of the search for weights where device types are unlike in different ways."""


def work_bound(least: Least, weights: dict[str, int]) -> int:
    """Makespan >= sum over layers of min over types t of y_t x (M x work on t + step on t), / sum of y_d, + M x o.

    The profile's own `optimizer_ns` is not counted; the span has no steps.

    Proof. Give every device d a weight y_d >= 0 (that of its type). Its load is at most the makespan T, so
    (sum of y_d) T >= sum over d of y_d x load_d. A replicated layer spends on each of its r replicas 1/r of the work
    it would need there, so its share of the right-hand side is an average over replicas, hence at least its least
    term: M x min over t of y_t x (device time of F and B on t). B is at most I + W. Every term is the least over the
    widths and numbers of replicas allowed. Any weights give a bound; those of the dual of the fractional assignment
    give the largest. It is tight when the work can be spread evenly, with nothing to fill or to synchronise. Where I
    and W may be placed apart from F, in shares, the least of each is taken on its own. The optimizer's steps of its
    layers count as load of a device: they follow all of its actions. Each replica takes them whole, so their sum over
    the replicas, too, is at least their average.

    o is the least overhead of an F and of an action that sends the gradient on (`Least.overhead`). Every device used
    runs M of each, so (sum of y_d over those used) (T - M o) is at least the layers' share; more devices only lower it.
    """
    require_weights(least, weights)
    count, has_steps = least.problem.num_microbatches, least.problem.options.objective == "makespan"
    total = sum(least.weighted_load(weights)) if has_steps else count * sum(least.weighted_work(weights))
    share = sum(weights[name] * count for name, count in least.types.items())
    bound = Fraction(total, share)
    return -(-bound.numerator // bound.denominator) + count * sum(least.overhead)


def require_weights(least: Least, weights: dict[str, int]) -> None:
    """Raise ValueError unless every device type has a weight from 0 and not all of them are 0."""
    if set(weights) != set(least.types) or min(weights.values()) < 0 or not any(weights.values()):
        types = sorted(least.types)
        raise ValueError(
            f"certificate: weights = {weights} do not fit the device types {types}; give each one, not all 0"
        )


def find_weights(least: Least) -> dict[str, int]:
    """Weights that make `work_bound` large."""
    work = least.work_per_type(lambda work: work.forward_ns + work.backward_ns)
    names = list(work)
    table = numpy.array([work[name] for name in names], dtype=numpy.float64)
    counts = numpy.array([least.types[name] for name in names], dtype=numpy.float64)
    best = _normal(1.0 / numpy.maximum(table.sum(axis=1), 1.0), counts)
    if len(names) > 1:
        best = _ascend(table, counts, start=best)
    scaled = numpy.maximum(numpy.rint(best / best.max() * WEIGHT), 0).astype(int)
    return dict(zip(names, scaled.tolist(), strict=True))


def _normal(weights: Floats, counts: Floats) -> Floats:
    return weights / (weights @ counts)


def _ascend(table: Floats, counts: Floats, *, start: Floats) -> Floats:
    """Raise the weights of the types on which the layers crowd, lower the others; the best weights met."""
    weights, best = start, start
    most = (start[:, None] * table).min(axis=0).sum()
    for step in range(STEPS):
        chosen = (weights[:, None] * table).argmin(axis=0)
        loads = (
            numpy.bincount(chosen, weights=table[chosen, numpy.arange(table.shape[1])], minlength=len(counts)) / counts
        )
        push = loads / max(loads.max(), 1.0) - (loads * weights * counts).sum() / max(loads.max(), 1.0)
        weights = _normal(weights * numpy.exp(0.3 / (1 + step) * push), counts)
        value = (weights[:, None] * table).min(axis=0).sum()
        if value > most:
            most, best = value, weights
    return best

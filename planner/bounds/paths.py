"""Bounds of one layer: what must happen before, in and after it.

Where replicas take unequal shares, the chains are those of some sample: on average over the samples a stage on r
replicas takes at least its work / r (docs/proofs/bounds.md).
"""

from collections.abc import Mapping

from planner.bounds.minimum_costs import Integers, Least


def heads(least: Least) -> list[int]:
    """Per layer: the longest chain of F before it, each layer on the fastest group and in the most replicas.

    Stage times are rounded up and stages may hold several layers, so the sums are divided once, rounded down.
    """
    return _longest(least, least.time.forward, backward=False)


def tails(least: Least) -> list[int]:
    """Per layer: the longest chain of I after its own, back towards the sources, over edges with gradients."""
    return _longest(least, least.time.returning, backward=True)


def _longest(least: Least, durations: Integers, *, backward: bool) -> list[int]:
    """Longest sum over the producers' side of every layer, itself excluded.

    Gradients return over the same edges the activations came by, so both directions look towards the sources.
    """
    reached = [0] * len(least.layers)
    out: list[list[int]] = [[] for _ in least.layers]
    for edge in least.problem.profile.edges:
        if edge.has_gradient or not backward:
            out[least.index[edge.producer]].append(least.index[edge.consumer])
    for number, duration in enumerate(durations.tolist()):
        for consumer in out[number]:
            reached[consumer] = max(reached[consumer], reached[number] + duration)
    return [length // least.problem.most_replicas for length in reached]


def layer_bound(least: Least, number: int) -> int:
    """Makespan >= min over r of (head / R + M x work on r / r + synchronisation over r), for the layer `number`.

    Proof. Some stage holds the layer, on r replicas, 1 <= r <= R. Each replica runs F and the backward pass of every
    microbatch one after the other, no sooner than the first microbatch has come through the layers before it (whose
    stages have at most R replicas), and the stage's gradients, at least the layer's own, are synchronised after that.
    Where shares are equal, r is a number that leaves whole samples, and a replica takes no less than an r-th of what
    the layer takes on r of the fastest groups (`Least.totals`); otherwise an r-th of the least of all. It is tight for
    a layer that is too large for one device and too slow to synchronise.
    """
    return _least_time(least, number, head=heads(least)[number], totals=least.totals(number))


def _least_time(least: Least, number: int, *, head: int, totals: Mapping[int, int]) -> int:
    """Head, work and synchronisation of a layer on the best of some numbers of replicas."""
    count, size = least.problem.num_microbatches, least.gradient_bytes[number]
    time = min(count * work // r + least.synchronisation_ns(size, r) for r, work in totals.items())
    return head + time + least.optimizer_ns


def find_layer(least: Least) -> tuple[int, int]:
    """The layer with the largest `layer_bound`, and that bound."""
    before, all_totals = heads(least), [least.totals(number) for number in range(len(least.layers))]
    few = [{r: work for r, work in totals.items() if r & (r - 1) == 0} or totals for totals in all_totals]
    at_most = [_least_time(least, layer, head=head, totals=few[layer]) for layer, head in enumerate(before)]
    best = (0, 0)
    for layer in sorted(range(len(at_most)), key=lambda layer: -at_most[layer]):
        if at_most[layer] <= best[1]:
            break
        value = _least_time(least, layer, head=before[layer], totals=all_totals[layer])
        best = max(best, (layer, value), key=lambda found: found[1])
    return best


def path_bound(least: Least) -> int:
    """Makespan >= max over layers of (head + M x (F + I) / R + tail).

    Proof. The first F of a layer waits for the chain of F before it; its stage then runs M times F and I, and the last
    of these I is followed by the chain of I back to the sources. No stage has more than R replicas, and a stage's time
    on one replica is the sum over its layers / r. It is tight for few microbatches on many devices.
    """
    before, after = heads(least), tails(least)
    both = (least.time.forward + least.time.returning).tolist()
    most, count = least.problem.most_replicas, least.problem.num_microbatches
    found = [a + count * time // most + b for a, time, b in zip(before, both, after, strict=True)]
    return int(max(found)) + least.optimizer_ns

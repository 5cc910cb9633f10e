"""Lower bounds on every plan for listed microbatches, whether they are cut over replicas or dealt whole to pipelines.

docs/proofs/bounds.md has the proofs. A microbatch has the least cost at its own size; `Least` at that size knows it.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache, cached_property
from itertools import accumulate, pairwise
from math import gcd

import numpy

from planner.bounds import paths
from planner.bounds.listed.dealt_microbatches import StageView, stage_bound
from planner.bounds.minimum_costs import SECOND, Integers, Least, prefix_sums
from planner.layout.costs import CostModel
from profiles.model_profile import Edge


class ListedLeast:
    """Least costs of one problem at each of the sizes that it lists."""

    def __init__(self, costs: CostModel) -> None:
        problem = costs.problem
        assert problem.microbatches is not None
        self.problem, self.listed = problem, problem.microbatches
        self.at = {size: Least(costs.at(size).problem, costs.at(size)) for size in problem.sizes}
        self.any = self.at[problem.sizes[0]]
        """For what does not depend on the size."""

    @cached_property
    def optimizer_ns(self) -> int:
        """What follows the last synchronisation at the least, whatever the number of replicas that shard."""
        profile = self.problem.profile
        return profile.optimizer_ns if self.problem.options.shard_optimizer != "never" else self.any.optimizer_ns

    def synchronisation_ns(self, gradient_bytes: int, replicas: int) -> int:
        """No `replicas` replicas synchronise so many gradient bytes faster; half of it where they may shard."""
        bandwidths, latencies = self.any.rings
        if gradient_bytes == 0 or not 1 < replicas < len(bandwidths):
            return 0
        hops = (replicas - 1) * (2 if self.problem.options.shard_optimizer == "never" else 1)
        return hops * gradient_bytes * SECOND // (replicas * bandwidths[replicas]) + hops * latencies[replicas]


def work_bound(least: ListedLeast, weights: dict[str, int]) -> int:
    """The work bound (`planner.bounds.work`), with the work of every microbatch at its own size.

    A replica that takes a microbatch whole spends the time of one that has no peers, which is among those whose least
    is taken. A device runs F and the backward pass for some microbatches only where they are dealt, so overheads count
    once per microbatch, on whatever device costs least.
    """
    types = least.any.types
    if set(weights) != set(types) or min(weights.values()) < 0 or not any(weights.values()):
        raise ValueError(f"certificate: weights = {weights} do not fit the device types {sorted(types)}; give each one")
    has_steps = least.problem.options.objective == "makespan"
    total = weighted_load(least, weights, has_steps=has_steps)
    bound = Fraction(total, sum(weights[name] * count for name, count in types.items()))
    return -(-bound.numerator // bound.denominator) + (least.problem.profile.optimizer_ns if has_steps else 0)


def weighted_load(least: ListedLeast, weights: dict[str, int], *, has_steps: bool) -> int:
    """The least sum of weight x device time over all microbatches; `has_steps`: and over the optimizer's steps."""
    per_size = {size: sum(one.weighted_work(weights)) for size, one in least.at.items()}
    total = sum(per_size[size] for size in least.listed)
    total += len(least.listed) * min(weights.values()) * sum(least.any.overhead)
    if has_steps:
        steps = least.any.steps_per_type
        total += sum(min(weights[t] * steps[t][n] for t in steps) for n in range(len(least.any.layers)))
    return total


def layer_bound(least: ListedLeast, number: int) -> int:
    """Makespan >= min over r of (head + work of all microbatches on r / r + synchronisation over r), for one layer.

    Whether its stage's r replicas share every microbatch or are dealt them, together they do the layer's work for all,
    and one of them at least an r-th. Where they are dealt, each runs its own at the cost of one replica, and one has at
    least an r-th of their number, rounded up. The head is the least of any size: the first to come may be the smallest.
    """
    totals = {size: one.totals(number) for size, one in least.at.items()}
    whole, shortest = sum(totals[size][1] for size in least.listed), min(each[1] for each in totals.values())
    head = min(paths.heads(one)[number] for one in least.at.values())
    size, unit, count = least.any.gradient_bytes[number], gcd(*least.listed), len(least.listed)

    def work_ns(r: int) -> int:
        balanced = max(whole // r, -(-count // r) * shortest)
        is_cut = unit % r == 0 and all(r in each for each in totals.values())
        return min(balanced, sum(totals[each][r] for each in least.listed) // r) if is_cut else balanced

    numbers = range(1, least.problem.replica_limit + 1)
    return head + min(work_ns(r) + least.synchronisation_ns(size, r) for r in numbers) + least.optimizer_ns


def path_bound(least: ListedLeast) -> int:
    """Makespan >= the path of the largest microbatch alone, at whichever size that takes longest."""
    alone = (Least(replace(one.problem, num_microbatches=1), one.costs) for one in least.at.values())
    return max(map(paths.path_bound, alone))


def applies_to(least: ListedLeast) -> bool:
    """Whether `cut_bound` holds: chains on single devices of one type, one stage each, sizes that no replicas can cut.

    Then a plan is a number of pipelines and a cut: what is not dealt has one replica per stage.
    """
    problem, one = least.problem, least.any
    is_plain = one.problem.profile.is_chain and len(one.types) == 1 and one.widths == (1,)
    is_simple = problem.options.max_stages_per_device == 1 and problem.options.objective == "makespan"
    return is_plain and is_simple and (gcd(*least.listed) == 1 or problem.replica_limit == 1)


def cut_bound(least: ListedLeast) -> int:
    """Makespan >= min over numbers of pipelines r and cuts into at most D / r stages of the largest stage's bound.

    Each stage has the bound of `balanced_microbatches.stage_bound` for every pipeline having work, in any order; cuts
    are gone through by a dynamic programme over where stages begin and end.
    """
    problem = least.problem
    most = min(problem.replica_limit, len(problem.cluster.devices), len(least.listed))
    best: int | None = None
    for pipelines in range(1, most + 1):
        found = _least_cut(least, pipelines, below=best)
        best = found if best is None else min(best, best if found is None else found)
    return (best or 0) + least.optimizer_ns


def _least_cut(least: ListedLeast, pipelines: int, *, below: int | None) -> int | None:
    """The least over cuts of the largest stage's bound; None if there are no devices for any, or none is `below`."""
    options, num_layers, interval = least.problem.options, len(least.any.layers), _Intervals(least, pipelines)
    stages = min(num_layers, len(least.problem.cluster.devices) // pipelines)
    if options.partition is not None:
        ends = [0, *accumulate(map(len, options.partition))]
        is_possible = len(options.partition) <= stages
        return max(interval.bound(a, b) for a, b in pairwise(ends)) if is_possible else None
    reached: list[int | None] = [0] + [None] * num_layers
    for _ in range(stages):
        further = list(reached)
        for begin, value in enumerate(reached[:-1]):
            if value is None or (below is not None and value >= below):
                continue
            for end in range(begin + 1, num_layers + 1):
                found = max(value, interval.bound(begin, end))
                known = further[end]
                further[end] = found if known is None else min(known, found)
        if further == reached:
            break
        reached = further
    return reached[-1]


class _Intervals:
    """The bound of every interval of layers as a stage of so many pipelines; columns are [layers + 1, M] sums."""

    def __init__(self, least: ListedLeast, pipelines: int) -> None:
        self.least, self.pipelines = least, pipelines
        self.bound = cache(self._bound)
        self.forward = self._sums(lambda one: one.time.forward)
        self.returning = self._sums(lambda one: one.time.returning)
        self.total = self._sums(lambda one: one.time.total)
        self.gradients = [0, *accumulate(least.any.gradient_bytes)]
        self.there = self._transfers(lambda edge: edge.bytes)
        self.back = self._transfers(lambda edge: edge.backward_bytes)

    def _sums(self, column: Callable[[Least], Integers]) -> Integers:
        """Of the layers before each place, for every microbatch."""
        sums = {size: prefix_sums(column(one)) for size, one in self.least.at.items()}
        return numpy.stack([sums[size] for size in self.least.listed], axis=1)

    def _transfers(self, size_of: Callable[[Edge], int]) -> Integers:
        """[layers, M] what the transfer into each layer takes at the least; nothing into the first."""
        rows = {}
        for size, one in self.least.at.items():
            times = [0] * len(one.layers)
            for edge in one.problem.profile.edges:
                times[one.index[edge.consumer]] = one.transfer_ns(size_of(edge)) if size_of(edge) else 0
            rows[size] = times
        return numpy.array([rows[size] for size in self.least.listed], dtype=numpy.int64).T

    def _bound(self, begin: int, end: int) -> int:
        """Of the layers from `begin` to `end`.

        What ends with the gradient sent on is followed by the backward passes of the layers before; all that the stage
        does, by its synchronisation.
        """
        ahead, sending = self.least.any.overhead
        first = ahead if begin else 0
        heads = self.forward[begin] + self.there[begin] + first
        tails = self.returning[begin] + self.back[begin] + (sending if begin else 0)
        sent = self.forward[end] - self.forward[begin] + self.returning[end] - self.returning[begin] + ahead + sending
        whole = self.total[end] - self.total[begin] + ahead + sending
        size = self.gradients[end] - self.gradients[begin]
        returned = StageView(loads=sent.tolist(), heads=heads.tolist(), tails=tails.tolist())
        ended = StageView(loads=whole.tolist(), heads=heads.tolist(), tails=[0] * len(heads))
        synchronisation = self.least.synchronisation_ns(size, self.pipelines)
        ends = stage_bound(ended, pipelines=self.pipelines, least_used=self.pipelines) + synchronisation
        return max(ends, stage_bound(returned, pipelines=self.pipelines, least_used=self.pipelines))

"""The least that a layer, a transfer or a synchronisation costs in any plan that the options allow."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy
from numpy.typing import NDArray

from planner.decisions import asked
from planner.decisions.decision import Decision
from planner.layout.costs import CostModel, LayerWork
from planner.layout.layer_passes import Resident
from planner.problem import Options, Problem
from profiles.cluster import Cluster, Link
from profiles.model_profile import Layer, WidthBytes

Integers = NDArray[numpy.int64]

SECOND = 10**9
"""Nanoseconds in a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastWork:
    """Per layer in topological order: the least time of one microbatch, summed over the replicas of its stage."""

    forward: Integers
    """F."""
    returning: Integers
    """The shortest action that sends the gradient on: I, or B if that is shorter or I and W cannot run apart."""
    backward: Integers
    """All of the backward pass: B, which is never more than I + W."""
    rest: Integers
    """What of it follows the former; with different types, no more than the difference of the two."""

    @property
    def total(self) -> Integers:
        """F and all of the backward pass."""
        return self.forward + self.backward


class Least:
    """Least costs of one problem; every figure holds for every plan that its options allow."""

    def __init__(self, problem: Problem, costs: CostModel) -> None:
        self.problem, self.costs = problem, costs
        profile = problem.profile
        self.layers: tuple[Layer, ...] = tuple(profile.by_name[name] for name in profile.topological_order)
        self.index = {layer.name: number for number, layer in enumerate(self.layers)}
        self.num_devices = len(problem.cluster.devices)
        self.types: dict[str, int] = {}
        for device in problem.cluster.devices:
            self.types[device.type] = self.types.get(device.type, 0) + 1

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Numbers of devices that may share the layers of a stage."""
        measured = {cost.width for layer in self.layers for cost in layer.costs}
        most = min(self.problem.options.max_width, self.num_devices)
        return tuple(sorted(width for width in measured if width <= most))

    def _options(self, layer: Layer, device_type: str, *, width: int) -> Iterator[tuple[int | Fraction, LayerWork]]:
        """Replicas and work of a layer, for every number that a stage may have, or those at which it is extreme.

        Per sample, the cost is a constant plus a multiple of 1 / size between two measured sizes, and constant beyond
        them: hence least, for any share of a microbatch, at a measured size or at the whole. What replicas exchange
        adds a positive multiple of 1 / size below the whole, and nothing there.
        """
        profile, replicas = self.problem.profile, set[int | Fraction](self.problem.allowed_replicas)
        if profile.has_one_size and profile.scales_linearly:
            replicas = {1}
        elif self.problem.options.cuts_unevenly:
            size = profile.microbatch_size or 1
            sizes = {cost.microbatch_size or size for cost in layer.costs}
            replicas |= {Fraction(size, each) for each in sizes if each <= size}
        for count in sorted(replicas):
            work = self.costs.layer_work(layer.name, device_type, width=width, replicas=count)
            if work is not None:
                yield count, work

    @cached_property
    def _works(self) -> list[list[tuple[str, int, int | Fraction, LayerWork]]]:
        """Per layer: every (type, width, replicas, work) it can have at an extreme."""
        return [
            [
                (device_type, width, count, work)
                for device_type in self.types
                for width in self.widths
                if width == 1 or (width <= self.types[device_type] and layer.bytes_at(width) is not None)
                for count, work in self._options(layer, device_type, width=width)
            ]
            for layer in self.layers
        ]

    @cached_property
    def _table(self) -> list[list[tuple[str, int, LayerWork]]]:
        """The same whatever the number of replicas."""
        return [[(device_type, width, work) for device_type, width, _, work in row] for row in self._works]

    def choices(self, number: int) -> list[tuple[str, int, LayerWork]]:
        """Type, width and work of a layer, wherever it may be."""
        return self._table[number]

    def work_on(self, number: int, device_type: str, *, width: int, replicas: int) -> LayerWork | None:
        """Work of a layer in a stage of this shape; None where it cannot be in one."""
        layer = self.layers[number]
        if width > 1 and layer.bytes_at(width) is None:
            return None
        return self.costs.layer_work(layer.name, device_type, width=width, replicas=replicas)

    def totals(self, number: int) -> dict[int, int]:
        """By every number of replicas that a stage may have: least time of F and backward pass, summed over them."""
        options, profile = self.problem.options, self.problem.profile
        if options.cuts_unevenly:
            return dict.fromkeys(range(1, self.problem.most_replicas + 1), int(self.time.total[number]))
        if profile.has_one_size and profile.scales_linearly:
            return dict.fromkeys(self.problem.allowed_replicas, int(self.time.total[number]))
        found: dict[int, int] = {}
        for _, _, count, work in self._works[number]:
            total = work.forward_ns + work.backward_ns
            found[int(count)] = min(total, found.get(int(count), total))
        return found

    def _column(self, figure: Callable[[LayerWork], int]) -> Integers:
        """Per layer: the least figure over types, widths and numbers of replicas."""
        return numpy.array([min(figure(work) for _, _, work in row) for row in self._table], dtype=numpy.int64)

    def returning(self, work: LayerWork) -> int:
        """The shortest action that sends the gradient on."""
        if self.problem.options.split_backward:
            return min(work.input_grad_ns, work.backward_ns)
        return min(work.backward_ns, work.input_grad_ns + work.weight_grad_ns)

    @cached_property
    def time(self) -> LeastWork:
        """Work on the fastest group: divided by the replicas, none that has an equal share needs less time."""
        return LeastWork(
            forward=self._column(lambda work: work.forward_ns),
            returning=self._column(self.returning),
            backward=self._column(lambda work: work.backward_ns),
            rest=self._column(lambda work: work.backward_ns - self.returning(work)),
        )

    @cached_property
    def overhead(self) -> tuple[int, int]:
        """The least that an F, and an action that sends the gradient on, cost beyond their layers, on any type.

        Every device used runs both for every microbatch; with split placement it may run neither.
        """
        if self.problem.options.split_placement:
            return 0, 0
        profile, is_cut = self.problem.profile, len(self.problem.options.partition or ()) > 1
        figures = {
            name: {kind: profile.overhead_ns(name, kind, has_stages=is_cut) for kind in "FIB"} for name in self.types
        }
        return min(each["F"] for each in figures.values()), min(min(each["I"], each["B"]) for each in figures.values())

    def work_per_type(self, figure: Callable[[LayerWork], int]) -> dict[str, list[int]]:
        """Per device type: the least device time (figure x width), per layer."""
        return {
            device_type: [
                min(width * figure(work) for name, width, work in row if name == device_type) for row in self._table
            ]
            for device_type in self.types
        }

    @cached_property
    def steps_per_type(self) -> dict[str, list[int]]:
        """Per device type: the optimizer's step of every layer, which one device takes, or a group in equal parts."""
        return {name: [layer.optimizer_ns(name) for layer in self.layers] for name in self.types}

    @cached_property
    def sharers(self) -> int:
        """The most replicas that hold and step a part each of the optimizer's state; 1 where they may not."""
        return self.problem.most_replicas if self.problem.may_shard else 1

    @cached_property
    def ring_rounds(self) -> int:
        """How often gradients go round a ring at the least: once (a reduce-scatter) where replicas may shard."""
        return 1 if self.problem.may_shard else 2

    @cached_property
    def optimizer_ns(self) -> int:
        """What follows the last synchronisation at the least: the profile's time, and steps of layers.

        Proof. Every layer's step is taken by some device, or in equal parts by the devices of a group, or of all groups
        of a stage that shards. So all devices together take at least the sum of the layers' steps, each on the type
        where it is least, and one of them an equal part of it; and one of them takes an equal part of the largest of
        these steps. What sharding stages gather after it is not counted.
        """
        columns = self.steps_per_type
        steps = [min(columns[name][number] for name, _, _ in row) for number, row in enumerate(self._table)]
        most = max(max(steps) // (max(self.widths) * self.sharers), -(-sum(steps) // self.num_devices))
        return self.problem.profile.optimizer_ns + most

    def weighted_load(self, weights: dict[str, int]) -> list[int]:
        """Per layer: the least of weight x (device time of all microbatches + the optimizer's step) over the types.

        Replicas that shard take equal parts of the step: where their shares of the samples may differ, the least of
        each is taken on its own.
        """
        count, steps = self.problem.num_microbatches, self.steps_per_type
        columns = self.work_per_type(lambda work: work.forward_ns + work.backward_ns)
        together = [
            min(weights[t] * (count * columns[t][number] + steps[t][number]) for t in dict.fromkeys(row_types))
            for number, row_types in enumerate([name for name, _, _ in row] for row in self._table)
        ]
        options = self.problem.options
        if not options.split_placement and not (options.unequal_shares and self.problem.may_shard):
            return together
        least = [min(weights[t] * steps[t][number] for t in steps) for number in range(len(self.layers))]
        separate = [count * work + step for work, step in zip(self.weighted_work(weights), least, strict=True)]
        return [min(pair) for pair in zip(together, separate, strict=True)]

    def weighted_work(self, weights: dict[str, int]) -> list[int]:
        """Per layer: the least of weight x device time over the types; of F, I and W apart if they may be placed so."""

        def least(figure: Callable[[LayerWork], int]) -> list[int]:
            columns = self.work_per_type(figure)
            return [
                min(terms) for terms in zip(*([weights[t] * time for time in columns[t]] for t in columns), strict=True)
            ]

        together = least(lambda work: work.forward_ns + work.backward_ns)
        if not self.problem.options.split_placement:
            return together
        parts = zip(
            least(lambda work: work.forward_ns),
            least(lambda work: work.backward_ns),
            least(lambda work: work.input_grad_ns),
            least(lambda work: work.weight_grad_ns),
            strict=True,
        )
        separate = [f + min(b, i + w) for f, b, i, w in parts]
        return [min(pair) for pair in zip(together, separate, strict=True)]

    @cached_property
    def layer_widths(self) -> list[list[int]]:
        """Per layer: at how many devices it can be shared; layers that exist only wider do not have 1 among them."""
        return [sorted({width for _, width, _ in row}) for row in self._table]

    def entries(self, number: int) -> list[tuple[int, Layer | WidthBytes]]:
        """What states the bytes of a layer on each device, by the widths that its stage may have."""
        sizes = ((width, self.layers[number].bytes_at(width)) for width in self.layer_widths[number])
        return [(width, size) for width, size in sizes if size is not None]

    def least_bytes(self, field: str) -> list[int]:
        """Per layer: the least of a byte field over the widths, per device of a group."""
        return [
            min(int(getattr(entry, field)) for _, entry in self.entries(number)) for number in range(len(self.layers))
        ]

    @cached_property
    def held_bytes(self) -> list[int]:
        """Per layer: the least that F leaves of it for its backward, by any recomputation that the options allow.

        A plan may recompute any layers by any kinds, or all of a stage fully: each is at least this, layer by layer.
        """
        return [
            min(size for _, entry in self.entries(number) for size in self.held_sizes(entry))
            for number in range(len(self.layers))
        ]

    @cached_property
    def stash_bytes(self) -> list[int]:
        """Per layer: the least that is there of it while the backward of its stage runs.

        Decisions that are asked for may make it less.
        """
        known = [each.least_stash(self) for each in self._asked.values() if each.least_stash is not None]
        return list(map(min, zip(self.least_bytes("stash_bytes"), *known, strict=True)))

    def held_sizes(self, entry: Layer | WidthBytes, *, may_recompute: bool = True) -> list[int]:
        """The stash at a width, and what F may leave of it by the decisions that are asked for.

        `may_recompute`: False for a stage that does not.
        """
        kinds = [kind.checkpoint_bytes for kind in entry.recompute_kinds]
        known = [each for name, each in self._asked.items() if may_recompute or name != "recompute"]
        found = [each.left(entry, kinds) for each in known if each.left is not None]
        return [entry.stash_bytes, *(size for sizes in found for size in sizes)]

    @cached_property
    def _asked(self) -> dict[str, Decision]:
        """By option."""
        return {each.option: each.decision for each in asked(self.problem.options)}

    @cached_property
    def state_bytes(self) -> list[int]:
        """Per layer: the least of its state on a device that holds it, over the widths, and over replicas that shard.

        r devices that shard hold r times the rest and the optimizer's state once, so never less than r times this.
        """
        return [min(self.states(number).values()) for number in range(len(self.layers))]

    def states(self, number: int) -> dict[int, int]:
        """The same of one layer, by width."""
        return {width: each.shared(self.sharers) for width, each in self.residents(number).items()}

    def residents(self, number: int) -> dict[int, Resident]:
        """What one layer keeps, by width."""
        return {width: self.costs.resident(self.layers[number].name, width) for width, _ in self.entries(number)}

    def transfer_ns(self, num_bytes: int) -> int:
        """No transfer of so many bytes between two devices is faster: every route contains a link."""
        return min(
            (link.latency_ns + link.least_moving_ns(num_bytes) for link in self.problem.cluster.links), default=0
        )

    @cached_property
    def gradient_bytes(self) -> list[int]:
        """Per layer: gradient bytes that a device of a replicated stage synchronises, at least, rounded down."""
        widths = enumerate(self.layer_widths)
        return [min(self.gradient_bytes_at(number, width) for width in row) for number, row in widths]

    def gradient_bytes_at(self, number: int, width: int) -> int:
        """The same of one layer at a width, rounded down."""
        stated = self.layers[number].synchronised_bytes_at(width)
        return self.layers[number].synchronised_bytes // width if stated is None else stated

    @cached_property
    def rings(self) -> tuple[list[int], list[int]]:
        """Per number of replicas: the widest slowest link and the smallest largest latency of a ring of that many."""
        return best_bandwidths(self.problem.cluster), best_latencies(self.problem.cluster)

    def synchronisation_ns(self, gradient_bytes: int, replicas: int, *, bandwidth: int | None = None) -> int:
        """No `replicas` replicas synchronise so many gradient bytes faster.

        `bandwidth`: bytes per second of their ring's slowest link, at most, if more is known than their number.

        Proof. The first sum is the ring formula on the best links. Steps are stated by bytes: a ring leads over one
        link at least, none of whose steps takes less than the fastest link's, and none takes less for fewer bytes.
        """
        if replicas == 1 or gradient_bytes == 0:
            return 0
        (bandwidths, latencies), hops = self.rings, self.ring_rounds * (replicas - 1)
        widest = bandwidths[replicas] if bandwidth is None else bandwidth
        ring = hops * gradient_bytes * SECOND // (replicas * widest) + hops * latencies[replicas]
        links = self.problem.cluster.links if self._has_ring_steps else ()
        return max(ring, hops * min((each.step_ns(gradient_bytes // replicas) for each in links), default=0))

    @cached_property
    def _has_ring_steps(self) -> bool:
        """Whether every link states what a ring's step takes: the least is 0 otherwise."""
        return all(link.reduction_times for link in self.problem.cluster.links)


def recomputes_by_stage(options: Options) -> bool:
    """Whether a stage recomputes all of its layers for every microbatch, or none."""
    return options.recompute and not (options.recompute_layers or options.recompute_microbatches)


def best_bandwidths(cluster: Cluster) -> list[int]:
    """Per number r of devices (0 and 1: 0): the largest bandwidth at which links still connect r devices.

    The devices of a ring are connected by links that are at least as wide as its slowest route.
    """
    links = sorted(cluster.links, key=lambda link: -link.bandwidth_bytes_per_s)
    return _thresholds(cluster, links, figure=lambda link: link.bandwidth_bytes_per_s)


def best_latencies(cluster: Cluster) -> list[int]:
    """Per number r of devices (0 and 1: 0): the least latency below which links connect r devices."""
    links = sorted(cluster.links, key=lambda link: link.latency_ns)
    return _thresholds(cluster, links, figure=lambda link: link.latency_ns)


def _thresholds(cluster: Cluster, links: Iterable[Link], *, figure: Callable[[Link], int]) -> list[int]:
    """Figure of the link, in the given order, with which a component of the link graph first has r devices."""
    found = [0, 0]
    for link, members in joined_parts(cluster, links):
        found += [figure(link)] * (members.total() + 1 - len(found))
    return found


def joined_parts(cluster: Cluster, links: Iterable[Link]) -> Iterator[tuple[Link, Counter[str]]]:
    """Each link, in the given order, that joins two components of the link graph, and the new one's devices by type."""
    root = {device.name: device.name for device in cluster.devices}
    members = {device.name: Counter([device.type]) for device in cluster.devices}

    def find(end: str) -> str:
        root.setdefault(end, end)
        while root[end] != end:
            root[end] = end = root[root[end]]
        return end

    for link in links:
        a, b = find(link.a), find(link.b)
        if a != b:
            root[a] = b
            members[b] = members.get(a, Counter()) + members.get(b, Counter())
            yield link, members[b]


def prefix_sums(values: Sequence[int] | Integers) -> Integers:
    """0, the first, the sum of the first two, ... as 64-bit integers."""
    return numpy.concatenate([[0], numpy.cumsum(numpy.asarray(values, dtype=numpy.int64))])

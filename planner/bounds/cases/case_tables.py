"""What a stage of a small problem can be: its layers, its replicas, and what both cost, counted once."""

from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import combinations, permutations

import numpy
from numpy.typing import NDArray

from planner import decisions
from planner.bounds.minimum_costs import Integers, Least
from planner.clock import HasTime, always
from planner.layout.costs import CostModel
from planner.plan import Stage
from planner.problem import Problem
from profiles.model_profile import Layer

MAX_LAYERS, MAX_DEVICES, MAX_MICROBATCHES, MAX_PLACES = 16, 5, 16, 2
"""Problems beyond are refused before work begins."""

MAX_DOWNSETS, MAX_SEGMENTS = 300, 4_000
"""Sets of layers that stages may end with, and sets that a stage may hold."""

_IMPOSSIBLE_NS = 1 << 54
"""What an action takes that was not measured: longer than any deadline, and 64 bits hold all of them together."""

MAX_DEADLINE_NS = 1 << 53
"""Deadlines beyond are refused."""

MAX_BYTES = 1 << 50
"""Layers that hold more are refused; devices that do are taken to hold 2 to the 58."""

FORWARD, RETURNING, REST, STATE, HELD, KEPT, WORKSPACE, INPUT, WEIGHT, FUSED, STEP = range(11)
"""Figures of a replica: the parts of its time (docs/proofs/refutations.md), its bytes, I, W, B if less than both, the
step."""


class TooManyCasesError(ValueError):
    """A problem has more cases than are looked at."""


class WorkCount:
    """Work that is counted, so that it is the same everywhere: a unit takes some 20 microseconds."""

    def __init__(self, most: int, *, has_time: HasTime = always) -> None:
        self.most, self.spent, self.has_time = most, 0, has_time

    def spend(self, units: int) -> None:
        """Count work that is about to begin; raises TooManyCasesError if there may be no more, or its time is over."""
        self.spent += units
        if not self.has_time():
            raise TooManyCasesError("certificate: no time is left to make it")
        if self.spent > self.most:
            raise TooManyCasesError(f"certificate: it exceeds the limit of {self.most:,} units of work")


class CaseTables:
    """Segments (sets of layers) and assignments (sets of devices, recomputing or not) of a problem's stages."""

    def __init__(self, problem: Problem, costs: CostModel) -> None:
        """Raises TooManyCasesError where a problem has too many of either, or a rule that is not known here."""
        self.problem, self.costs = problem, costs
        self.devices = [device.name for device in problem.cluster.devices]
        profile, options = problem.profile, problem.options
        self.names = profile.topological_order
        _require_small(problem)
        index = {name: number for number, name in enumerate(self.names)}
        self.edges = [(index[edge.producer], index[edge.consumer], edge) for edge in profile.edges]
        self.downsets = self._list_downsets()
        pairs = [
            (a, b)
            for a, low in enumerate(self.downsets)
            for b, high in enumerate(self.downsets)
            if low & ~high == 0 and low != high
        ]
        if len(pairs) > MAX_SEGMENTS:
            raise TooManyCasesError(f"certificate: {len(pairs):,} sets of layers, above the limit of {MAX_SEGMENTS:,}")
        masks = sorted({self.downsets[b] & ~self.downsets[a] for a, b in pairs})
        number = {mask: row for row, mask in enumerate(masks)}
        self.segments = masks
        self.extensions = [
            [(b, number[self.downsets[b] & ~low]) for a_, b in pairs if a_ == a] for a, low in enumerate(self.downsets)
        ]
        flags = (False, True) if options.recompute else (False,)
        self.assignments = [
            (members, flag)
            for count in problem.allowed_replicas
            for members in combinations(range(len(self.devices)), count)
            for flag in flags
        ]

    def _list_downsets(self) -> list[int]:
        """Sets of layers closed under what comes before them, each a mask; the empty one first, the full one last."""
        needs = [0] * len(self.names)
        for producer, consumer, _ in self.edges:
            needs[consumer] |= 1 << producer
        found, ahead = {0}, [0]
        while ahead:
            low = ahead.pop()
            for layer, need in enumerate(needs):
                high = low | 1 << layer
                if need & ~low == 0 and high not in found:
                    found.add(high)
                    ahead.append(high)
            if len(found) > MAX_DOWNSETS:
                raise TooManyCasesError(f"certificate: more than {MAX_DOWNSETS} sets of layers may be done first")
        return sorted(found, key=lambda mask: (mask.bit_count(), mask))

    @cached_property
    def layers(self) -> Integers:
        """[segments, layers] 1 for the layers of a segment."""
        rows = [[mask >> layer & 1 for layer in range(len(self.names))] for mask in self.segments]
        return numpy.array(rows, dtype=numpy.int64)

    @cached_property
    def members(self) -> Integers:
        """[assignments, devices] 1 for the devices of an assignment."""
        rows = [[int(device in members) for device in range(len(self.devices))] for members, _ in self.assignments]
        return numpy.array(rows, dtype=numpy.int64)

    @cached_property
    def replicas(self) -> Integers:
        """[assignments] number of replicas."""
        return numpy.array([len(members) for members, _ in self.assignments], dtype=numpy.int64)

    @cached_property
    def figures(self) -> Integers:
        """[segments, assignments, devices, 11] what a replica of a segment costs on a device of an assignment, or 0."""
        table = numpy.zeros((len(self.segments), len(self.assignments), len(self.devices), STEP + 1), dtype=numpy.int64)
        known: dict[tuple[int, bool, str], list[int]] = {}
        for row in range(len(self.segments)):
            known.clear()
            for assignment, (members, flag) in enumerate(self.assignments):
                for device in members:
                    key = len(members), flag, self.problem.cluster.devices[device].type
                    if key not in known:
                        stage = self.stage(row, [device] * len(members), recompute=flag)
                        known[key] = self._figures(stage)
                    table[row, assignment, device] = known[key]
        return table

    def _figures(self, stage: Stage) -> list[int]:
        kind, count = self.costs.group_type(stage.replicas[0]), len(stage.replicas)
        if any(self.costs.layer_work(name, kind, width=1, replicas=count) is None for name in stage.layers):
            return [_IMPOSSIBLE_NS, *[0] * STEP]
        cost = self.costs.stage_cost(stage, 0)
        backward = cost.least_backward_ns
        can_split = self.problem.options.split_backward or not cost.has_weight_grad
        returning, rest = cost.least_parts_ns(can_split=can_split)
        has_gain = can_split and cost.has_weight_grad and backward < cost.input_grad_ns + cost.weight_grad_ns
        return [
            cost.forward_ns, returning, rest,
            cost.state_bytes, cost.held_bytes, cost.weight_stash_bytes, cost.workspace_bytes,
            cost.input_grad_ns, cost.weight_grad_ns, cost.backward_ns if has_gain else 0,
            sum(self.problem.profile.by_name[name].optimizer_ns(kind) for name in stage.layers),
        ]  # fmt: skip

    def stage(self, segment: int, members: Iterable[int], *, recompute: bool = False) -> Stage:
        """A stage with the layers of a segment on devices, in this order."""
        mask = self.segments[segment]
        return Stage(
            layers=tuple(name for layer, name in enumerate(self.names) if mask >> layer & 1),
            replicas=tuple((self.devices[device],) for device in members),
            recompute=recompute,
        )

    @cached_property
    def usable(self) -> Integers:
        """[devices] bytes that a plan may use."""
        return numpy.array(
            [min(device.usable_bytes, MAX_BYTES << 8) for device in self.problem.cluster.devices], dtype=numpy.int64
        )

    @cached_property
    def linked(self) -> set[tuple[str, str]]:
        """Pairs of ends with a link of their own, which every transfer between them takes."""
        return {end for link in self.problem.cluster.links for end in ((link.a, link.b), (link.b, link.a))}

    @cached_property
    def has_fixed_route(self) -> NDArray[numpy.bool_]:
        """[devices, devices] whether transfers of all sizes take the same links from the one to the other."""
        is_tree = self.problem.cluster.is_tree
        rows = [[a != b and (is_tree or (a, b) in self.linked) for b in self.devices] for a in self.devices]
        return numpy.array(rows, dtype=numpy.bool_)

    @cached_property
    def least(self) -> Least:
        """The least costs of the problem."""
        return Least(self.problem, self.costs)

    @cached_property
    def images(self) -> Integers:
        """[symmetries, assignments] where a permutation of the devices that changes nothing takes every assignment.

        Devices of a type with equal memory, between all of which there are direct links, whose latencies, bandwidths
        and times by size the permutation keeps.
        """
        cluster, count = self.problem.cluster, len(self.devices)
        kinds = [(device.type, device.usable_bytes) for device in cluster.devices]
        pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
        orders = [tuple(range(count))]
        if all((self.devices[a], self.devices[b]) in self.linked for a, b in pairs):
            routes = {(a, b): cluster.route(self.devices[a], self.devices[b], num_bytes=0) for a, b in pairs}
            speed = {
                pair: (
                    *(route.latency_ns, route.bandwidth_bytes_per_s),
                    [link.message_times for link in route.sized],
                    [link.step_times for link in route.reducing],
                )
                for pair, route in routes.items()
            }
            orders = [
                order
                for order in permutations(range(count))
                if all(kinds[a] == kinds[order[a]] for a in range(count))
                and all(speed[a, b] == speed[order[a], order[b]] for a, b in pairs)
            ]
        number = {assignment: row for row, assignment in enumerate(self.assignments)}
        rows = [
            [number[tuple(sorted(order[device] for device in members)), flag] for members, flag in self.assignments]
            for order in orders
        ]
        return numpy.array(rows, dtype=numpy.int64)

    def duration(self, source: Integers, target: Integers, *, size: Integers) -> Integers:
        """Time of transfers between devices (numbers), of so many bytes; 0 on one device. All of one shape."""
        names, cluster = self.devices, self.problem.cluster

        def measure(a: int, b: int, num_bytes: int) -> int:
            return 0 if a == b else cluster.route(names[a], names[b], num_bytes=num_bytes).duration_ns(num_bytes)

        return for_each(measure, source, target, size)


def for_each(figure: Callable[..., int], *columns: Integers) -> Integers:
    """A figure for every row of some columns, asked for once for those that are equal."""
    flat = numpy.stack([column.ravel() for column in columns], axis=1)
    rows, place = numpy.unique(flat, axis=0, return_inverse=True)
    values = numpy.array([figure(*row) for row in rows.tolist()], dtype=numpy.int64)
    return values[place.ravel()].reshape(columns[0].shape)


def _require_small(problem: Problem) -> None:
    """Refuse what the cases do not cover, and what would take too long."""
    options, profile = problem.options, problem.profile
    if options.objective != "makespan":
        raise TooManyCasesError("certificate: a refutation holds for the makespan")
    for each in decisions.asked(options):
        if not each.decision.is_enumerated:
            raise TooManyCasesError(f"certificate: a refutation does not hold with {each.stated}")
    if problem.may_shard:
        raise TooManyCasesError("certificate: a refutation holds where no replicas shard the optimizer's state")
    if options.max_width > 1 and any(cost.width > 1 for layer in profile.layers for cost in layer.costs):
        raise TooManyCasesError("certificate: a refutation holds for devices, not for groups of several")
    sizes = {
        "layers": (len(profile.layers), MAX_LAYERS),
        "devices": (len(problem.cluster.devices), MAX_DEVICES),
        "microbatches": (problem.num_microbatches, MAX_MICROBATCHES),
        "stages per device": (min(options.max_stages_per_device, len(profile.layers)), MAX_PLACES),
    }
    for name, (size, most) in sizes.items():
        if size > most:
            raise TooManyCasesError(f"certificate: a refutation of {size} {name} is above the limit of {most}")
    longest = sum(max(cost.forward_ns + 2 * cost.fused_backward_ns for cost in layer.costs) for layer in profile.layers)
    largest = max(max(_bytes_of(layer)) for layer in profile.layers)
    if longest * problem.num_microbatches * problem.replica_limit >= MAX_DEADLINE_NS or largest >= MAX_BYTES:
        raise TooManyCasesError("certificate: times or bytes are too large for a refutation")


def _bytes_of(layer: Layer) -> tuple[int, ...]:
    """The bytes of a layer that stages add up."""
    resident = layer.state_bytes, layer.synchronised_bytes
    return *resident, layer.stash_bytes, layer.weight_stash_bytes, layer.workspace_bytes

"""A problem as the complete programme takes it: every stage that a plan could have, asked of the cost model."""

from collections.abc import Sequence
from itertools import permutations, product
from math import perm

from planner import decisions
from planner.layout.costs import CostModel, overlap, stage_traffic
from planner.layout.device_groups import device_rows
from planner.plan import Stage
from planner.problem import Problem
from profiles.model_profile import Edge
from solver_models.complete.complete_instance import (
    ActionTimes,
    CompleteInstance,
    DeviceTransfer,
    Kind,
    LayerSet,
    Share,
    Sizes,
    Traffic,
)

MOST_SETS, MOST_LISTED = 500, 50_000
"""Sets of layers that the model has room for; and that there may be where windows of it take some of them."""

_MOST_CLOSED = 1_000
"""Sets that hold all that their layers need, of which two at a time bound the former."""

_CLOSED = "sets of layers that could come first"
_SETS, _FEWER_LAYERS = "sets of layers that could be a stage", "merge layers"

MOST_ASSIGNMENTS = 70
"""Device assignments of a stage that it has room for."""

MOST_ROWS = 1_000_000
"""Rows that it has room for."""


def make_complete_instance(
    problem: Problem, costs: CostModel, *, horizon: int, sets: Sequence[tuple[int, ...]] | None = None
) -> CompleteInstance:
    """The instance of a problem, without plans that take longer than `horizon` nanoseconds.

    `sets`: those of `stage_sets` that may be stages; None: all, if there is room for them.
    Raises ValueError, with what to change, where the programme does not cover an option or would be too large.
    """
    require_covered(problem)
    chosen = stage_sets(problem) if sets is None else list(sets)
    _require_room(_SETS, len(chosen), most=MOST_SETS, remedy=_FEWER_LAYERS)
    return _Question(problem, costs, sets=chosen).instance(horizon)


def stage_sets(problem: Problem) -> list[tuple[int, ...]]:
    """The sets of layers, by number, that could be stages: those of the given partition, or all."""
    given = problem.options.partition
    if given is None:
        return _convex_sets(problem)
    number = {name: n for n, name in enumerate(problem.profile.topological_order)}
    return [tuple(sorted(number[name] for name in names)) for names in given]


def require_covered(problem: Problem) -> None:
    """Raise ValueError where the complete model does not cover an option, or there would be too much to write down."""
    own = problem.options
    refused = (
        (problem.microbatches is not None, "problem: a list of microbatches", "give num_microbatches"),
        (own.synchronisation != "after", f"options: synchronisation = {own.synchronisation}", "set it to after"),
        (own.objective != "makespan", f"options: objective = {own.objective}", "set it to makespan"),
        *problem.times_beside_actions,
        *(
            (True, f"options: {each.stated}", each.remedy)
            for each in decisions.asked(own)
            if not each.decision.in_complete_model and each.decision.matters(problem)
        ),
    )
    for is_refused, what, remedy in refused:
        if is_refused:
            raise ValueError(f"{what} is not in the complete model; {remedy}, or use method auto")
    assignments = sum(perm(len(problem.cluster.devices), count) for count in problem.allowed_replicas)
    _require_room("ways to seat a stage", assignments, most=MOST_ASSIGNMENTS, remedy="lower max_replicas")
    _require_room(
        "rows or more", _count_rows(problem), most=MOST_ROWS, remedy="merge layers, or use fewer microbatches"
    )
    if own.partition is None:
        _convex_sets(problem)


def _require_room(what: str, count: int, *, most: int, remedy: str) -> None:
    if count > most:
        raise ValueError(
            f"the complete model of this problem would have {count:,} {what}, above the limit of {most:,}; {remedy}, "
            "or use method auto"
        )


def _num_slots(problem: Problem) -> int:
    options = problem.options
    if options.partition is not None:
        return len(options.partition)
    return min(len(problem.profile.layers), len(problem.cluster.devices) * options.max_stages_per_device)


def _count_rows(problem: Problem) -> int:
    """About how many rows say in which order the devices take their actions, and what they hold meanwhile."""
    slots, num_devices = _num_slots(problem), len(problem.cluster.devices)
    own = 3 * problem.num_microbatches
    pairs = (own * slots) ** 2 if problem.options.max_stages_per_device > 1 else slots * own**2
    return num_devices * pairs


class _Question:
    """What stages, assignments and transfers there are."""

    def __init__(self, problem: Problem, costs: CostModel, *, sets: list[tuple[int, ...]]) -> None:
        self.problem, self.costs, self.options, self.sets = problem, costs, problem.options, sets
        self.names = problem.profile.topological_order
        self.number = {name: n for n, name in enumerate(self.names)}
        self.devices = [device.name for device in problem.cluster.devices]
        self.assignments = self._make_assignments()
        self.counts = sorted({len(assignment) for assignment in self.assignments})
        self.kinds = tuple(product(self.counts, (False, True) if self.options.recompute else (False,)))

    def instance(self, horizon: int) -> CompleteInstance:
        """Everything, by number."""
        traffic, traffic_of = self._make_traffic()
        shares = {
            (i, a, j, b): share
            for a, b in product(self.counts, repeat=2)
            for i, j in product(range(a), range(b))
            if (share := overlap(i, j, num_senders=a, num_receivers=b))[0]
        }
        cluster, options = self.problem.cluster, self.options
        num_slots = _num_slots(self.problem)
        return CompleteInstance(
            num_microbatches=self.problem.num_microbatches,
            num_layers=len(self.names),
            devices=tuple(device_rows(cluster).values()),
            num_slots=num_slots,
            edges=tuple((self.number[e.producer], self.number[e.consumer]) for e in self.problem.profile.edges),
            sets=tuple(self._layer_set(layers) for layers in self.sets),
            assignments=self.assignments,
            slot_sets=tuple(self._sets_of(slot) for slot in range(num_slots)),
            slot_assignments=tuple(self._assignments_of(slot) for slot in range(num_slots)),
            set_assignments=self._pinned_assignments(),
            kinds=self.kinds,
            traffic=tuple(traffic),
            traffic_of=traffic_of,
            shares=shares,
            transfers=self._make_transfers(traffic, sorted(set(shares.values()))),
            buffers={
                (n, direction, count): -(
                    -options.receive_buffers * (each.backward if direction else each.forward) // count
                )
                for n, each in enumerate(traffic)
                for direction, count in product((False, True), self.counts)
            },
            tail=self.problem.profile.optimizer_ns,
            rules=options.rules,
            horizon=horizon,
        )

    def _make_assignments(self) -> tuple[tuple[int, ...], ...]:
        """Devices in every order, for every number of replicas that is allowed."""
        devices = range(len(self.devices))
        return tuple(
            assignment for count in self.problem.allowed_replicas for assignment in permutations(devices, count)
        )

    def _sets_of(self, slot: int) -> tuple[int, ...]:
        return (slot,) if self.options.partition is not None else tuple(range(len(self.sets)))

    def _assignments_of(self, slot: int) -> tuple[int, ...]:
        if self.options.placement is None:
            return tuple(range(len(self.assignments)))
        wanted = tuple(self.devices.index(group[0]) for group in self.options.placement[slot])
        return (self.assignments.index(wanted),)

    def _pinned_assignments(self) -> dict[int, frozenset[int]]:
        """Sets with a pinned layer are on its device alone."""
        allowed: dict[int, frozenset[int]] = {}
        for pin in self.options.pinned:
            own = frozenset(
                n for n, assignment in enumerate(self.assignments) if assignment == (self.devices.index(pin.device),)
            )
            for k, layers in enumerate(self.sets):
                if self.number[pin.layer] in layers:
                    allowed[k] = allowed.get(k, own) & own
        return allowed

    def _stage(self, layers: tuple[int, ...], assignment: tuple[int, ...], *, recompute: bool = False) -> Stage:
        names = tuple(self.names[layer] for layer in layers)
        return Stage(layers=names, replicas=tuple((self.devices[d],) for d in assignment), recompute=recompute)

    def _layer_set(self, layers: tuple[int, ...]) -> LayerSet:
        types, cluster = self.problem.cluster.device_types, self.problem.cluster
        times: dict[tuple[int, Kind], ActionTimes] = {}
        sizes: dict[Kind, Sizes] = {}
        for kind, (number, name) in product(self.kinds, enumerate(types)):
            first = next(n for n, device in enumerate(cluster.devices) if device.type == name)
            assignment = (first, *(d for d in range(len(self.devices)) if d != first))[: kind[0]]
            stage = self._stage(layers, assignment, recompute=kind[1])
            try:
                cost = self.costs.stage_cost(stage, 0)
            except ValueError:  # not measured there
                continue
            times[number, kind] = ActionTimes(*cost.durations_ns)
            own = {name: getattr(cost, f"{name}_bytes") for name in Sizes._fields if name != "bucket"}
            sizes[kind] = Sizes(bucket=self.costs.reduction_bytes(stage), **own)
        is_cut = len(layers) < len(self.names)  # what follows the iteration then, follows every stage of it
        several = self.problem.profile.stages_optimizer_ns if is_cut else 0
        rings = {
            n: self.costs.synchronisation_ns(self._stage(layers, assignment)) + several
            for n, assignment in enumerate(self.assignments)
        }
        return LayerSet(
            layers=layers,
            has_weight_grad=self.problem.profile.trains(self.names[layer] for layer in layers),
            times=times,
            sizes=sizes,
            synchronisation={n: ticks for n, ticks in rings.items() if ticks},
            steps={number: ticks for number, name in enumerate(types) if (ticks := self._step_ns(layers, name))},
        )

    def _step_ns(self, layers: tuple[int, ...], device_type: str) -> int:
        return sum(self.problem.profile.by_name[self.names[layer]].optimizer_ns(device_type) for layer in layers)

    def _make_traffic(self) -> tuple[list[Traffic], dict[tuple[int, int], int]]:
        """The different kinds of traffic, and which flows between which sets."""
        found: dict[Traffic, int] = {}
        between: dict[tuple[int, int], int] = {}
        members = [frozenset(layers) for layers in self.sets]
        edges = [(self.number[e.producer], self.number[e.consumer], e) for e in self.problem.profile.edges]
        for a, first in enumerate(members):
            leaving = [edge for edge in edges if edge[0] in first and edge[1] not in first]
            for b, second in enumerate(members):
                arriving = [edge for _, consumer, edge in leaving if consumer in second]
                if arriving and not first & second:
                    between[a, b] = found.setdefault(_traffic(arriving), len(found))
        return list(found), between

    def _make_transfers(
        self, traffic: Sequence[Traffic], shares: Sequence[Share]
    ) -> dict[tuple[int, bool, Share, int, int], DeviceTransfer]:
        transfers: dict[tuple[int, bool, Share, int, int], DeviceTransfer] = {}
        ends = list(product(range(len(self.devices)), repeat=2))
        for (n, each), is_backward, share in product(enumerate(traffic), (False, True), shares):
            size = -(-(each.backward if is_backward else each.forward) * share[0] // share[1])
            for a, b in ends:
                transfers[n, is_backward, share, a, b] = self._transfer(a, b, size=size)
        return transfers

    def _transfer(self, a: int, b: int, *, size: int) -> DeviceTransfer:
        if a == b:
            return DeviceTransfer(0, frozenset())
        route = self.problem.cluster.route(self.devices[a], self.devices[b], num_bytes=size)
        duration = route.duration_ns(size)
        return DeviceTransfer(duration, frozenset(route.links) if duration else frozenset())


def _traffic(edges: Sequence[Edge]) -> Traffic:
    transfer = stage_traffic(edges)
    return Traffic(forward=transfer.forward_bytes, backward=transfer.backward_bytes, has_gradient=transfer.has_gradient)


def _convex_sets(problem: Problem) -> list[tuple[int, ...]]:
    """Every set of layers between two sets that hold all that their layers need.

    Raises ValueError for more than the model has room for.
    """
    names = problem.profile.topological_order
    number = {name: n for n, name in enumerate(names)}
    needs = [frozenset[int]()] * len(names)
    for edge in problem.profile.edges:
        needs[number[edge.consumer]] = needs[number[edge.consumer]] | {number[edge.producer]}
    closed = {frozenset[int]()}
    fresh = list(closed)
    while fresh:
        below = fresh.pop()
        for layer in range(len(names)):
            larger = below | {layer}
            if layer not in below and needs[layer] <= below and larger not in closed:
                closed.add(larger)
                fresh.append(larger)
        _require_room(_CLOSED, len(closed), most=_MOST_CLOSED, remedy=_FEWER_LAYERS)
    found = {tuple(sorted(b - a)) for a, b in product(closed, repeat=2) if a < b}
    _require_room(_SETS, len(found), most=MOST_LISTED, remedy=_FEWER_LAYERS)
    return sorted(found)

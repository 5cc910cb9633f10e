"""Nanoseconds and names to ticks and indices, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from fractions import Fraction
from typing import NamedTuple

import numpy

from planner.actions import KINDS, Action
from planner.layout.costs import CostModel, LayerWork, checkpoint_bytes
from planner.layout.device_groups import device_rows, list_groups
from planner.layout.stage_replicas import StageReplica as LaidOutReplica
from planner.layout.stage_replicas import lay_out_stages
from planner.plan import FULL_RECOMPUTATION, DeviceGroup, Plan, RecomputeMap, Share, Stage
from planner.problem import Problem
from planner.simulation.simulate import timed_send
from profiles.model_profile import Layer
from solver_models.device_rows import as_one, column, device_table
from solver_models.instance import (
    NO_TABLE,
    DeviceOrder,
    Instance,
    Integers,
    Layers,
    RecomputeKinds,
    ScheduleInstance,
    StageReplica,
    WideGroups,
)
from solver_models.local_search.split_placement_search import SplitOrders
from solver_models.simulation.columns import ONCE, OPTIMIZER_ROW, RECOMPUTING, SHARDING, SIZES, WEIGHT_STASH_ONCE
from solver_models.simulation.evaluator import OPTIONS

_MAX_EXACT_ROUTES = 64
"""Up to so many devices routes are exactly the simulator's; among more, equally short paths may be others."""


def make_instance(problem: Problem, costs: CostModel) -> Instance:
    """The whole planning problem in integers: layers in topological order, devices and links in the cluster's order."""
    options, cluster = problem.options, problem.cluster
    groups = list_groups(problem)
    widths = (1, *sorted({len(group) for group in groups}))
    device_index = {device.name: number for number, device in enumerate(cluster.devices)}
    pins = {pin.layer: device_index[pin.device] for pin in options.pinned}
    layers = _make_layers(problem, costs, widths=widths)
    figures = options.rules | _figures(problem, layers)
    wide = WideGroups(
        groups=tuple(tuple(device_index[name] for name in group) for group in groups),
        width_row=column([widths.index(len(group)) for group in groups]),
        widths=widths[1:],
    )
    return Instance(
        layers=layers._replace(options=column([figures.get(name, 0) for name in OPTIONS])),
        num_microbatches=problem.num_microbatches,
        can_halve=_can_halve(problem, costs),
        pinned=column([pins.get(name, -1) for name in problem.profile.topological_order]),
        given_stages=_given_stages(problem),
        given_groups=_given_groups(problem),
        wide=wide if groups else None,
        shard_choice=options.shard_optimizer if problem.may_shard else "never",
        recompute_kinds=_make_kinds(problem, costs, widths=widths) if options.recompute_layers else None,
        rules=options.rules,
        objective=options.ranked_by,
    )


def _figures(problem: Problem, layers: Layers) -> dict[str, int]:
    """What kernels know of the question beside its rules, by name."""
    profile, cluster = problem.profile, problem.cluster
    steps = int(layers.once[OPTIMIZER_ROW].min(axis=0).sum())
    return {
        "num_microbatches": problem.num_microbatches,
        "num_links": 2 * len(cluster.links),
        "tail": profile.optimizer_ns,
        "bucket_bytes": profile.bucket_bytes,
        "plain_bucket_bytes": 0 if profile.gradient_as_bucket_view else profile.bucket_bytes,
        "reduction_bytes": profile.reduction_bytes,
        "least_step": -(-steps // len(cluster.devices)),  # of some device: an equal part of all, each where it is least
        "stages_tail": profile.stages_optimizer_ns,
        "collective_occupancy": cluster.collective_occupancy,
        "transfers_hold": not cluster.overlap,
    }


def _make_layers(problem: Problem, costs: CostModel, *, widths: Sequence[int]) -> Layers:
    """What kernels read, but for the options; on all types at the first width, then at the next."""
    profile, types = problem.profile, problem.cluster.device_types
    layers = [profile.by_name[name] for name in profile.topological_order]
    tables = _work_tables(problem, costs, widths=widths)
    has_bytes = [[layer.bytes_at(width) is not None for layer in layers] for width in widths for _ in types]
    gradients = [[(layer.synchronised_bytes_at(w), layer.synchronised_bytes) for layer in layers] for w in widths]
    gathered = [[(layer.gathered_bytes_at(w), layer.gathered_bytes) for layer in layers] for w in widths]
    latency, bandwidth, route_start, route_links = _route_tables(problem)

    def sizes(layer: Layer, width: int) -> list[int]:
        entry = layer.bytes_at(width)
        states = costs.resident(layer.name, width)._asdict() if entry is not None else {}
        return [states.get(name, getattr(entry, f"{name}_bytes", 0)) for name in SIZES]

    def overheads(device_type: str, *, has_stages: bool) -> list[int]:
        return [profile.overhead_ns(device_type, kind, has_stages=has_stages) for kind in KINDS]

    devices, shards = numpy.arange(len(problem.cluster.devices) + 1), problem.may_shard
    return Layers(
        work=numpy.ascontiguousarray(tables.work),
        host=tables.host if profile.has_host_times else tables.host[:, :0],
        measured=tables.measured * column(has_bytes),
        table_of_replicas=tables.of_replicas,
        overhead=column([[overheads(t, has_stages=each) for t in types] * len(widths) for each in (False, True)]),
        once=column([[[layer.once_ns(name, t) for layer in layers] for t in types] * len(widths) for name in ONCE]),
        sizes=column([list(zip(*(sizes(each, w) for each in layers), strict=True)) for w in widths]),
        gradient=_stated_and_cut(gradients),
        weights=_stated_and_cut(gathered) * shards,
        together=_together_table(problem),
        trainable=column([layer.is_trainable for layer in layers]),
        frozen=column([layer.frozen for layer in layers]),
        edges=_edge_table(problem),
        devices=device_table(list(device_rows(problem.cluster).values())),
        width_row=0 * devices[:-1],
        member_start=devices,
        members=devices[:-1],
        latency=latency,
        bandwidth=bandwidth,
        route_start=route_start,
        route_links=route_links,
        options=column([]),
    )


def _stated_and_cut(sizes: Sequence[Sequence[tuple[int | None, int]]]) -> Integers:
    """[V, 2, L] bytes as stated for a width, and those of the whole layer where none are: these are cut equally."""
    pairs = [[(0, whole) if stated is None else (stated, 0) for stated, whole in row] for row in sizes]
    return numpy.ascontiguousarray(column(pairs).transpose(0, 2, 1))


def _can_halve(problem: Problem, costs: CostModel) -> bool:
    """Whether half of an I takes half of its work everywhere, as the search counts it, and whole samples."""
    if not costs.has_share(Fraction(1, 2)):
        return False
    works = (
        [costs.layer_work(name, device_type, width=1, replicas=replicas) for replicas in (1, Fraction(2))]
        for name in problem.profile.by_name
        for device_type in problem.cluster.device_types
    )
    return all(len({work.input_grad_ns for work in pair if work is not None}) == 1 for pair in works)


def _make_kinds(problem: Problem, costs: CostModel, *, widths: Sequence[int]) -> RecomputeKinds:
    """What layers take and leave by every kind of recomputation, and by none, which is number 0."""
    names, types = problem.profile.topological_order, problem.cluster.device_types
    layers = [problem.profile.by_name[name] for name in names]
    tables = _work_tables(problem, costs, widths=widths).of_replicas.tolist()
    replicas = [tables.index(table, 1) for table in range(max(tables) + 1)]
    kinds = (None, *recompute_kinds(problem))
    works = [
        [[costs.layer_work(n, t, width=w, replicas=r) for n in names] for w in widths for t in types] for r in replicas
    ]
    known = [[None, FULL_RECOMPUTATION, *(entry.kind for entry in layer.recompute_kinds)] for layer in layers]

    def extra(work: LayerWork | None, number: int, kind: str | None) -> int:
        return 0 if work is None or kind is None or kind not in known[number] else work.recomputation_ns(kind)

    def kept(number: int, width: int, kind: str | None) -> int:
        size = layers[number].bytes_at(width)
        return 0 if size is None or kind not in known[number] else checkpoint_bytes(size, kind)

    return RecomputeKinds(
        extra=numpy.array(
            [[[[extra(w, n, kind) for n, w in enumerate(row)] for row in rows] for rows in works] for kind in kinds],
            dtype=numpy.int64,
        ),
        kept=numpy.array([[[kept(n, w, k) for n in range(len(names))] for w in widths] for k in kinds], numpy.int64),
        stated=numpy.array([[int(k in known[n]) for n in range(len(names))] for k in kinds], numpy.int64),
    )


def _given_stages(problem: Problem) -> Integers | None:
    if problem.options.partition is None:
        return None
    stage_of = {name: number for number, names in enumerate(problem.options.partition) for name in names}
    return column([stage_of[name] for name in problem.profile.topological_order])


def _given_groups(problem: Problem) -> tuple[tuple[int, ...], ...] | None:
    if problem.options.placement is None:
        return None
    number = _holder_numbers(problem)
    return tuple(tuple(number[tuple(group)] for group in groups) for groups in problem.options.placement)


def _holder_numbers(problem: Problem) -> dict[DeviceGroup, int]:
    """The number of every device, as a group of one, and of every group of several."""
    holders = [*((device.name,) for device in problem.cluster.devices), *list_groups(problem)]
    return {group: number for number, group in enumerate(holders)}


class _Tables(NamedTuple):
    """Work per number of replicas, on all types at the first width, then at the next."""

    work: Integers
    """[tables, 5, rows, L] 0 where there is no cost."""
    measured: Integers
    """[tables, rows, L] 1 where there is a cost."""
    of_replicas: Integers
    """[max replicas + 1] which table holds; `NO_TABLE` for numbers that a stage may not have."""
    host: Integers
    """[2, tables, 5, rows, L] what hosts take to ask, and from a host's beginning to the end at least."""


def _work_tables(problem: Problem, costs: CostModel, *, widths: Sequence[int]) -> _Tables:
    """Numbers of replicas with the same figures share a table; one at which no layer has a cost has none."""
    names, types = problem.profile.topological_order, problem.cluster.device_types
    tables: dict[bytes, int] = {}
    arrays: list[Integers] = []
    hosts: list[Integers] = []
    of_replicas = [0, *[NO_TABLE] * problem.max_replicas]
    profile = problem.profile
    is_linear = (
        profile.has_one_size and profile.scales_linearly and not (profile.has_exchanges or profile.has_host_times)
    )
    for replicas in problem.allowed_replicas:
        if is_linear and arrays:
            of_replicas[replicas] = 0
            continue
        rows = [
            [costs.layer_work(name, t, width=width, replicas=replicas) for name in names]
            for width in widths
            for t in types
        ]
        array = numpy.array(
            [[[getattr(work, field, 0) for work in row] for row in rows] for field in _WORK_FIELDS]
            + [[[int(work is not None) for work in row] for row in rows]],
            dtype=numpy.int64,
        )
        if not array[-1].any():
            continue
        host = _host_table(rows)
        key = array.tobytes() + repr([[work and work.kinds_ns for work in row] for row in rows]).encode()
        key += host.tobytes()
        if key not in tables:
            tables[key] = len(arrays)
            arrays.append(array)
            hosts.append(host)
        of_replicas[replicas] = tables[key]
    stacked = numpy.stack(arrays)
    return _Tables(stacked[:, :-1], stacked[:, -1], column(of_replicas), numpy.stack(hosts, axis=1))


def _host_table(rows: Sequence[Sequence[LayerWork | None]]) -> Integers:
    """[2, 5, rows, L] of F, I, W, B and the full recomputation; 0 where the host takes no time."""
    actions = (*KINDS, FULL_RECOMPUTATION)
    none = [(0, 0)] * len(actions)

    def pairs(work: LayerWork | None) -> list[tuple[int, int]]:
        found = none if work is None or not work.asking else [work.matrix(action)[::2] for action in actions]
        return [(int(host), int(cross)) for host, cross in found]

    table = numpy.array([[pairs(work) for work in row] for row in rows], dtype=numpy.int64)
    return numpy.ascontiguousarray(table.transpose(3, 2, 0, 1))


_WORK_FIELDS = ("forward_ns", "input_grad_ns", "weight_grad_ns", "backward_ns", "recompute_ns")


def _together_table(problem: Problem) -> Integers:
    index = {name: number for number, name in enumerate(problem.profile.topological_order)}
    rows = [(index[a], index[b], *sizes) for a, b, *sizes in map(astuple, problem.profile.held_once)]
    return column(rows).reshape(-1, WEIGHT_STASH_ONCE + 1)


def _edge_table(problem: Problem) -> Integers:
    index = {name: number for number, name in enumerate(problem.profile.topological_order)}
    rows = [
        (index[e.producer], index[e.consumer], e.bytes, e.backward_bytes, int(e.has_gradient), rank)
        for rank, e in enumerate(problem.profile.edges)
    ]
    rows.sort(key=lambda row: row[0])
    return numpy.array(rows, dtype=numpy.int64).reshape(len(rows), 6)


def _route_tables(problem: Problem) -> tuple[Integers, Integers, Integers, Integers]:
    """Routes between all pairs of devices, for a transfer of median size: the simulator has the last word on others.

    Of more devices than layers several share a stage, and as many its transfers. What links state by message size
    counts as latency, at that size; not where there are very many devices.
    """
    devices = problem.cluster.devices
    sizes = sorted(edge.bytes for edge in problem.profile.edges) or [0]
    median = -(-sizes[len(sizes) // 2] // _usual_replicas(problem))
    if len(devices) > _MAX_EXACT_ROUTES and (tables := problem.cluster.route_tables(num_bytes=median)) is not None:
        return tables.latency, tables.bandwidth, tables.start, tables.resources
    latency = numpy.zeros((len(devices), len(devices)), dtype=numpy.int64)
    bandwidth = numpy.ones((len(devices), len(devices)), dtype=numpy.int64)
    starts, links = [0], list[int]()
    problem.cluster.find_routes((a.name, b.name, median) for a in devices for b in devices if a is not b)
    for a, source in enumerate(devices):
        for b, target in enumerate(devices):
            if a != b:
                route = problem.cluster.route(source.name, target.name, num_bytes=median)
                plain = -(-median * 10**9 // route.bandwidth_bytes_per_s)
                latency[a, b], bandwidth[a, b] = route.duration_ns(median) - plain, route.bandwidth_bytes_per_s
                links.extend(route.links)
            starts.append(len(links))
    return latency, bandwidth, column(starts), column(links)


def _usual_replicas(problem: Problem) -> int:
    """With so many replicas of every layer most devices are used: 1 where there are not several for each layer."""
    least = len(problem.cluster.devices) // len(problem.profile.layers)
    return next((count for count in problem.allowed_replicas if count >= least), problem.max_replicas)


def make_stages(
    problem: Problem,
    stage_of: Integers,
    *,
    groups: Sequence[Sequence[int]],
    modes: Integers,
    choice: Integers | None = None,
) -> tuple[Stage, ...]:
    """Stages with names again: `stage_of` [L] per layer in topological order, `groups` the holders per stage.

    `modes` [S] as the search has them; `choice` [L]: by which of `recompute_kinds` each layer of a stage that
    recomputes does; None: all of them fully.
    """
    names, kinds = problem.profile.topological_order, (None, *recompute_kinds(problem))
    numbers = [1] * len(names) if choice is None else choice.tolist()
    kind_of = {name: kinds[number] for name, number in zip(names, numbers, strict=True)}
    holders = list(_holder_numbers(problem))
    layers: list[list[str]] = [[] for _ in groups]
    for name, number in zip(names, stage_of.tolist(), strict=True):
        layers[number].append(name)
    return tuple(
        Stage(
            layers=tuple(own),
            replicas=tuple(holders[holder] for holder in group),
            recompute=_recomputation(own, kind_of) if mode & RECOMPUTING else False,
            shard="optimizer" if mode & SHARDING and len(group) > 1 else "none",
        )
        for own, group, mode in zip(layers, groups, modes.tolist(), strict=True)
    )


def _recomputation(names: Sequence[str], kind_of: Mapping[str, str | None]) -> bool | RecomputeMap:
    """What a stage of these layers states: a map only where they differ, or recompute by another kind than the full."""
    found = tuple((name, kind) for name in names if (kind := kind_of[name]) is not None)
    is_whole = len(found) == len(names) and all(kind == FULL_RECOMPUTATION for _, kind in found)
    return is_whole or (found if found else False)


def recompute_kinds(problem: Problem) -> tuple[str, ...]:
    """The kinds of recomputation of any layer, by the numbers, from 1, that the search has for them."""
    others = {entry.kind for layer in problem.profile.layers for entry in layer.recompute_kinds}
    return FULL_RECOMPUTATION, *sorted(others)


def modes_of(stages: Sequence[Stage]) -> Integers:
    """[S] what the search calls their modes: a stage recomputes if any of its layers does."""
    return column([RECOMPUTING * bool(stage.recompute) + SHARDING * stage.is_sharded for stage in stages])


def choice_of(problem: Problem, stages: Sequence[Stage]) -> Integers:
    """[L] by which of `recompute_kinds` every layer recomputes, in topological order; 0: not at all."""
    numbers = {kind: number for number, kind in enumerate(recompute_kinds(problem), start=1)}
    kinds = {name: kind for stage in stages for name, kind in stage.recomputed.items()}
    return column([numbers[kinds[name]] if name in kinds else 0 for name in problem.profile.topological_order])


def make_candidate_arrays(problem: Problem, stages: Sequence[Stage]) -> tuple[Integers, tuple[tuple[int, ...], ...]]:
    """The inverse of `make_stages`: stage of every layer in topological order, numbers of the holders per stage."""
    stage_of = {name: number for number, stage in enumerate(stages) for name in stage.layers}
    numbers = _holder_numbers(problem)
    groups = tuple(tuple(numbers[group] for group in stage.replicas) for stage in stages)
    return column([stage_of[name] for name in problem.profile.topological_order]), groups


def make_plan_from_orders(
    problem: Problem, stages: tuple[Stage, ...], *, device_orders: dict[int, DeviceOrder]
) -> Plan:
    """A plan whose orders are given per index of a device as (kind, stage, microbatch) triples.

    Devices without one have that of the first device of their group: such groups are equal or disjoint.
    """
    first = {group[0]: group for stage in stages for group in stage.replicas}
    ordered = {problem.cluster.devices[index].name for index, device_order in device_orders.items() if device_order}
    schedule: dict[str, tuple[Action, ...]] = {}
    known: dict[int, tuple[Action, ...]] = {}
    for index, device_order in device_orders.items():
        if device_order:
            if id(device_order) not in known:
                kinds, stage_numbers, microbatches = zip(*device_order, strict=True)
                known[id(device_order)] = tuple(map(Action, map(KINDS.__getitem__, kinds), stage_numbers, microbatches))
            name = problem.cluster.devices[index].name
            members = [name, *(member for member in first.get(name, ()) if member not in ordered)]
            schedule.update(dict.fromkeys(members, known[id(device_order)]))
    return Plan(problem=problem.reference(), stages=stages, schedule=schedule)


def make_split_plan(problem: Problem, orders: SplitOrders) -> Plan:
    """A plan of which W, or half of every I, of some stages is on other devices."""
    base, names = orders.candidate.base, [device.name for device in problem.cluster.devices]
    whole = make_stages(problem, base.stage_of, groups=base.groups, modes=base.modes)
    stages = []
    for stage, weight, half in zip(whole, *orders.at.tolist(), strict=True):
        halves = [stage.replicas[0][0], names[half]] if half >= 0 else []
        is_trained = problem.profile.trains(stage.layers)
        stages.append(
            replace(
                stage,
                input_grad_replicas=tuple(Share(group=(name,), numerator=1, denominator=2) for name in halves),
                weight_grad_replicas=(Share(group=(names[weight],)),) if weight >= 0 and is_trained else (),
            )
        )
    return make_plan_from_orders(problem, tuple(stages), device_orders=orders.device_orders)


def make_schedule_instance(problem: Problem, stages: tuple[Stage, ...], *, costs: CostModel) -> ScheduleInstance:
    """The ordering problem that remains once the stages and their devices are fixed.

    Devices are numbered as in the cluster; a group is represented by its first device. Its devices act as one, for
    groups are equal or disjoint.
    """
    laid_out = lay_out_stages(stages, costs=costs)
    index = {device.name: number for number, device in enumerate(problem.cluster.devices)}
    own = {name: row.placed(laid_out.static_bytes.get(name, 0)) for name, row in device_rows(problem.cluster).items()}
    groups = {group[0]: group for stage in stages for group in stage.replicas}
    return ScheduleInstance(
        num_microbatches=problem.num_microbatches,
        replicas=tuple(_replica_in_ticks(each, device=index[each.group[0]]) for each in laid_out.replicas),
        transfers=tuple(map(timed_send, laid_out.transfers)),
        devices=tuple(as_one([own[member] for member in groups.get(name, (name,))]) for name in own),
        synchronisation=laid_out.synchronisation_ns,
        tail=laid_out.tail_ns,
        can_split=problem.options.split_backward,
        objective=problem.options.ranked_by,
    )


def _replica_in_ticks(replica: LaidOutReplica, *, device: int) -> StageReplica:
    cost = replica.cost
    return StageReplica(
        stage=replica.stage,
        device=device,
        has_weight_grad=cost.has_weight_grad,
        **{name: getattr(cost, f"{name}_ns") for name in StageReplica.TIMES},
        **{name: getattr(cost, f"{name}_bytes") for name in StageReplica.SIZES},
    )


def make_orders(problem: Problem, plan: Plan) -> dict[int, DeviceOrder]:
    """The inverse of `make_plan_from_orders`, for all members: per device index, (kind, stage, microbatch) triples."""
    index = {device.name: number for number, device in enumerate(problem.cluster.devices)}
    return {
        index[device]: [(KINDS.index(action.kind), action.stage, action.microbatch) for action in device_order]
        for device, device_order in plan.schedule.items()
    }

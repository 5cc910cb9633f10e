"""The best plan among all there are: every partition, mapping and order, priced and judged by `planner.judge`.

Which stages are allowed, what their actions take and hold, what flows and where: the judge says so, once per mapping.
Orders are searched by `tests.planner.exhaustive`, a player of its own, because speed matters there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, pairwise, permutations, product

import numpy

from planner.actions import Action
from planner.judge.case import Case, Finding
from planner.judge.memory import usable_bytes
from planner.judge.reading import Reading
from planner.judge.rules import groups, options, partition
from planner.plan import SHARDS, Plan, Shard, Stage
from planner.problem import Problem
from tests.planner.exhaustive import explore


def brute_force(problem: Problem) -> int | None:
    """The least objective over every partition, mapping and order; None if no plan fits."""
    best = brute_force_plan(problem)
    return None if best is None else best[0]


def brute_force_plan(problem: Problem) -> tuple[int, Plan] | None:
    """The same with a plan that attains it.

    Tries every monotone map of layers to stages, every assignment of stages to devices or groups of several (replicas
    in every order, and several stages per device, as far as the options allow), every choice of recomputation, and
    every order on every device in which each stage takes its (identical) microbatches in order, with B as well as with
    I and W; a span may be shorter out of order. Groups of a plan are equal or disjoint, as they must be with one stage
    per device.
    """
    candidates, like = [], reading_of(problem, ())
    for stages in every_mapping(problem):
        tables = make_tables(problem, stages, like=like)
        if tables is not None:
            candidates.append((int(explore(*tables, LIMIT, True)[0]), stages, tables))
    candidates.sort(key=lambda candidate: candidate[0])
    for limit in growing_limits(candidates[0][0]) if candidates else ():
        best, found = limit, None
        for bound, stages, tables in candidates:
            if bound < best:
                value, length, path = explore(*tables, best, False)
                if value < best:
                    best, found = int(value), (stages, path[:length])
        if found is not None:
            return best, make_plan(problem, *found)
    return None


def growing_limits(bound: int) -> Iterator[int]:
    """Objectives to stay below, the first just above the bound: a search with a close limit is short."""
    step = 1 + bound // 64
    yield from (bound + step * 2**doubling for doubling in range(7))
    yield LIMIT


LIMIT = 2**60
"""Longer than any plan."""


def every_mapping(problem: Problem, *, has_symmetry: bool = True) -> Iterator[tuple[Stage, ...]]:
    """All stages on all devices that the options allow; of plans that differ by a symmetry of the cluster only one.

    `has_symmetry`: whether such plans are alike to the caller as well.
    """
    options, names = problem.options, [device.name for device in problem.cluster.devices]
    most = len(names) * options.max_stages_per_device
    groups, like = list(every_group(problem)), reading_of(problem, ())
    symmetric = has_symmetry and is_symmetric(problem)
    for parts in every_partition(problem, most):
        for placement in every_placement(groups, len(parts), limit=options.max_stages_per_device):
            first_used = list(dict.fromkeys(name for replicas in placement for group in replicas for name in group))
            if symmetric and first_used != names[: len(first_used)]:
                continue
            ways = [product(every_way(problem, part), every_shard(options.shard_optimizer)) for part in parts]
            cuts = product(*(every_share(problem, len(replicas)) for replicas in placement))
            for flags, samples in product(list(product(*map(list, ways))), list(cuts)):
                sharers = [r for (_, shard), r in zip(flags, placement, strict=True) if shard == "optimizer"]
                if any(len(replicas) == 1 for replicas in sharers):
                    continue
                stages = tuple(
                    Stage(layers=part, replicas=replicas, recompute=flag, shard=shard, samples=taken)
                    for part, replicas, (flag, shard), taken in zip(parts, placement, flags, samples, strict=True)
                )
                if not any(True for _ in broken_rules(problem, stages, like=like)):
                    yield stages


def most_replicas(problem: Problem) -> int:
    """What the options and the cluster allow, whatever a microbatch holds."""
    return min(problem.options.max_replicas or len(problem.cluster.devices), len(problem.cluster.devices))


def has_whole_samples(problem: Problem, replicas: int) -> bool:
    """Whether so many replicas cut no sample, as far as the profile says how many a microbatch has."""
    size = problem.profile.microbatch_size
    return size is None or size % replicas == 0


def unequal_shares(problem: Problem, replicas: int) -> Iterator[tuple[int, ...]]:
    """All ways in which so many replicas may take unequal shares of a microbatch, each a whole number of samples."""
    size = problem.profile.microbatch_size or 0
    for borders in combinations(range(1, size), replicas - 1):
        ends = (0, *borders, size)
        samples = tuple(b - a for a, b in pairwise(ends))
        if len(set(samples)) > 1:
            yield samples


def every_share(problem: Problem, replicas: int) -> list[tuple[int, ...]]:
    """How so many replicas may share a microbatch: equally, where that cuts no sample, and unequally if allowed."""
    unequal = list(unequal_shares(problem, replicas)) if problem.options.unequal_shares else []
    return [*([()] if has_whole_samples(problem, replicas) else []), *unequal]


def every_way(problem: Problem, part: Sequence[str]) -> list[bool | tuple[tuple[str, str], ...]]:
    """How a stage of these layers may recompute: none, all of them fully, or each as it likes."""
    if not problem.options.recompute_layers:
        return [False, True] if problem.options.recompute else [False]
    kinds = [[None, "full", *(entry.kind for entry in problem.profile.by_name[name].recompute_kinds)] for name in part]
    return [tuple((n, k) for n, k in zip(part, ways, strict=True) if k is not None) for ways in product(*kinds)]


def every_shard(choice: str) -> tuple[Shard, ...]:
    """What a stage may do with the optimizer's state, as far as that does not depend on other stages."""
    return SHARDS[: 1 if choice == "never" else 2]


def every_group(problem: Problem) -> Iterator[tuple[tuple[str, ...], ...]]:
    """All replicas in all orders: devices, or groups of one width and of one type each.

    Of the members of a group only the first matters.
    """
    types = {device.name: device.type for device in problem.cluster.devices}
    for width in range(1, min(problem.options.max_width, len(types)) + 1):
        units = [(a, *rest) for a in types for rest in combinations([b for b in types if b != a], width - 1)]
        units = [unit for unit in units if len({types[name] for name in unit}) == 1]
        for r in range(1, most_replicas(problem) + 1):
            if not every_share(problem, r):
                continue
            for replicas in permutations(units, r):
                if len({name for unit in replicas for name in unit}) == r * width:
                    yield replicas


def every_partition(problem: Problem, most: int) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Every map of layers onto stages 0, 1, ... (at most `most`) under which no edge points backward."""
    order = problem.profile.topological_order
    producers = {name: [e.producer for e in problem.profile.edges if e.consumer == name] for name in order}

    def extend(stage_of: dict[str, int]) -> Iterator[dict[str, int]]:
        if len(stage_of) == len(order):
            yield stage_of
            return
        name = order[len(stage_of)]
        for number in range(max((stage_of[p] for p in producers[name]), default=0), min(most, len(order))):
            yield from extend({**stage_of, name: number})

    for stage_of in extend({}):
        count = max(stage_of.values()) + 1
        if set(stage_of.values()) == set(range(count)):
            yield tuple(tuple(name for name in order if stage_of[name] == number) for number in range(count))


def every_placement(
    groups: list[tuple[tuple[str, ...], ...]], count: int, *, limit: int
) -> Iterator[tuple[tuple[tuple[str, ...], ...], ...]]:
    """Replicas for each of `count` stages: no device is used more than `limit` times, and no two groups overlap."""

    def extend(
        chosen: tuple[tuple[tuple[str, ...], ...], ...],
    ) -> Iterator[tuple[tuple[tuple[str, ...], ...], ...]]:
        if len(chosen) == count:
            yield chosen
            return
        used = [unit for replicas in chosen for unit in replicas]
        for replicas in groups:
            if all(
                used.count(unit) < limit and all(other == unit or set(other).isdisjoint(unit) for other in used)
                for unit in replicas
            ):
                yield from extend((*chosen, replicas))

    yield from extend(())


def is_symmetric(problem: Problem) -> bool:
    """Whether any two devices may change places: equal devices, and equal direct links between all, or none needed."""
    cluster = problem.cluster
    if len({(device.type, device.usable_bytes) for device in cluster.devices}) > 1 or problem.options.pinned:
        return False
    num_pairs = len(cluster.devices) * (len(cluster.devices) - 1) // 2
    is_complete = len(cluster.links) == num_pairs and all({x.a, x.b} <= set(cluster.by_name) for x in cluster.links)
    return is_complete and len({replace(x, a="a", b="b") for x in cluster.links}) <= 1


def without_orders(problem: Problem, stages: tuple[Stage, ...]) -> Plan:
    """A plan of which only the stages are known."""
    return Plan(problem=problem.reference(), stages=stages, schedule={})


def reading_of(problem: Problem, stages: tuple[Stage, ...], *, like: Reading | None = None) -> Reading:
    """The judge's reading of these stages; what layers take it looks up where another reading of the problem did."""
    found = Reading(problem, without_orders(problem, stages))
    if like is not None:
        found._measured, found._layer_times = like._measured, like._layer_times
    return found


def broken_rules(problem: Problem, stages: tuple[Stage, ...], *, like: Reading | None = None) -> Iterator[Finding]:
    """What the judge has against these stages, whatever their order."""
    case = Case(problem, without_orders(problem, stages), play=lambda: "nobody knows its order")
    case.reading = reading_of(problem, stages, like=like)
    return chain.from_iterable(rule(case) for rule in (*partition.RULES, *groups.RULES, *options.RULES))


def make_tables(
    problem: Problem, stages: tuple[Stage, ...], *, like: Reading | None = None
) -> tuple[numpy.ndarray, ...] | None:
    """What `explore` needs; None if the state alone does not fit."""
    reading = reading_of(problem, stages, like=like)
    index = {device.name: number for number, device in enumerate(problem.cluster.devices)}
    room = [0] * len(index)
    for group in {group for stage in stages for group in stage.replicas}:
        left = [usable_bytes(problem.cluster.by_name[name]) - reading.static[name] for name in group]
        room[index[group[0]]] = min(left)
    if min(room) < 0:
        return None
    scalars = [
        *(problem.num_microbatches, int(problem.options.split_backward), int(problem.cluster.overlap)),
        *(int(problem.options.synchronisation == "bucketed"), reading.closing_ns),
        int(problem.options.objective == "span"),
    ]
    num_links = 2 * len(problem.cluster.links)
    return (
        numpy.array(scalars),
        numpy.array(make_seats(reading, index)),
        numpy.array(make_legs(reading), dtype=numpy.int64).reshape(-1, 5),
        incidence([() if way is None else way.links for way in reading.channel_routes], num_links),
        numpy.array([ring.duration_ns for ring in reading.rings]),
        incidence([sorted(ring.links) for ring in reading.rings], num_links),
        numpy.array(room),
    )


def make_seats(reading: Reading, index: dict[str, int]) -> list[list[int]]:
    """Per stage replica where it is, what its actions take, and what they hold."""
    found = []
    for number, replica in enumerate(reading.replicas):
        forward, input_grad, weight_grad, whole = reading.own_steps[number]
        held, workspace = forward.after, forward.during - forward.after
        place = replica.stage, index[replica.head], int(reading.has_weight_grad[replica.stage])
        sizes = held, input_grad.during - workspace + held, input_grad.after + held, workspace, weight_grad.during
        sizes = *sizes, whole.during - workspace + held
        found.append([*place, *reading.own_durations[number], *sizes])
    return found


def make_legs(reading: Reading) -> list[list[int]]:
    """Per flow between whom it is, its direction, its time, and its place among those of equal turns."""
    found = list[list[int]]()
    for flow, way in zip(reading.channels, reading.channel_routes, strict=True):
        rank = sum(other[0] == flow.sender and other[2] == flow.is_backward for other in found)
        turn = reading.replicas[flow.sender].number * 1000 + rank
        duration = 0 if way is None else way.time_ns(flow.num_bytes)
        found.append([flow.sender, flow.receiver, int(flow.is_backward), duration, turn])
    return found


def incidence(rows: Sequence[Sequence[int]], num_links: int) -> numpy.ndarray:
    """[row, link] 1 where the row occupies the link."""
    table = numpy.zeros((len(rows), num_links), dtype=numpy.int64)
    for row, links in enumerate(rows):
        table[row, list(links)] = 1
    return table


def make_plan(problem: Problem, stages: tuple[Stage, ...], path: numpy.ndarray) -> Plan:
    """The plan that a path of `explore` (rows: seat, kind, microbatch) stands for."""
    seats = [(s, r) for s, stage in enumerate(stages) for r in range(len(stage.replicas))]
    words: dict[str, list[Action]] = {d: [] for stage in stages for group in stage.replicas for d in group}
    for seat, kind, microbatch in path.tolist():
        stage, replica = seats[seat]
        for device in stages[stage].replicas[replica]:
            words[device].append(Action("FIWB"[kind], stage, microbatch))
    schedule = {device: tuple(word) for device, word in words.items()}
    return Plan(problem=problem.reference(), stages=stages, schedule=schedule)

"""Pipelines and device orders as the compiled methods read and write them (`solver_models.simulation`)."""

from collections.abc import Sequence
from functools import lru_cache
from inspect import unwrap
from itertools import accumulate, chain, count

import numpy as np

from planner.actions import Action, Kind
from planner.baselines.applicability import require_time
from planner.baselines.pipeline import DeviceOrders, Pipeline
from solver_models.device_rows import column, device_table
from solver_models.instance import BACKWARD, INPUT_GRAD, Integers, ShortIntegers
from solver_models.simulation.columns import (
    ACTIVATIONS,
    DIRECTION,
    GRADIENTS,
    HAS_WEIGHT,
    HELD,
    RECEIVER,
    ROUTE,
    SHARED,
    STASH,
    TICKS,
    WEIGHT_STASH,
    WHOLE_BACKWARD,
)
from solver_models.simulation.evaluator import (
    FAR,
    OPTIONS,
    Net,
    NetReplicas,
)
from solver_models.simulation.evaluator import make_net as build_net
from solver_models.simulation.list_schedule import list_schedule

KINDS: tuple[Kind, ...] = ("F", "I", "W", "B")
"""By their numbers in compiled code."""

_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


@lru_cache(maxsize=16)
def make_net(pipeline: Pipeline) -> Net:
    """The stages of a pipeline, each a stage replica; every transfer has a link of its own.

    When an F has ended, its own backward pass hears of it in a transfer that takes no time. Nobody writes into it:
    methods share the nets of the last pipelines.
    """
    costs, numbers = pipeline.costs, range(pipeline.num_stages)
    outlets = [
        [(target, delay, direction) for target, delay in targets] + [(stage, 0, GRADIENTS)] * (direction == ACTIVATIONS)
        for stage in numbers
        for direction, targets in enumerate((pipeline.activations_to[stage], pipeline.gradients_to[stage]))
    ]
    table = np.zeros((SHARED + 1, sum(map(len, outlets))), np.int64)
    rows = column(list(chain.from_iterable(outlets))).reshape(-1, 3)
    table[RECEIVER], table[TICKS], table[DIRECTION] = rows.T
    table[ROUTE], has_link = np.arange(len(rows)), table[TICKS] > 0
    scalars = {"num_microbatches": pipeline.num_microbatches, "num_links": int(has_link.sum()), "split_backward": 1}
    size = np.zeros((HAS_WEIGHT + 1, len(costs)), np.int64)
    size[HELD], size[WEIGHT_STASH] = [c.held_bytes for c in costs], [c.weight_stash_bytes for c in costs]
    size[STASH] = size[WHOLE_BACKWARD] = [cost.stash_bytes for cost in costs]
    size[HAS_WEIGHT] = [cost.has_weight_grad for cost in costs]
    hosts = [cost.clocks or ((0, 0),) * len(KINDS) for cost in costs if any(each.clocks for each in costs)]
    replicas = NetReplicas(
        stage=column(numbers), device=column(pipeline.position_of),
        duration=column([cost.durations_ns for cost in costs]),
        host=column(hosts).reshape(-1, len(KINDS), 2), size=size, devices=device_table(pipeline.devices),
        synchronisation=np.zeros(len(costs), np.int64), scalars=column([scalars.get(name, 0) for name in OPTIONS]),
    )  # fmt: skip
    starts, route_start = column([0, *accumulate(map(len, outlets))]), np.concatenate([[0], np.cumsum(has_link)])
    net: Net = unwrap(build_net)(replicas, starts, table, route_start, np.arange(has_link.sum()))
    return net


def order_by_rule(pipeline: Pipeline, *, kinds: int, splits: bool) -> DeviceOrders:
    """The order in which greedy devices with all the memory that they want run what has waited longest.

    `kinds` as in `preferences`; `splits`: I and W apart, otherwise B. Between two stages one thing is sent at a time in
    each direction.
    """
    require_time(pipeline.has_time)
    net = make_net(pipeline)
    net = net._replace(devices=device_table([device._replace(memory=FAR) for device in pipeline.devices]))
    caps = np.full(pipeline.num_stages, pipeline.num_microbatches)
    played = list_schedule(net, caps, kinds=kinds, splits=splits)
    return name_actions(played.device_orders, played.lengths)


def encode_orders(device_orders: DeviceOrders, *, num_microbatches: int) -> tuple[Integers, Integers]:
    """The actions of all positions as (stage * M + microbatch) * 4 + kind, and where those of each begin."""
    codes = [
        (action.stage * num_microbatches + action.microbatch) * 4 + _NUMBERS[action.kind]
        for device_order in device_orders
        for action in device_order
    ]
    return column(codes), column([0, *accumulate(map(len, device_orders))])


def name_actions(device_orders: Integers | ShortIntegers, lengths: Integers) -> DeviceOrders:
    """Device orders of stage * 4 + kind, whose microbatches come in order; the first of `lengths` of a row count."""
    return [
        _number(device_order[:length].tolist())
        for device_order, length in zip(device_orders, lengths.tolist(), strict=True)
    ]


def _number(codes: Sequence[int]) -> list[Action]:
    """The actions of a position, microbatches counted up; B counts as I."""
    of_code = {code: code - BACKWARD + INPUT_GRAD if code % 4 == BACKWARD else code for code in set(codes)}
    counts = {code: count() for code in of_code.values()}
    numbers = {code: counts[each] for code, each in of_code.items()}
    return [Action(KINDS[code % 4], code // 4, next(numbers[code])) for code in codes]

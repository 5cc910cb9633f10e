"""Pipelines and device orders as the compiled methods read and write them (`solver_models.simulation`)."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, count

import numpy as np

from planner.actions import Action, Kind
from planner.baselines.applicability import require_time
from planner.baselines.pipeline import DeviceOrders, Pipeline
from planner.layout.costs import StageCost
from solver_models.instance import BACKWARD, INPUT_GRAD, Integers, ShortIntegers
from solver_models.simulation.columns import ACTIVATIONS, GRADIENTS
from solver_models.simulation.evaluator import FAR, OPTIONS, Net, by_device
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
    target, delay, direction = column(list(chain.from_iterable(outlets))).reshape(-1, 3).T.copy()
    waits = np.zeros((2, len(costs)), np.int64)
    np.add.at(waits, (direction, target), 1)
    position, nothing = column(pipeline.position_of), np.zeros(len(costs), np.int64)
    device_start, device_replicas = by_device(position, pipeline.num_positions)
    has_link = delay > 0
    scalars = {"num_microbatches": pipeline.num_microbatches, "num_links": int(has_link.sum()), "can_split": 1}
    stash = column([cost.stash_bytes for cost in costs])
    return Net(
        replica_stage=column(numbers), replica_device=position,
        duration=column([[cost.duration_ns(kind) for kind in KINDS] for cost in costs]),
        host=_hosts(costs),
        has_weight=column([int(cost.has_weight_grad) for cost in costs]),
        held=column([cost.held_bytes for cost in costs]), stash=stash, whole_backward=stash,
        weight_stash=column([cost.weight_stash_bytes for cost in costs]), workspace=nothing, weight_workspace=nothing,
        device_start=device_start, device_replicas=device_replicas, budget=column(pipeline.budgets),
        transfer_start=column([0, *accumulate(map(len, outlets))]),
        transfer_direction=direction, transfer_target=target, transfer_duration=delay,
        transfer_route=np.arange(len(delay)), transfer_shared=np.zeros(len(delay), np.int64),
        num_inputs=waits[ACTIVATIONS], num_gradients=waits[GRADIENTS],
        route_start=np.concatenate([[0], np.cumsum(has_link)]), route_links=np.arange(has_link.sum()),
        synchronisation=nothing, scalars=column([scalars.get(name, 0) for name in OPTIONS]),
    )  # fmt: skip


def _hosts(costs: Sequence[StageCost]) -> Integers:
    """[S, 4, 2] the hosts' part of actions; empty where none takes time."""
    has_hosts = any(cost.clocks for cost in costs)
    table = [cost.clocks or ((0, 0),) * len(KINDS) for cost in costs if has_hosts]
    return np.array(table, np.int64).reshape(-1, len(KINDS), 2)


def order_by_rule(pipeline: Pipeline, *, kinds: int, splits: bool) -> DeviceOrders:
    """The order in which greedy devices with all the memory that they want run what has waited longest.

    `kinds` as in `preferences`; `splits`: I and W apart, otherwise B. Between two stages one thing is sent at a time in
    each direction.
    """
    require_time(pipeline.has_time)
    net = make_net(pipeline)._replace(budget=np.full(pipeline.num_positions, FAR))
    caps = np.full(pipeline.num_stages, pipeline.num_microbatches)
    played = list_schedule(net, caps, kinds=kinds, splits=splits)
    return name_actions(played.device_orders, played.lengths)


def column(values: Sequence[object]) -> Integers:
    """The values as an array."""
    return np.array(values, dtype=np.int64)


def encode_orders(device_orders: DeviceOrders, *, num_microbatches: int) -> tuple[Integers, Integers]:
    """The actions of all positions as (stage * M + microbatch) * 4 + kind, and where those of each begin."""
    codes = [
        (action.stage * num_microbatches + action.microbatch) * 4 + _NUMBERS[action.kind]
        for device_order in device_orders
        for action in device_order
    ]
    return column(codes), column([0, *accumulate(map(len, device_orders))])


def name_actions(device_orders: Integers | ShortIntegers, lengths: Integers) -> DeviceOrders:
    """Device orders of stage * 4 + kind, whose microbatches come in order; the first of `lengths` of every row
    count.
    """
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

"""Random small problems some of whose layers exist only wider, and every plan of such a problem whose end matters.

`ends_before` goes through all partitions, groups (overlapping or not) and orders, action by action in the order of
their starts. Transfers are delays that never queue, so what it says of a deadline is no stricter than the contract.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from random import Random

from planner.layout.costs import CostModel
from planner.layout.device_groups import device_rows
from planner.lowering import make_schedule_instance
from planner.plan import DeviceGroup, Stage
from planner.problem import Options, Problem
from profiles.cluster import Cluster, Device
from profiles.model_profile import Edge, Layer, ModelProfile
from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, ScheduleInstance, StageReplica
from tests.strategies import random_layer, random_links


def random_wide_problem(rng: Random) -> Problem:
    """Up to four layers in a chain or tree on two or three devices; some have costs at width 2, or all, only."""
    count = rng.choice([2, 2, 3])
    names = [f"l{number}" for number in range(rng.randint(1, 4 if count == 2 else 3))]
    layers = tuple(_random_layer(rng, name, count=count) for name in names)
    devices = tuple(
        Device(name=f"d{number}", type="gpu", memory_bytes=rng.choice([10**6, 10**6, rng.randint(60, 200)]))
        for number in range(count)
    )
    edges = tuple(
        Edge(producer=rng.choice(names[:number]), consumer=name, bytes=rng.randint(0, 6))
        for number, name in enumerate(names)
        if number
    )
    return Problem(
        profile=ModelProfile(name="wide", layers=layers, edges=edges, optimizer_ns=rng.choice([0, 3])),
        cluster=Cluster(name="few", devices=devices, links=random_links(rng, [each.name for each in devices])),
        num_microbatches=rng.randint(1, 3 if len(names) < 3 else 2),
        options=Options(
            split_backward=rng.random() < 0.7,
            max_stages_per_device=rng.randint(2, 4),
            max_replicas=1,
            max_width=count,
            receive_buffers=rng.randint(0, 1),
        ),
    )


def _random_layer(rng: Random, name: str, *, count: int) -> Layer:
    """Measured at widths 1 and `count`; mostly one of them is taken away."""
    layer = random_layer(rng, name, types=("gpu",), widths=(1, count), size=None)
    kept = rng.choice([(1,), (1,), (count,), (1, count)])
    costs = tuple(replace(cost, backward_ns=None) for cost in layer.costs if cost.width in kept)
    wider = tuple(entry for entry in layer.wider if entry.width in kept)
    return replace(layer, costs=costs, wider=wider)


def every_layout(problem: Problem) -> Iterator[tuple[Stage, ...]]:
    """Every partition on every choice of groups that the options allow."""
    for names in _partitions(problem):
        for groups in product(*(_groups(problem, layers) for layers in names)):
            held = [name for group in groups for name in group]
            if max(map(held.count, held)) <= problem.options.max_stages_per_device:
                pairs = zip(names, groups, strict=True)
                yield tuple(Stage(layers=layers, replicas=(group,)) for layers, group in pairs)


def _partitions(problem: Problem) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Stages numbered along every edge; each cut of the layers into numbered sets once."""
    names = problem.profile.topological_order
    seen = set[tuple[tuple[str, ...], ...]]()
    for numbers in product(range(len(names)), repeat=len(names)):
        stage_of = dict(zip(names, numbers, strict=True))
        is_dense = set(numbers) == set(range(max(numbers) + 1))
        if is_dense and all(stage_of[e.producer] <= stage_of[e.consumer] for e in problem.profile.edges):
            stages = tuple(tuple(n for n in names if stage_of[n] == s) for s in range(max(numbers) + 1))
            key = tuple(sorted(stages))
            if key not in seen:
                seen.add(key)
                yield stages


def _groups(problem: Problem, layers: tuple[str, ...]) -> list[DeviceGroup]:
    """The groups that all layers have costs for, with every first device."""
    names = [device.name for device in problem.cluster.devices]
    found = []
    for width in set.intersection(*(set(problem.widths_of(problem.profile.by_name[n], "gpu")) for n in layers)):
        for group in combinations(names, width):
            found += [(head, *(name for name in group if name != head)) for head in group]
    return found


def ends_before(problem: Problem, deadline: int) -> tuple[Stage, ...] | None:
    """Stages with an order that ends before the deadline; None if no plan does."""
    costs = CostModel(problem)
    for stages in every_layout(problem):
        static = costs.static_bytes(stages)
        room = tuple(row.placed(static.get(name, 0)) for name, row in device_rows(problem.cluster).items())
        instance = replace(make_schedule_instance(problem, stages, costs=costs), devices=room)
        if min(device.memory for device in room) >= 0 and _Orders(problem, stages, instance, deadline).exist():
            return stages
    return None


class _Orders:
    """Depth first through the orders of one layout: a stage on all devices of its group, each with its own memory."""

    def __init__(self, problem: Problem, stages: tuple[Stage, ...], instance: ScheduleInstance, deadline: int) -> None:
        self.instance, self.limit = instance, deadline - instance.tail
        index = {device.name: number for number, device in enumerate(problem.cluster.devices)}
        self.devices = [[index[name] for name in stages[lane.stage].replicas[0]] for lane in instance.replicas]
        """By lane."""
        self.ends: dict[tuple[int, int, int], int] = {}
        """(kind, lane, microbatch) of what was placed; B as I, and as W where there is one."""
        self.free = [0] * len(instance.devices)
        self.held = [0] * len(instance.devices)

    def exist(self) -> bool:
        """Whether any order ends in time; none where a device has more work than that."""
        for device in range(len(self.free)):
            lanes = [lane for lane, own in zip(self.instance.replicas, self.devices, strict=True) if device in own]
            if self.instance.num_microbatches * sum(map(self._work, lanes)) >= self.limit:
                return False
        return self._goes_on(0)

    def _work(self, lane: StageReplica) -> int:
        return lane.forward + (lane.backward if lane.has_weight_grad else lane.input_grad)

    def _goes_on(self, now: int) -> bool:
        """Whether what is left can be placed from `now` on, in order of starts."""
        choices = list(self._choices())
        if not choices:
            return len(self.ends) == self.instance.num_microbatches * sum(
                2 + lane.has_weight_grad for lane in self.instance.replicas
            )
        return any(self._place(*choice) for choice in sorted(choices) if choice[0] >= now)

    def _choices(self) -> Iterator[tuple[int, int, int, int]]:
        """(start, kind, lane, microbatch) of every action whose turn it may be."""
        for number, lane in enumerate(self.instance.replicas):
            for kind in (FORWARD, INPUT_GRAD, WEIGHT_GRAD):
                done = [m for m in range(self.instance.num_microbatches) if (kind, number, m) not in self.ends]
                if not done or (kind == WEIGHT_GRAD and not lane.has_weight_grad):
                    continue
                ready = self._ready(kind, number, done[0])
                if ready is None:
                    continue
                start = max(ready, *(self.free[device] for device in self.devices[number]))
                is_whole = kind == INPUT_GRAD and lane.has_weight_grad
                if not is_whole or self.instance.can_split:
                    yield start, kind, number, done[0]
                if is_whole:
                    yield start, BACKWARD, number, done[0]

    def _ready(self, kind: int, number: int, m: int) -> int | None:
        """When what the action needs is there; None if some of it was not placed yet."""
        needed: list[tuple[tuple[int, int, int], int]] = []
        if kind != FORWARD:
            needed.append(((FORWARD if kind == INPUT_GRAD else INPUT_GRAD, number, m), 0))
        for flow in self.instance.transfers if kind != WEIGHT_GRAD else ():
            if flow.receiver == number and flow.is_backward == (kind == INPUT_GRAD):
                needed.append(((INPUT_GRAD if flow.is_backward else FORWARD, flow.sender, m), flow.duration))
        if any(key not in self.ends for key, _ in needed):
            return None
        return max((self.ends[key] + delay for key, delay in needed), default=0)

    def _place(self, start: int, kind: int, number: int, m: int) -> bool:
        """Whether orders with this action next end in time."""
        lane = self.instance.replicas[number]
        end = start + (lane.forward, lane.input_grad, lane.weight_grad, lane.backward)[kind]
        during = lane.extra(kind) + (lane.held if kind == FORWARD else 0)
        after = {FORWARD: lane.held, INPUT_GRAD: -lane.held, WEIGHT_GRAD: -lane.weight_stash, BACKWARD: -lane.held}[
            kind
        ]
        after += lane.weight_stash if kind == INPUT_GRAD and lane.has_weight_grad else 0
        late, devices = end + self.instance.synchronisation[lane.stage] >= self.limit, self.devices[number]
        if late or any(self.held[d] + during > self.instance.devices[d].memory for d in devices):
            return False
        keys = [(kind, number, m)] if kind != BACKWARD else [(INPUT_GRAD, number, m), (WEIGHT_GRAD, number, m)]
        before = [(device, self.free[device]) for device in devices]
        for device in devices:
            self.free[device], self.held[device] = end, self.held[device] + after
        self.ends.update(dict.fromkeys(keys, end))
        found = self._goes_on(start)
        for device, free in before:
            self.free[device], self.held[device] = free, self.held[device] - after
        for key in keys:
            del self.ends[key]
        return found

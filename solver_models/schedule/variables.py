"""What the order model decides: when every action and queued transfer starts, and which backward passes are fused.

Each variable comes with the way to read its value from a played schedule, so that a hint always covers all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ortools.sat.python.cp_model import CpModel, IntervalVar, IntVar

from solver_models.instance import ScheduleInstance, StageReplica, Transfer
from solver_models.schedule.evaluation import TimedOrders

_Expression = Any
"""A linear expression over variables, or a number."""

Reader = Callable[[TimedOrders], int]
"""The value of a variable in a played schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionVariables:
    """One action."""

    start: IntVar
    """When it starts."""
    end: _Expression
    """When it ends."""
    interval: IntervalVar
    """From start to end; absent for the W of a fused backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTasks:
    """The actions of one lane, by microbatch."""

    forward: tuple[ActionVariables, ...]
    """F."""
    backward: tuple[ActionVariables, ...]
    """I or B."""
    weight_grad: tuple[ActionVariables, ...]
    """W; empty if the lane has none, or only fused ones. The W of a fused backward has size 0 and no meaning."""
    fused: tuple[IntVar, ...]
    """Whether the backward is a B; empty if there is no choice."""


def has_choice(instance: ScheduleInstance, lane: StageReplica) -> bool:
    """Whether B may be better than I and W: only where fusing gains time, or memory."""
    gains = lane.backward < lane.input_grad + lane.weight_grad or lane.whole_backward < lane.stash
    return instance.can_split and lane.has_weight_grad and gains


def is_fused_always(instance: ScheduleInstance, lane: StageReplica) -> bool:
    """Whether the lane has only B."""
    return lane.has_weight_grad and not instance.can_split


def is_counted(instance: ScheduleInstance, lanes: Sequence[StageReplica]) -> bool:
    """Whether a device with these lanes holds a number of equal stashes, each given back all at once."""
    if len(lanes) != 1 or lanes[0].stash > lanes[0].held or has_choice(instance, lanes[0]):
        return False
    has_weight_grad = lanes[0].has_weight_grad and instance.can_split
    return not has_weight_grad or lanes[0].weight_stash in (0, lanes[0].held)


def _shortest_backward(instance: ScheduleInstance, lane: StageReplica) -> int:
    """Least ticks between the ends of two I or B of a lane."""
    if is_fused_always(instance, lane):
        return lane.backward
    return min(lane.input_grad, lane.backward) if has_choice(instance, lane) else lane.input_grad


def shared_links(instance: ScheduleInstance) -> set[int]:
    """Links that more than one flow uses."""
    users: dict[int, int] = {}
    for flow in instance.flows:
        for link in set(flow.links) if flow.duration else ():
            users[link] = users.get(link, 0) + 1
    return {link for link, count in users.items() if count > 1}


def queued_flows(instance: ScheduleInstance) -> list[int]:
    """Flows whose transfers may have to wait: a link is shared, or they take longer than their sender's next action."""
    shared = shared_links(instance)
    queued = []
    for number, flow in enumerate(instance.flows):
        lane = instance.lanes[flow.sender]
        pause = _shortest_backward(instance, lane) if flow.is_backward else lane.forward
        if flow.links and flow.duration and (flow.duration > pause or not shared.isdisjoint(flow.links)):
            queued.append(number)
    return queued


class Variables:
    """The variables of one model, each with its reader."""

    def __init__(self, model: CpModel, instance: ScheduleInstance, *, horizon: int) -> None:
        self.model, self.instance, self.horizon = model, instance, horizon
        self.readers: list[tuple[IntVar, Reader]] = []
        self.lanes = tuple(self._make_lane(number) for number in range(len(instance.lanes)))
        self.sends = {number: self._make_sends(number) for number in queued_flows(instance)}
        self.objective = self.number(instance.objective, reader=lambda played: played.objective)

    def number(self, name: str, *, reader: Reader) -> IntVar:
        """A new variable between 0 and the horizon."""
        variable = self.model.new_int_var(0, self.horizon, name)
        self.readers.append((variable, reader))
        return variable

    def switch(self, name: str, *, reader: Reader) -> IntVar:
        """A new variable that is 0 or 1."""
        variable = self.model.new_bool_var(name)
        self.readers.append((variable, reader))
        return variable

    def ready(self, flow: Transfer, microbatch: int) -> _Expression:
        """When a transfer could start: the end of the action it follows."""
        lane = self.lanes[flow.sender]
        return (lane.backward if flow.is_backward else lane.forward)[microbatch].end

    def arrival(self, number: int, microbatch: int) -> _Expression:
        """When what flow `number` carries is there."""
        flow = self.instance.flows[number]
        sends = self.sends.get(number)
        start = self.ready(flow, microbatch) if sends is None else sends[microbatch].start
        return start + flow.duration

    def _make_lane(self, number: int) -> LaneTasks:
        lane = self.instance.lanes[number]
        microbatches = range(self.instance.num_microbatches)
        forward = tuple(self._forward(number, m) for m in microbatches)
        fused: tuple[IntVar, ...] = ()
        if has_choice(self.instance, lane):
            fused = tuple(
                self.switch(f"{lane.stage}B{m}@{lane.device}?", reader=lambda played, m=m: played.is_fused(number, m))  # type: ignore[misc]
                for m in microbatches
            )
        backward = tuple(self._backward(number, m, fused=fused) for m in microbatches)
        has_weight = lane.has_weight_grad and not is_fused_always(self.instance, lane)
        weight_grad = tuple(self._weight_grad(number, m, fused=fused) for m in microbatches) if has_weight else ()
        return LaneTasks(forward=forward, backward=backward, weight_grad=weight_grad, fused=fused)

    def _forward(self, number: int, microbatch: int) -> ActionVariables:
        lane = self.instance.lanes[number]
        name = f"{lane.stage}F{microbatch}@{lane.device}"
        start = self.number(name, reader=lambda played: played.starts[0, number, microbatch])
        return self._task(start, lane.forward, name=name)

    def _backward(self, number: int, microbatch: int, *, fused: tuple[IntVar, ...]) -> ActionVariables:
        lane = self.instance.lanes[number]
        name = f"{lane.stage}I{microbatch}@{lane.device}"
        start = self.number(name, reader=lambda played: played.backward_start(number, microbatch))
        if is_fused_always(self.instance, lane):
            return self._task(start, lane.backward, name=name)
        if not fused:
            return self._task(start, lane.input_grad, name=name)
        end = self.number(f"{name} end", reader=lambda played: played.backward_end(number, microbatch))
        size = lane.input_grad + (lane.backward - lane.input_grad) * fused[microbatch]
        return ActionVariables(start=start, end=end, interval=self.model.new_interval_var(start, size, end, name))

    def _weight_grad(self, number: int, microbatch: int, *, fused: tuple[IntVar, ...]) -> ActionVariables:
        lane = self.instance.lanes[number]
        name = f"{lane.stage}W{microbatch}@{lane.device}"
        start = self.number(name, reader=lambda played: played.weight_start(number, microbatch))
        if not fused:
            return self._task(start, lane.weight_grad, name=name)
        is_split = fused[microbatch].negated()
        interval = self.model.new_optional_fixed_size_interval_var(start, lane.weight_grad, is_split, name)
        return ActionVariables(start=start, end=start + lane.weight_grad * is_split, interval=interval)

    def _make_sends(self, number: int) -> tuple[ActionVariables, ...]:
        flow = self.instance.flows[number]
        tasks = []
        for m in range(self.instance.num_microbatches):
            name = f"flow{number}m{m}"
            start = self.number(name, reader=lambda played, m=m: played.sends[number, m])  # type: ignore[misc]
            tasks.append(self._task(start, flow.duration, name=name))
        return tuple(tasks)

    def _task(self, start: IntVar, size: int, *, name: str) -> ActionVariables:
        interval = self.model.new_fixed_size_interval_var(start, size, name)
        return ActionVariables(start=start, end=start + size, interval=interval)

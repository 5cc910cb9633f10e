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
    """CP-SAT's variables of one action on its device."""

    start: IntVar
    """Start in ticks."""
    end: _Expression
    """End in ticks."""
    interval: IntervalVar
    """From start to end; absent for the W of a fused backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTasks:
    """The actions of one stage replica, by microbatch."""

    forward: tuple[ActionVariables, ...]
    """F."""
    backward: tuple[ActionVariables, ...]
    """I or B."""
    weight_grad: tuple[ActionVariables, ...]
    """W; empty if the stage replica has none, or only fused ones. The W of a fused backward has size 0 and no
    meaning."""
    fused: tuple[IntVar, ...]
    """Whether the backward is a B; empty if there is no choice."""


def has_choice(instance: ScheduleInstance, replica: StageReplica) -> bool:
    """Whether B may be better than I and W: only where fusing gains time, or memory."""
    savings = replica.backward < replica.input_grad + replica.weight_grad or replica.whole_backward < replica.stash
    return instance.can_split and replica.has_weight_grad and savings


def is_fused_always(instance: ScheduleInstance, replica: StageReplica) -> bool:
    """Whether the stage replica has only B."""
    return replica.has_weight_grad and not instance.can_split


def is_counted(instance: ScheduleInstance, replicas: Sequence[StageReplica]) -> bool:
    """Whether a device with these stage replicas holds a number of equal stashes, each given back all at once."""
    if len(replicas) != 1 or replicas[0].stash > replicas[0].held or has_choice(instance, replicas[0]):
        return False
    has_weight_grad = replicas[0].has_weight_grad and instance.can_split
    return not has_weight_grad or replicas[0].weight_stash in (0, replicas[0].held)


def _shortest_backward(instance: ScheduleInstance, replica: StageReplica) -> int:
    """Least ticks between the ends of two I or B of a stage replica."""
    if is_fused_always(instance, replica):
        return replica.backward
    return min(replica.input_grad, replica.backward) if has_choice(instance, replica) else replica.input_grad


def shared_links(instance: ScheduleInstance) -> set[int]:
    """Links that more than one transfer uses."""
    users: dict[int, int] = {}
    for transfer in instance.transfers:
        for link in set(transfer.links) if transfer.duration else ():
            users[link] = users.get(link, 0) + 1
    return {link for link, count in users.items() if count > 1}


def queued_transfers(instance: ScheduleInstance) -> list[int]:
    """Transfers that may have to wait: a link is shared, or they take longer than their sender's next action."""
    shared = shared_links(instance)
    queued = []
    for number, transfer in enumerate(instance.transfers):
        replica = instance.replicas[transfer.sender]
        pause = _shortest_backward(instance, replica) if transfer.is_backward else replica.forward
        if (
            transfer.links
            and transfer.duration
            and (transfer.duration > pause or not shared.isdisjoint(transfer.links))
        ):
            queued.append(number)
    return queued


class Variables:
    """The variables of one model, each with its reader."""

    def __init__(self, model: CpModel, instance: ScheduleInstance, *, horizon: int) -> None:
        self.model, self.instance, self.horizon = model, instance, horizon
        self.readers: list[tuple[IntVar, Reader]] = []
        self.replicas = tuple(self._make_replica(number) for number in range(len(instance.replicas)))
        self.sends = {number: self._make_sends(number) for number in queued_transfers(instance)}
        self.objective = self.number(instance.objective, reader=lambda played: played.objective)

    def number(self, name: str, *, reader: Reader, least: int = 0) -> IntVar:
        """A new variable between the least and the horizon."""
        variable = self.model.new_int_var(least, self.horizon, name)
        self.readers.append((variable, reader))
        return variable

    def switch(self, name: str, *, reader: Reader) -> IntVar:
        """A new variable that is 0 or 1."""
        variable = self.model.new_bool_var(name)
        self.readers.append((variable, reader))
        return variable

    def ready(self, transfer: Transfer, microbatch: int) -> _Expression:
        """When a transfer could start: the end of the action it follows."""
        replica = self.replicas[transfer.sender]
        return (replica.backward if transfer.is_backward else replica.forward)[microbatch].end

    def arrival(self, number: int, microbatch: int) -> _Expression:
        """When what flow `number` carries is there."""
        transfer = self.instance.transfers[number]
        sends = self.sends.get(number)
        start = self.ready(transfer, microbatch) if sends is None else sends[microbatch].start
        return start + transfer.duration

    def _make_replica(self, number: int) -> ReplicaTasks:
        replica = self.instance.replicas[number]
        microbatches = range(self.instance.num_microbatches)
        forward = tuple(self._forward(number, m) for m in microbatches)
        fused: tuple[IntVar, ...] = ()
        if has_choice(self.instance, replica):
            fused = tuple(
                self.switch(
                    f"{replica.stage}B{m}@{replica.device}?",
                    reader=lambda played, m=m: played.is_fused(number, m),  # type: ignore[misc]
                )
                for m in microbatches
            )
        backward = tuple(self._backward(number, m, fused=fused) for m in microbatches)
        has_weight = replica.has_weight_grad and not is_fused_always(self.instance, replica)
        weight_grad = tuple(self._weight_grad(number, m, fused=fused) for m in microbatches) if has_weight else ()
        return ReplicaTasks(forward=forward, backward=backward, weight_grad=weight_grad, fused=fused)

    def _forward(self, number: int, microbatch: int) -> ActionVariables:
        replica = self.instance.replicas[number]
        name = f"{replica.stage}F{microbatch}@{replica.device}"
        free = self.instance.free_from(replica)
        start = self.number(name, reader=lambda played: played.starts[0, number, microbatch], least=free)
        return self._task(start, replica.forward, name=name)

    def _backward(self, number: int, microbatch: int, *, fused: tuple[IntVar, ...]) -> ActionVariables:
        replica = self.instance.replicas[number]
        name = f"{replica.stage}I{microbatch}@{replica.device}"
        start = self.number(name, reader=lambda played: played.backward_start(number, microbatch))
        if is_fused_always(self.instance, replica):
            return self._task(start, replica.backward, name=name)
        if not fused:
            return self._task(start, replica.input_grad, name=name)
        end = self.number(f"{name} end", reader=lambda played: played.backward_end(number, microbatch))
        size = replica.input_grad + (replica.backward - replica.input_grad) * fused[microbatch]
        return ActionVariables(start=start, end=end, interval=self.model.new_interval_var(start, size, end, name))

    def _weight_grad(self, number: int, microbatch: int, *, fused: tuple[IntVar, ...]) -> ActionVariables:
        replica = self.instance.replicas[number]
        name = f"{replica.stage}W{microbatch}@{replica.device}"
        start = self.number(name, reader=lambda played: played.weight_start(number, microbatch))
        if not fused:
            return self._task(start, replica.weight_grad, name=name)
        is_split = fused[microbatch].negated()
        interval = self.model.new_optional_fixed_size_interval_var(start, replica.weight_grad, is_split, name)
        return ActionVariables(start=start, end=start + replica.weight_grad * is_split, interval=interval)

    def _make_sends(self, number: int) -> tuple[ActionVariables, ...]:
        transfer = self.instance.transfers[number]
        tasks = []
        for m in range(self.instance.num_microbatches):
            name = f"flow{number}m{m}"
            start = self.number(name, reader=lambda played, m=m: played.sends[number, m])  # type: ignore[misc]
            tasks.append(self._task(start, transfer.duration, name=name))
        return tuple(tasks)

    def _task(self, start: IntVar, size: int, *, name: str) -> ActionVariables:
        interval = self.model.new_fixed_size_interval_var(start, size, name)
        return ActionVariables(start=start, end=start + size, interval=interval)

"""Starts in a solved model to device orders."""

from collections.abc import Callable

from ortools.sat.python.cp_model import IntVar

from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, DeviceOrder, ScheduleInstance
from solver_models.schedule.evaluation import duration_of
from solver_models.schedule.variables import Variables, is_fused_always

Value = Callable[[IntVar], int]
"""The value that the solver gave a variable."""


def decode(instance: ScheduleInstance, variables: Variables, *, value: Value) -> dict[int, DeviceOrder]:
    """Per device, its actions by start; actions of no length come before what starts when they end."""
    timed: dict[int, list[tuple[int, int, int, int, tuple[int, int, int]]]] = {}
    num_stages = 1 + max(replica.stage for replica in instance.replicas)
    for number, replica in enumerate(instance.replicas):
        for kind, microbatch, start in _actions(instance, variables, number=number, value=value):
            rank = (
                replica.stage
                if kind == FORWARD
                else 2 * num_stages - replica.stage + num_stages * (kind == WEIGHT_GRAD)
            )
            action = start, start + duration_of(replica, kind), microbatch, rank, (kind, replica.stage, microbatch)
            timed.setdefault(replica.device, []).append(action)
    return {device: [action for *_, action in sorted(own)] for device, own in sorted(timed.items())}


def _actions(
    instance: ScheduleInstance, variables: Variables, *, number: int, value: Value
) -> list[tuple[int, int, int]]:
    """(kind, microbatch, start) of every action of a stage replica."""
    own = variables.replicas[number]
    always = is_fused_always(instance, instance.replicas[number])
    fused = [always or bool(own.fused and value(own.fused[m])) for m in range(instance.num_microbatches)]
    actions = [(FORWARD, m, value(task.start)) for m, task in enumerate(own.forward)]
    actions += [(BACKWARD if fused[m] else INPUT_GRAD, m, value(task.start)) for m, task in enumerate(own.backward)]
    actions += [(WEIGHT_GRAD, m, value(task.start)) for m, task in enumerate(own.weight_grad) if not fused[m]]
    return actions

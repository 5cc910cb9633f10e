"""Whether device orders stay within the memory of every device (contract, "Memory")."""

from solver_models.instance import FORWARD, INPUT_GRAD, WEIGHT_GRAD, DeviceOrder, ScheduleInstance, StageReplica


def fits(instance: ScheduleInstance, device_orders: dict[int, DeviceOrder]) -> bool:
    """Whether no device ever holds more than its budget when it runs its device order."""
    replica_of = {(device, replica.stage): replica for replica in instance.replicas for device in replica.devices}
    for device, device_order in device_orders.items():
        held = 0
        for kind, stage, _ in device_order:
            during, after = _steps(replica_of[device, stage], kind)
            if held + during > instance.budgets[device]:
                return False
            held += after
    return True


def _steps(replica: StageReplica, kind: int) -> tuple[int, int]:
    """Units that an action adds while it runs, and for good."""
    if kind == FORWARD:
        return replica.held + replica.extra(kind), replica.held
    if kind == WEIGHT_GRAD:
        return replica.extra(kind), -replica.weight_stash
    return replica.extra(kind), (replica.weight_stash if kind == INPUT_GRAD else 0) - replica.held

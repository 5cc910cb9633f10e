"""Whether device orders stay within the memory of every device (contract, "Memory")."""

from solver_models.instance import DeviceOrder, ScheduleInstance


def fits(instance: ScheduleInstance, device_orders: dict[int, DeviceOrder]) -> bool:
    """Whether no device ever holds more than its budget when it runs its device order."""
    replica_of = {(device, replica.stage): replica for replica in instance.replicas for device in replica.devices}
    for device, device_order in device_orders.items():
        held = 0
        for kind, stage, _ in device_order:
            during, after = replica_of[device, stage].steps(kind)
            if held + during > instance.devices[device].memory:
                return False
            held += after
    return True

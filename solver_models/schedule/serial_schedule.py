"""The order that fits in memory if any does: one microbatch after the other."""

from solver_models.instance import (
    BACKWARD,
    FORWARD,
    INPUT_GRAD,
    WEIGHT_GRAD,
    DeviceOrder,
    ScheduleInstance,
    StageReplica,
)


def one_by_one(instance: ScheduleInstance) -> dict[int, DeviceOrder]:
    """Per device, each microbatch through all its stage replicas, by stage, and back before the next."""
    device_orders: dict[int, DeviceOrder] = {replica.device: [] for replica in instance.replicas}

    def add(replica: StageReplica, kind: int, microbatch: int) -> None:
        device_orders[replica.device].append((kind, replica.stage, microbatch))

    for microbatch in range(instance.num_microbatches):
        for replica in instance.replicas:
            add(replica, FORWARD, microbatch)
        for replica in reversed(instance.replicas):
            is_fused = replica.has_weight_grad and not instance.can_split
            add(replica, BACKWARD if is_fused else INPUT_GRAD, microbatch)
            if replica.has_weight_grad and not is_fused:
                add(replica, WEIGHT_GRAD, microbatch)
    return device_orders

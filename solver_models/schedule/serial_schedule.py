"""The order that fits in memory if any does: one microbatch after the other."""

from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, ScheduleInstance, StageReplica, Word


def one_by_one(instance: ScheduleInstance) -> dict[int, Word]:
    """Per device, each microbatch through all its lanes and back before the next; lanes are ordered by stage."""
    words: dict[int, Word] = {device: [] for lane in instance.lanes for device in lane.devices}

    def add(lane: StageReplica, kind: int, microbatch: int) -> None:
        for device in lane.devices:
            words[device].append((kind, lane.stage, microbatch))

    for microbatch in range(instance.num_microbatches):
        for lane in instance.lanes:
            add(lane, FORWARD, microbatch)
        for lane in reversed(instance.lanes):
            is_fused = lane.has_weight_grad and not instance.can_split
            add(lane, BACKWARD if is_fused else INPUT_GRAD, microbatch)
            if lane.has_weight_grad and not is_fused:
                add(lane, WEIGHT_GRAD, microbatch)
    return words

"""The order that fits in memory if any does: one microbatch after the other."""

from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, ScheduleInstance, Word


def one_by_one(instance: ScheduleInstance) -> dict[int, Word]:
    """Per device, each microbatch through all its lanes and back before the next; lanes are ordered by stage."""
    words: dict[int, Word] = {lane.device: [] for lane in instance.lanes}
    for microbatch in range(instance.num_microbatches):
        for lane in instance.lanes:
            words[lane.device].append((FORWARD, lane.stage, microbatch))
        for lane in reversed(instance.lanes):
            is_fused = lane.has_weight_grad and not instance.can_split
            words[lane.device].append((BACKWARD if is_fused else INPUT_GRAD, lane.stage, microbatch))
            if lane.has_weight_grad and not is_fused:
                words[lane.device].append((WEIGHT_GRAD, lane.stage, microbatch))
    return words

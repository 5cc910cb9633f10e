"""Whether words stay within the memory of every device (contract, "Memory")."""

from solver_models.instance import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ScheduleInstance, StageReplica, Word


def fits(instance: ScheduleInstance, words: dict[int, Word]) -> bool:
    """Whether no device ever holds more than its budget when it runs its word."""
    lane_of = {(device, lane.stage): lane for lane in instance.lanes for device in lane.devices}
    for device, word in words.items():
        held = 0
        for kind, stage, _ in word:
            during, after = _steps(lane_of[device, stage], kind)
            if held + during > instance.budgets[device]:
                return False
            held += after
    return True


def _steps(lane: StageReplica, kind: int) -> tuple[int, int]:
    """Units that an action adds while it runs, and for good."""
    if kind == FORWARD:
        return lane.held + lane.extra(kind), lane.held
    if kind == WEIGHT_GRAD:
        return lane.extra(kind), -lane.weight_stash
    return lane.extra(kind), (lane.weight_stash if kind == INPUT_GRAD else 0) - lane.held

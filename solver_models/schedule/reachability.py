"""Which lanes a microbatch passes before which others."""

from solver_models.instance import ScheduleInstance


def descendants(instance: ScheduleInstance, lane: int) -> set[int]:
    """Lanes whose F of a microbatch can only come after that of `lane`."""
    after: dict[int, list[int]] = {}
    for flow in instance.flows:
        if not flow.is_backward:
            after.setdefault(flow.sender, []).append(flow.receiver)
    found: set[int] = set()
    open_lanes = [lane]
    while open_lanes:
        for receiver in after.get(open_lanes.pop(), []):
            if receiver not in found:
                found.add(receiver)
                open_lanes.append(receiver)
    return found


def leading_lanes(instance: ScheduleInstance) -> list[int]:
    """Lanes whose first F is the first action of their device in every schedule."""
    leading = []
    for number, lane in enumerate(instance.lanes):
        own = set(lane.devices)
        others = {n for n, other in enumerate(instance.lanes) if not own.isdisjoint(other.devices) and n != number}
        if others <= descendants(instance, number):
            leading.append(number)
    return leading


def earliest_forwards(instance: ScheduleInstance) -> list[int]:
    """Per lane, the ticks before its first F can start: the longest chain of F and transfers that leads to it."""
    earliest = [0] * len(instance.lanes)
    for number in sorted(range(len(earliest)), key=lambda number: instance.lanes[number].stage):
        for flow in instance.flows:
            if flow.sender == number and not flow.is_backward:
                arrival = earliest[number] + instance.lanes[number].forward + flow.duration
                earliest[flow.receiver] = max(earliest[flow.receiver], arrival)
    return earliest

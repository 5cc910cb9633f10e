"""How long a microbatch takes to every stage replica."""

from solver_models.instance import ScheduleInstance


def earliest_forwards(instance: ScheduleInstance) -> list[int]:
    """Per stage replica, the ticks before its first F can start: the longest chain of F and transfers that leads to
    it, or the ticks before its device is free.
    """
    earliest = [instance.free_from(replica) for replica in instance.replicas]
    for number in sorted(range(len(earliest)), key=lambda number: instance.replicas[number].stage):
        for transfer in instance.transfers:
            if transfer.sender == number and not transfer.is_backward:
                arrival = earliest[number] + instance.replicas[number].forward + transfer.duration
                earliest[transfer.receiver] = max(earliest[transfer.receiver], arrival)
    return earliest

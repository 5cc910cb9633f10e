"""Which stage replicas a microbatch passes before which others."""

from solver_models.instance import ScheduleInstance


def descendants(instance: ScheduleInstance, replica: int) -> set[int]:
    """Stage replicas whose F of a microbatch can only come after that of `replica`."""
    after: dict[int, list[int]] = {}
    for transfer in instance.transfers:
        if not transfer.is_backward:
            after.setdefault(transfer.sender, []).append(transfer.receiver)
    found: set[int] = set()
    open_replicas = [replica]
    while open_replicas:
        for receiver in after.get(open_replicas.pop(), []):
            if receiver not in found:
                found.add(receiver)
                open_replicas.append(receiver)
    return found


def leading_replicas(instance: ScheduleInstance) -> list[int]:
    """Stage replicas whose first F is the first action of their device in every schedule."""
    leading = []
    for number, replica in enumerate(instance.replicas):
        others = {n for n, other in enumerate(instance.replicas) if other.device == replica.device and n != number}
        if others <= descendants(instance, number):
            leading.append(number)
    return leading


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

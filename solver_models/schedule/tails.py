"""How long it takes from the end of an action to the end of the iteration, if the order of what follows is kept."""

from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD
from solver_models.schedule.evaluation import TimedOrders, duration_of

Key = tuple[int, int, int]
"""(kind, stage replica, microbatch)."""


class Tails:
    """Longest paths backward over the actions that are kept in order; queues on links are left out."""

    def __init__(self, played: TimedOrders, kept: set[Key]) -> None:
        self.played, self.instance, self.kept = played, played.instance, kept
        self.sent: dict[tuple[bool, int], list[tuple[int, int]]] = {}
        for transfer in self.instance.transfers:
            self.sent.setdefault((transfer.is_backward, transfer.sender), []).append(
                (transfer.receiver, transfer.duration)
            )
        self.first: dict[int, int] = {}
        """Per device, the tail from before its first kept action."""
        self.before: dict[Key, int] = {}
        """Per kept action, the tail from its start."""
        for key in sorted(kept, key=lambda key: _rank(played, key), reverse=True):
            replica = self.instance.replicas[key[1]]
            own = duration_of(replica, key[0]) + self.after(key)
            self.before[key] = self.first[replica.device] = own

    def after(self, key: Key) -> int:
        """Ticks from the end of an action to that of the iteration, as kept actions and its own stage replica say."""
        replica = self.instance.replicas[key[1]]
        ends = [self.instance.synchronisation[replica.stage] + self.instance.tail, self.first.get(replica.device, 0)]
        ends += [delay + self.before.get(waiting, 0) for waiting, delay in self.waiting(key)]
        return max(ends)

    def waiting(self, key: Key) -> list[tuple[Key, int]]:
        """The actions of other kinds and stage replicas that wait for an action, and for how long after its end."""
        kind, number, microbatch = key
        backward = BACKWARD if self.played.is_fused(number, microbatch) else INPUT_GRAD
        if kind == WEIGHT_GRAD:
            return []
        found = [((backward, number, microbatch), 0)] if kind == FORWARD else []
        if kind == INPUT_GRAD and self.instance.replicas[number].has_weight_grad:
            found.append(((WEIGHT_GRAD, number, microbatch), 0))
        for receiver, duration in self.sent.get((kind != FORWARD, number), []):
            other = BACKWARD if self.played.is_fused(receiver, microbatch) else INPUT_GRAD
            found.append(((FORWARD if kind == FORWARD else other, receiver, microbatch), duration))
        return found


def _rank(played: TimedOrders, key: Key) -> tuple[int, int, int, int]:
    """An order in which every action comes after those that it waits for."""
    kind, number, microbatch = key
    start = played.starts[key]
    replica = played.instance.replicas[number]
    stages = len(played.instance.synchronisation)
    step = replica.stage if kind == FORWARD else 2 * stages - replica.stage + stages * (kind == WEIGHT_GRAD)
    return start, start + duration_of(replica, kind), microbatch, step

"""Times at which given device orders play, all as early as the rules allow (contract, "Time")."""

from dataclasses import dataclass

import numpy as np

from solver_models.instance import (
    BACKWARD,
    FORWARD,
    INPUT_GRAD,
    WEIGHT_GRAD,
    DeviceOrder,
    ScheduleInstance,
    StageReplica,
    Transfer,
)
from solver_models.simulation.recorded_play import PlayableSchedule, play_schedule


def duration_of(replica: StageReplica, kind: int) -> int:
    """Ticks of an action of `kind` on `replica`."""
    return (replica.forward, replica.input_grad, replica.weight_grad, replica.backward)[kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOrders:
    """Device orders with their times."""

    instance: ScheduleInstance
    starts: dict[tuple[int, int, int], int]
    """Start of every action: (kind, stage replica, microbatch)."""
    sends: dict[tuple[int, int], int]
    """Start of every transfer: (transfer, microbatch)."""

    def is_fused(self, replica: int, microbatch: int) -> bool:
        """Whether I and W of this microbatch are one B."""
        return (BACKWARD, replica, microbatch) in self.starts

    def backward_start(self, replica: int, microbatch: int) -> int:
        """Start of I or B."""
        kind = BACKWARD if self.is_fused(replica, microbatch) else INPUT_GRAD
        return self.starts[kind, replica, microbatch]

    def backward_end(self, replica: int, microbatch: int) -> int:
        """End of I or B."""
        kind = BACKWARD if self.is_fused(replica, microbatch) else INPUT_GRAD
        return self.starts[kind, replica, microbatch] + duration_of(self.instance.replicas[replica], kind)

    def ready(self, transfer: Transfer, microbatch: int) -> int:
        """End of the action whose result a transfer carries, which begins then inside a device."""
        if transfer.is_backward:
            return self.backward_end(transfer.sender, microbatch)
        return self.starts[FORWARD, transfer.sender, microbatch] + self.instance.replicas[transfer.sender].forward

    def weight_start(self, replica: int, microbatch: int) -> int:
        """Start of W; where there is none, the end of the last W before it."""
        for earlier in range(microbatch, -1, -1):
            start = self.starts.get((WEIGHT_GRAD, replica, earlier))
            if start is not None:
                return start if earlier == microbatch else start + self.instance.replicas[replica].weight_grad
        return 0

    def kept(self, replica: int, microbatch: int) -> int:
        """Ticks from the end of I to the end of W; 0 if both are one B."""
        if self.is_fused(replica, microbatch):
            return 0
        end = self.weight_start(replica, microbatch) + self.instance.replicas[replica].weight_grad
        return end - self.backward_end(replica, microbatch)

    def replica_end(self, replica: int) -> int:
        """End of the last action of a stage replica."""
        count, length = self.instance.num_microbatches, self.instance.replicas[replica].weight_grad
        weight_grads = (self.starts.get((WEIGHT_GRAD, replica, number), -length) for number in range(count))
        return max(self.backward_end(replica, count - 1), max(weight_grads) + length)

    @property
    def makespan(self) -> int:
        """End of the iteration."""
        replicas = enumerate(self.instance.replicas)
        return (
            max(self.replica_end(n) + self.instance.synchronisation[replica.stage] for n, replica in replicas)
            + self.instance.tail
        )

    @property
    def span(self) -> int:
        """Longest time from first to last action of a device."""
        spans: dict[int, tuple[int, int]] = {}
        for number, replica in enumerate(self.instance.replicas):
            first, last = spans.get(replica.device, (self.starts[FORWARD, number, 0], 0))
            spans[replica.device] = min(first, self.starts[FORWARD, number, 0]), max(last, self.replica_end(number))
        return max(last - first for first, last in spans.values())

    @property
    def objective(self) -> int:
        """Makespan or span, whichever is minimised."""
        return self.span if self.instance.objective == "span" else self.makespan


def play(instance: ScheduleInstance, device_orders: dict[int, DeviceOrder]) -> TimedOrders | None:
    """Play `device_orders`; None if they are not every action once, or deadlock."""
    replica_of = {(replica.device, replica.stage): n for n, replica in enumerate(instance.replicas)}
    actions = _actions(in_order(device_orders), replica_of=replica_of)
    if actions is None or not _is_complete(instance, actions):
        return None
    schedule = _make_schedule(instance, actions)
    times = play_schedule(schedule)
    if (times.start < 0).any():
        return None
    keys = zip(schedule.kind.tolist(), schedule.replica.tolist(), schedule.microbatch.tolist(), strict=True)
    played = TimedOrders(instance=instance, starts=dict(zip(keys, times.start.tolist(), strict=True)), sends={})
    for number, transfer in enumerate(instance.transfers):
        for m, start in enumerate(times.sent[number, :-1].tolist()):
            played.sends[number, m] = played.ready(transfer, m) if start < 0 else start
    return played


def in_order(device_orders: dict[int, DeviceOrder]) -> dict[int, DeviceOrder]:
    """The same device orders, microbatches of every stage replica renumbered in order (contract, "Schedule")."""
    return {device: _renumber(device_order) for device, device_order in device_orders.items()}


def _renumber(device_order: DeviceOrder) -> DeviceOrder:
    seen: dict[tuple[int, int], int] = {}
    splits: dict[int, list[int]] = {}
    result: DeviceOrder = []
    for kind, stage, _ in device_order:
        group = INPUT_GRAD if kind == BACKWARD else kind
        count = seen.get((group, stage), 0)
        seen[group, stage] = count + 1
        if kind == INPUT_GRAD:
            splits.setdefault(stage, []).append(count)
        ready = splits.get(stage, [])
        result.append((kind, stage, ready[count] if kind == WEIGHT_GRAD and count < len(ready) else count))
    return result


def fits(instance: ScheduleInstance, device_orders: dict[int, DeviceOrder]) -> bool:
    """Whether no device ever holds more than its budget when it runs its device order (contract, "Memory")."""
    replica_of = {(replica.device, replica.stage): replica for replica in instance.replicas}
    for device, device_order in device_orders.items():
        held = 0
        for kind, stage, _ in device_order:
            during, after = replica_of[device, stage].steps(kind)
            if held + during > instance.devices[device].memory:
                return False
            held += after
    return True


_Actions = dict[int, list[tuple[int, int, int]]]
"""Per device (kind, stage replica, microbatch)."""


def _actions(device_orders: dict[int, DeviceOrder], *, replica_of: dict[tuple[int, int], int]) -> _Actions | None:
    """The device orders with stage replicas for stages; None if a device lacks one, or an action comes too soon."""
    found: _Actions = {}
    for device, device_order in device_orders.items():
        seen = set[tuple[int, int, int]]()
        for kind, stage, microbatch in device_order:
            replica = replica_of.get((device, stage))
            before = {FORWARD: None, WEIGHT_GRAD: INPUT_GRAD}.get(kind, FORWARD)
            if replica is None or (before is not None and (before, replica, microbatch) not in seen):
                return None
            seen.add((kind, replica, microbatch))
            found.setdefault(device, []).append((kind, replica, microbatch))
    return found


def _is_complete(instance: ScheduleInstance, actions: _Actions) -> bool:
    """Whether every stage replica does F, then B or I and W, for every microbatch, and nothing else."""
    done, expected = {action for device_order in actions.values() for action in device_order}, 0
    for number, replica in enumerate(instance.replicas):
        for microbatch in range(instance.num_microbatches):
            is_split = (BACKWARD, number, microbatch) not in done
            needed = [FORWARD, INPUT_GRAD if is_split else BACKWARD]
            needed += [WEIGHT_GRAD] if is_split and replica.has_weight_grad else []
            if any((kind, number, microbatch) not in done for kind in needed):
                return False
            expected += len(needed)
    return expected == len(done) == sum(map(len, actions.values()))


def _make_schedule(instance: ScheduleInstance, actions: _Actions) -> PlayableSchedule:
    replicas, num_devices = instance.replicas, len(instance.devices)
    waits = np.zeros((len(replicas), 2), np.int64)
    for transfer in instance.transfers:
        waits[transfer.receiver, int(transfer.is_backward)] += 1
    lengths = [len(actions.get(device, [])) for device in range(num_devices)]
    rows = [action for device in range(num_devices) for action in actions.get(device, [])]
    kind, replica, microbatch = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return PlayableSchedule(
        num_microbatches=instance.num_microbatches,
        stage=np.array([each.stage for each in replicas], dtype=np.int64),
        devices=instance.devices,
        groups=[(each.device,) for each in replicas],
        duration=np.array([[duration_of(each, k) for k in range(FORWARD, BACKWARD + 1)] for each in replicas]),
        transfers=instance.transfers,
        waits=waits,
        waits_once=np.zeros(len(replicas), np.int64),
        first=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        replica=replica,
        kind=kind,
        microbatch=microbatch,
    )

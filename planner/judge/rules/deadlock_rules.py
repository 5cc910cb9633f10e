"""Rules: the orders can be run to their end."""

from collections.abc import Mapping

import numpy

from planner.actions import Action
from planner.errors import PlanError
from planner.judge.case import Case, Finding, Findings, Rules
from planner.judge.costs import KINDS
from planner.judge.traffic import EVERY, Channel
from planner.plan import DeviceGroup
from planner.simulation.timeline import PlayedActions


def forward_first(case: Case) -> Findings:
    """F of a microbatch stands before its I or B."""
    yield from _precedes(case, "F", then="IB")


def input_grad_first(case: Case) -> Findings:
    """I of a microbatch stands before its W."""
    yield from _precedes(case, "I", then="W")


def _precedes(case: Case, first: str, *, then: str) -> Findings:
    orders, positions = case.reading.orders, case.reading.positions
    runs_first = numpy.array([first in replica.kinds for replica in case.reading.replicas], dtype=numpy.bool_)
    is_later = numpy.isin(orders.kind, [KINDS.index(kind) for kind in then])
    rows = numpy.flatnonzero(is_later & runs_first[case.reading.runner])
    needed = positions.twin(rows, first)
    for row in rows[(needed < 0) | (needed > rows)].tolist():
        device, action = orders.device_name(row), orders.action(row)
        before = action._replace(kind=first)  # type: ignore[arg-type]
        message = f"{device} runs {action} before {before}, which it needs."
        yield Finding(f"{device}: {action}", f"after {before}", f"before {before}", message)


def deadlock(case: Case) -> Findings:
    """Nothing waits for itself in the end."""
    if _is_numbered(case):
        return
    cycle = _Untimed(case).cycle()
    if cycle:
        shown = cycle if len(cycle) <= 12 else [*cycle[:6], "...", *cycle[-5:]]
        message = "The schedule deadlocks: " + ", which waits for ".join(shown) + "."
        yield Finding(cycle[0], "an order without cycles", " <- ".join(shown), message)


def _is_numbered(case: Case) -> bool:
    """Whether the claimed starts number the actions so that every one comes after those it waits for.

    The one that has numbered them: where such a numbering exists, nothing waits for itself.
    """
    timeline, orders, replicas = case.timeline, case.reading.orders, case.reading.replicas
    if timeline is None or not isinstance(timeline.actions, PlayedActions):
        return False
    start, is_alone = timeline.actions.start, all(len(replica.group) == 1 for replica in replicas)
    if not is_alone or timeline.actions.device_orders.schedule is not orders.schedule:
        return False
    begins = numpy.ones(len(start), dtype=numpy.bool_)
    begins[orders.first[:-1][orders.first[:-1] < len(begins)]] = False
    if (numpy.diff(start, prepend=0) <= 0)[begins].any():
        return False
    number = numpy.full((len(replicas), 3, case.problem.num_microbatches), -1, dtype=numpy.int64)
    number[case.reading.runner, orders.place, orders.microbatch] = start
    return all(
        bool((number[channel.sender, channel.source] < number[channel.receiver, channel.target])[_taken(channel)].all())
        for channel in case.reading.channels
    )


def _taken(channel: Channel) -> slice | list[int]:
    return slice(None) if channel.taken is None else list(channel.taken)


_PLACES = {"F": 0, "I": 1, "B": 1, "W": 2}
"""Which of the three slots of a stage replica an action is."""


class _Untimed:
    """The schedule played without a clock: it shows whether everything can be run, and if not, why."""

    def __init__(self, case: Case) -> None:
        self.orders: Mapping[str, tuple[Action, ...]] = case.plan.schedule
        self.replicas = case.reading.replicas
        self.replica_of = {(d, each.stage): n for n, each in enumerate(self.replicas) for d in each.group}
        self.position = dict.fromkeys(self.orders, 0)
        # Slot 3 n is F of stage replica n, slot 3 n + 1 its I or B, slot 3 n + 2 its W.
        self.sends: list[list[int]] = [[] for _ in range(3 * len(self.replicas))]
        self.sources: list[list[int]] = [[] for _ in range(3 * len(self.replicas))]
        channels = (channel for channel in case.reading.channels if channel.microbatch is EVERY)
        # between two of them everything flows, or nothing, whatever the size
        for ends in dict.fromkeys((3 * x.sender + x.source, 3 * x.receiver + x.target) for x in channels):
            self.sends[ends[0]].append(ends[1])
            self.sources[ends[1]].append(ends[0])
        self.missing = [[len(sources)] * case.problem.num_microbatches for sources in self.sources]
        self.waiting = list(self.orders)

    def cycle(self) -> list[str]:
        """Actions that wait for each other, in a circle; empty if everything can be run."""
        while self.waiting:
            self.run(self.waiting.pop())
        stuck = [device for device, order in self.orders.items() if self.position[device] < len(order)]
        chain: list[str] = []
        seen: dict[str, int] = {}
        device = stuck[0] if stuck else ""
        while stuck and device not in seen:
            seen[device] = len(chain)
            chain.append(f"{self.head(device)} on {device}")
            needed, device = self.blocker(device)
            if needed != self.head(device):
                chain.append(f"{needed} on {device}")
        return [*chain[seen[device] :], chain[seen[device]]] if stuck else []

    def head(self, device: str) -> Action:
        """The next action of a device."""
        return self.orders[device][self.position[device]]

    def run(self, device: str) -> None:
        """Run the actions of a device until one has to wait."""
        order, at = self.orders[device], self.position[device]
        while at < len(order):
            kind, stage, microbatch = order[at]
            number = self.replica_of[device, stage]
            slot = 3 * number + _PLACES[kind]
            group = self.replicas[number].group
            if self.missing[slot][microbatch]:
                break
            if len(group) > 1 and not self.take_along(group, device):
                break
            at += 1
            self.position[device] = at
            if kind != "W":
                self.send(slot, microbatch)

    def take_along(self, group: DeviceGroup, device: str) -> bool:
        """Move the other devices of the group past the current action, if all have come to it."""
        others = [other for other in group if other != device]
        action = self.head(device)
        if any(self.orders[other][self.position[other] : self.position[other] + 1] != (action,) for other in others):
            return False
        for other in others:
            self.position[other] += 1
        self.waiting += others
        return True

    def send(self, slot: int, microbatch: int) -> None:
        """Deliver what an action has made; who has got everything may continue."""
        for target in self.sends[slot]:
            self.missing[target][microbatch] -= 1
            if self.missing[target][microbatch] == 0:
                self.waiting += self.replicas[target // 3].group

    def blocker(self, device: str) -> tuple[Action, str]:
        """An action that the next action of a stuck device waits for, and the device that has yet to run it."""
        action = self.head(device)
        number = self.replica_of[device, action.stage]
        for other in self.replicas[number].group:
            if self.head(other) != action:
                return action, other
        for slot in self.sources[3 * number + _PLACES[action.kind]]:
            replica = self.replicas[slot // 3]
            other = replica.group[0]
            for kind, stage, microbatch in self.orders[other][self.position[other] :]:
                is_source = (kind in "IB") if slot % 3 else (kind == "F")
                if is_source and (stage, microbatch) == (replica.stage, action.microbatch):
                    return Action(kind, stage, microbatch), other
        raise PlanError(f"{action} on {device} waits for nothing, yet it does not run")


PRECEDENCE_RULES: Rules = {
    forward_first: "Move the later action behind the earlier one.",
    input_grad_first: "Move the later action behind the earlier one.",
}

DEADLOCK_RULES: Rules = {
    deadlock: "Change the order of one of these actions.",
}

"""Rules: the orders can be run to their end."""

from collections.abc import Mapping

import numpy

from planner.actions import Action
from planner.census import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD
from planner.encoding import holders
from planner.equations import read_times
from planner.errors import PlanError
from planner.plan import DeviceGroup
from planner.rules.case import Case, Finding, Findings


def forward_first(case: Case) -> Findings:
    """F of a microbatch stands before its I or B."""
    census = case.census
    if census is not None and census.precedes(FORWARD, INPUT_GRAD) and census.precedes(FORWARD, BACKWARD):
        return
    yield from _precedes(case, "F", then="IB")


def input_grad_first(case: Case) -> Findings:
    """I of a microbatch stands before its W."""
    if case.census is not None and case.census.precedes(INPUT_GRAD, WEIGHT_GRAD):
        return
    yield from _precedes(case, "I", then="W")


def _precedes(case: Case, first: str, *, then: str) -> Findings:
    for device, word in case.plan.schedule.items():
        seen = set()
        for kind, stage, microbatch in word:
            if kind == first:
                seen.add((stage, microbatch))
            elif kind in then and (stage, microbatch) not in seen and first in case.kinds_on[device][stage]:
                text, needed = f"{stage}{kind}{microbatch}", f"{stage}{first}{microbatch}"
                message = f"{device} runs {text} before {needed}, which it needs."
                yield Finding(f"{device}: {text}", f"after {needed}", f"before {needed}", message)


def deadlock(case: Case) -> Findings:
    """Nothing waits for itself in the end."""
    if _is_numbered(case):
        return
    game = _Untimed(case)
    cycle = game.cycle()
    if cycle:
        shown = cycle if len(cycle) <= 12 else [*cycle[:6], "...", *cycle[-5:]]
        message = "The schedule deadlocks: " + ", which waits for ".join(shown) + "."
        yield Finding(cycle[0], "an order without cycles", " <- ".join(shown), message)


def _is_numbered(case: Case) -> bool:
    """Whether the claimed starts number the actions so that every one comes after those it waits for.

    Whoever has numbered them: where such a numbering exists, nothing waits for itself.
    """
    if case.words is None or case.census is None or any(len(seat.group) > 1 for seat in case.seats):
        return False
    times = None if case.timeline is None else read_times(case.timeline, case.words)
    if times is None:
        return False
    begins = numpy.ones(len(times.start), dtype=numpy.bool_)
    begins[case.words.first[:-1][case.words.first[:-1] < len(begins)]] = False
    if (numpy.diff(times.start, prepend=0) <= 0)[begins].any():
        return False
    at = {(seat.group[0], seat.stage): number for number, seat in enumerate(case.seats)}
    holder = holders(case.words, at, num_stages=len(case.plan.stages))
    if holder is None:
        return False
    start = numpy.full((len(case.seats), 3, case.problem.num_microbatches), -1, dtype=numpy.int64)
    start[holder, case.words.place, case.words.microbatch] = times.start
    return all(
        bool((start[leg.sender, int(leg.is_backward)] < start[leg.receiver, int(leg.is_backward)]).all())
        for leg in case.legs
    )


_PLACES = {"F": 0, "I": 1, "B": 1, "W": 2}
"""Which of the three slots of a seat an action is."""


class _Untimed:
    """The schedule played without a clock: it shows whether everything can be run, and if not, why."""

    def __init__(self, case: Case) -> None:
        self.words: Mapping[str, tuple[Action, ...]] = case.plan.schedule
        self.seats = case.seats
        self.seat_of = {(device, seat.stage): n for n, seat in enumerate(self.seats) for device in seat.group}
        self.position = dict.fromkeys(self.words, 0)
        # Slot 3 n is F of seat n, slot 3 n + 1 its I or B, slot 3 n + 2 its W, if that waits for an I elsewhere.
        self.sends: list[list[int]] = [[] for _ in range(3 * len(self.seats))]
        self.sources: list[list[int]] = [[] for _ in range(3 * len(self.seats))]
        for leg in case.legs:
            is_within = self.seats[leg.sender].stage == self.seats[leg.receiver].stage
            ends = 3 * leg.sender + leg.is_backward, 3 * leg.receiver + leg.is_backward + is_within
            self.sends[ends[0]].append(ends[1])
            self.sources[ends[1]].append(ends[0])
        self.missing = [[len(sources)] * case.problem.num_microbatches for sources in self.sources]
        self.waiting = list(self.words)

    def cycle(self) -> list[str]:
        """Actions that wait for each other, in a circle; empty if everything can be run."""
        while self.waiting:
            self.run(self.waiting.pop())
        stuck = [device for device, word in self.words.items() if self.position[device] < len(word)]
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
        return self.words[device][self.position[device]]

    def run(self, device: str) -> None:
        """Run the actions of a device until one has to wait."""
        word, at = self.words[device], self.position[device]
        while at < len(word):
            kind, stage, microbatch = word[at]
            number = self.seat_of[device, stage]
            slot = 3 * number + _PLACES[kind]
            group = self.seats[number].group
            if self.missing[slot][microbatch]:
                break
            if len(group) > 1 and not self.take_along(group, device):
                break
            at += 1
            self.position[device] = at
            if kind != "W":
                self.send(slot, microbatch)

    def take_along(self, group: DeviceGroup, device: str) -> bool:
        """Move the other devices of the group past the action at hand, if all have come to it."""
        others = [other for other in group if other != device]
        action = self.head(device)
        if any(self.words[other][self.position[other] : self.position[other] + 1] != (action,) for other in others):
            return False
        for other in others:
            self.position[other] += 1
        self.waiting += others
        return True

    def send(self, slot: int, microbatch: int) -> None:
        """Deliver what an action has made; who has got everything may go on."""
        for target in self.sends[slot]:
            self.missing[target][microbatch] -= 1
            if self.missing[target][microbatch] == 0:
                self.waiting += self.seats[target // 3].group

    def blocker(self, device: str) -> tuple[Action, str]:
        """An action that the next action of a stuck device waits for, and the device that has yet to run it."""
        action = self.head(device)
        number = self.seat_of[device, action.stage]
        for other in self.seats[number].group:
            if self.head(other) != action:
                return action, other
        for slot in self.sources[3 * number + _PLACES[action.kind]]:
            seat = self.seats[slot // 3]
            other = seat.group[0]
            for kind, stage, microbatch in self.words[other][self.position[other] :]:
                is_source = (kind in "IB") if slot % 3 else (kind == "F")
                if is_source and (stage, microbatch) == (seat.stage, action.microbatch):
                    return Action(kind, stage, microbatch), other
        raise PlanError(f"{action} on {device} waits for nothing, yet it does not run")

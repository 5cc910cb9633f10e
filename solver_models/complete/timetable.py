"""When every action starts, in which order a device takes its actions, and what has to wait for what arrives."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

from solver_models.complete.complete_instance import CompleteInstance
from solver_models.complete.programme import Disjoint, Literal, OptionalTask, Programme
from solver_models.complete.slots import Slots

Action = tuple[int, str, int]
"""Slot, kind (F, G or W, where G is I or B) and microbatch, on some device."""

RANK = {"F": 0, "G": 1, "W": 2}
"""F of a microbatch comes before its I or B, and that before its W."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SlotTransfer:
    """What one slot may send another between two devices for every microbatch."""

    sender: tuple[int, int]
    """Slot and device."""
    receiver: tuple[int, int]
    """Slot and device."""
    present: int
    """Switch: whether anything has to arrive."""
    occupies: int
    """Switch: whether it takes time on links."""
    duration: int
    """Ticks."""
    links: frozenset[int]
    """Links that it occupies, whatever its size."""

    @property
    def is_backward(self) -> bool:
        """Whether it carries gradients."""
        return self.receiver[0] < self.sender[0]


class Timetable:
    """Variables and rules of the order."""

    def __init__(self, programme: Programme, instance: CompleteInstance, *, slots: Slots, least: int) -> None:
        self.programme, self.instance, self.slots = programme, instance, slots.slots
        self.microbatches = range(instance.num_microbatches)
        self.tasks: dict[tuple[int, Action], OptionalTask] = {}
        """By device and action."""
        self.fused: dict[tuple[int, int, int], int] = {}
        """Switch by device, slot and microbatch: I and W are one B."""
        self.orders: dict[tuple[int, Action, Action], int] = {}
        """Switch by device and two actions: the first comes first."""
        self.places: dict[tuple[int, Action], int] = {}
        """By device and action its place among all actions, where some may take no time: starts do not tell then."""
        self.transfers: list[_SlotTransfer] = []
        for number, slot in enumerate(self.slots):
            for device in slot.on_device:
                self._make_actions(number, device)
        if instance.has_instant_actions:
            self.places = {
                key: programme.integer(f"place_{n}", high=len(self.tasks)) for n, key in enumerate(self.tasks)
            }
        self._exclude_overlaps()
        self._make_traffic()
        self._send()
        self._end(least)

    def is_before(self, a: Action, b: Action, *, device: int) -> Literal | bool:
        """Whether `a` comes before `b` on a device: a literal, or known."""
        known = _known_order(a, b)
        if known is not None:
            return known
        return self.orders[device, a, b] if (device, a, b) in self.orders else ~self.orders[device, b, a]

    def _make_actions(self, number: int, device: int) -> None:
        slot, add, horizon = self.slots[number], self.programme, self.instance.horizon
        present = slot.on_device[device]
        for m in self.microbatches:
            name = f"{number}_{device}_{m}"
            fused = self.fused[device, number, m] = add.switch(f"fused_{name}")
            add.imply((fused,), slot.has_weight_grad)
            if "split_backward" not in self.instance.rules:
                add.imply((slot.has_weight_grad, present), fused)
            separate = add.switch(f"apart_{name}")
            add.imply((present, slot.has_weight_grad, ~fused), separate)
            for kind, literal in (("F", present), ("G", present), ("W", separate)):
                length = slot.lengths["F", device]
                if kind != "F":
                    length = add.integer(f"length_{kind}_{name}", high=horizon)
                start = add.integer(f"start_{kind}_{name}", high=horizon)
                end = add.integer(f"end_{kind}_{name}", high=horizon)
                add.add({end: 1, start: -1, length: -1}, low=0, high=0)
                task = OptionalTask(start=start, length=length, end=end, present=literal)
                self.tasks[device, (number, kind, m)] = task
            backward, weight_grad = (self.tasks[device, (number, kind, m)].length for kind in "GW")
            add.precede(slot.lengths["B", device], backward, given=(fused,))
            add.precede(slot.lengths["I", device], backward, given=(~fused,))
            add.precede(slot.lengths["W", device], weight_grad, given=(separate,))

    def _exclude_overlaps(self) -> None:
        """A device runs one action at a time; microbatches come in order, F before I or B before W."""
        devices = sorted({device for device, _ in self.tasks})
        for device in devices:
            own = [action for at, action in self.tasks if at == device]
            for a, b in combinations(own, 2):
                if a[0] == b[0] or self.instance.rules["max_stages_per_device"] > 1:
                    self._separate(a, b, device=device)
            tasks = tuple(self.tasks[device, action] for action in own)
            self.programme.disjoint.append(Disjoint(tasks=tasks, is_ordered=True))

    def _separate(self, a: Action, b: Action, *, device: int) -> None:
        first, second = (device, a), (device, b)
        given = tuple(dict.fromkeys((self.tasks[first].present, self.tasks[second].present)))
        known = _known_order(a, b)
        if known is None:
            order = self.orders[device, a, b] = self.programme.switch(f"before_{device}_{_name(a)}_{_name(b)}")
            self._follow(first, second, given=(*given, order))
            self._follow(second, first, given=(*given, ~order))
        else:
            self._follow(*((first, second) if known else (second, first)), given=given)

    def _follow(self, earlier: tuple[int, Action], later: tuple[int, Action], *, given: tuple[Literal, ...]) -> None:
        """The second action, by device, starts when the first has ended; at one instant, it has a later place."""
        self.programme.precede(self.tasks[earlier].end, self.tasks[later].start, given=given)
        self._place(earlier, later, given=given)

    def _place(self, earlier: tuple[int, Action], later: tuple[int, Action], *, given: tuple[Literal, ...]) -> None:
        if self.places:
            self.programme.add({self.places[later]: 1, self.places[earlier]: -1}, low=1, given=given)

    def _make_traffic(self) -> None:
        """Which traffic flows between two slots, by the layers that they hold."""
        self.traffic: dict[tuple[int, int], dict[int, int]] = {}
        for (a, first), (b, second) in product(enumerate(self.slots), repeat=2):
            if a >= b:
                continue
            found = self.traffic[a, b] = dict[int, int]()
            for (mine, other), traffic in self.instance.traffic_of.items():
                if mine in first.sets and other in second.sets:
                    if traffic not in found:
                        found[traffic] = self.programme.switch(f"traffic_{a}_{b}_{traffic}")
                    self.programme.imply((first.sets[mine], second.sets[other]), found[traffic])

    def _send(self) -> None:
        """What arrives from other slots is waited for; links take one transfer at a time."""
        for (a, b), found in self.traffic.items():
            pairs = product(self.slots[a].on_device, self.slots[b].on_device) if found else ()
            for sender, receiver in pairs:
                for is_backward in (False, True):
                    self._make_transfer((a, sender), (b, receiver), found=found, is_backward=is_backward)
        users: dict[int, list[OptionalTask]] = {}
        for number, transfer in enumerate(self.transfers):
            for task in self._transfers(number, transfer):
                for link in transfer.links:
                    users.setdefault(link, []).append(task)
        for link in sorted(users):
            self.programme.disjoint.append(Disjoint(tasks=tuple(users[link]), is_ordered=False))

    def _make_transfer(
        self, a: tuple[int, int], b: tuple[int, int], *, found: dict[int, int], is_backward: bool
    ) -> None:
        """The transfer between two devices: for every traffic and their places among replicas that share samples."""
        add, links = self.programme, list[frozenset[int]]()
        sender, receiver = (b, a) if is_backward else (a, b)
        name = "_".join(map(str, (*sender, *receiver)))
        present, occupies = add.switch(f"flow_{name}"), add.switch(f"takes_{name}")
        duration = add.integer(f"ticks_flow_{name}", high=self.instance.horizon)
        for (i, senders, mine), (j, receivers, other) in product(self._places(a), self._places(b)):
            share = self.instance.shares.get((i, senders, j, receivers))
            if share is None:
                continue
            for traffic, switch in found.items():
                if is_backward and not self.instance.traffic[traffic].has_gradient:
                    continue
                given = (switch, mine, other)
                add.imply(given, present)
                transfer = self.instance.transfers[traffic, is_backward, share, sender[1], receiver[1]]
                if transfer.duration:
                    add.at_least(duration, transfer.duration, given=given)
                    add.imply(given, occupies)
                    links.append(transfer.links)
        self.transfers.append(
            _SlotTransfer(
                sender=sender,
                receiver=receiver,
                present=present,
                occupies=occupies,
                duration=duration,
                links=frozenset.intersection(*links) if links else frozenset(),
            )
        )

    def _places(self, end: tuple[int, int]) -> list[tuple[int, int, int]]:
        """(number of the replica, replicas, switch) of all places that a device may have in a slot."""
        positions = self.slots[end[0]].positions
        return [(i, count, switch) for (device, i, count), switch in positions.items() if device == end[1]]

    def _transfers(self, number: int, transfer: _SlotTransfer) -> Sequence[OptionalTask]:
        """One transfer per microbatch, between the actions that send and wait."""
        add, kind = self.programme, "G" if transfer.is_backward else "F"
        tasks: list[OptionalTask] = []
        for m in self.microbatches:
            sent, waits = ((at[1], (at[0], kind, m)) for at in (transfer.sender, transfer.receiver))
            self._place(sent, waits, given=(transfer.present,))
            start = add.integer(f"sent_{number}_{m}", high=self.instance.horizon)
            end = add.integer(f"arrived_{number}_{m}", high=self.instance.horizon)
            add.add({end: 1, start: -1, transfer.duration: -1}, low=0, high=0)
            add.precede(self.tasks[sent].end, start, given=(transfer.present,))
            add.precede(end, self.tasks[waits].start, given=(transfer.present,))
            if tasks:
                add.precede(tasks[-1].end, start, given=(transfer.present,))
            tasks.append(OptionalTask(start=start, length=transfer.duration, end=end, present=transfer.occupies))
        return tasks

    def _end(self, least: int) -> None:
        """The iteration ends after every action, all-reduce and what follows; no device is done before its work."""
        add, tail, steps = self.programme, self.instance.tail, self._make_steps()
        add.objective = add.integer("makespan", low=max(least, tail), high=self.instance.horizon)
        load: dict[int, list[int]] = {}
        for (device, (number, _, _)), task in self.tasks.items():
            ends = (task.end, self.slots[number].synchronisation, *steps)
            add.add({add.objective: 1, **dict.fromkeys(ends, -1)}, low=tail, given=(task.present,))
            load.setdefault(device, []).append(task.length)
        for lengths in load.values():
            add.add([(add.objective, 1), *((length, -1) for length in (*lengths, *steps))], low=tail)

    def _make_steps(self) -> tuple[int, ...]:
        """The longest that a device takes for the optimizer's steps of its stages; nothing where there are none."""
        add, found = self.programme, dict[int, list[int]]()
        for slot in self.slots:
            for device, ticks in slot.steps.items():
                found.setdefault(device, []).append(ticks)
        if not found:
            return ()
        longest = add.integer("steps", high=self.instance.horizon)
        for own in found.values():
            add.add([(longest, 1), *((ticks, -1) for ticks in own)], low=0)
        return (longest,)


def _name(action: Action) -> str:
    return f"{action[0]}{action[1]}{action[2]}"


def _known_order(a: Action, b: Action) -> bool | None:
    """Whether `a` comes before `b` on a device by the rules alone; None if that is open."""
    if a[0] != b[0]:
        return None
    later = ((a[2] > b[2]) - (a[2] < b[2]), (RANK[a[1]] > RANK[b[1]]) - (RANK[a[1]] < RANK[b[1]]))
    if 1 in later and -1 in later:
        return None
    return -1 in later

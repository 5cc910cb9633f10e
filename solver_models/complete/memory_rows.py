"""What every device holds at the start of each of its actions, which is where it holds most, stays within its memory.

held units    F(m) ...... I(m)              stash, or checkpoints, from the start of F to the end of I or B
                          I(m) ... W(m)     weight stash from the end of I to the end of W
"""

from collections.abc import Sequence
from itertools import product

from solver_models.complete.complete_instance import CompleteInstance
from solver_models.complete.programme import Literal, Programme
from solver_models.complete.slots import Slots
from solver_models.complete.timetable import Action, Timetable

EXTRA = {
    "F": (("workspace", 1),),
    "G": (("workspace", 1), ("stash", 1), ("held", -1)),
    "W": (("weight_workspace", 1),),
}
"""What an action needs beside what is held until then: sizes and signs."""


class _MemoryRows:
    """The memory of one device."""

    def __init__(
        self, programme: Programme, instance: CompleteInstance, *, slots: Slots, timetable: Timetable, device: int
    ) -> None:
        self.programme, self.instance, self.device = programme, instance, device
        self.slots, self.timetable = slots, timetable
        self.own = [number for number, slot in enumerate(slots.slots) if device in slot.on_device]

    def add(self) -> None:
        """All rows, unless nothing that the device could hold is too much."""
        static = [self._state(number) for number in self.own] + [self._bucket()]
        static += [
            self._buffers(a, b, is_backward=direction)
            for (a, b), direction in product(self.timetable.traffic, (False, True))
            if (a if direction else b) in self.own
        ]
        for number, kind in product(self.own, "FGW"):
            for m in self.timetable.microbatches:
                self._cover((number, kind, m), static)

    def _capacity(self) -> int:
        return self.instance.devices[self.device].memory

    def _units(self, name: str, *, high: int | None = None) -> int:
        return self.programme.integer(f"{name}_{self.device}", high=self._capacity() if high is None else high)

    def _state(self, number: int) -> int:
        slot, units = self.slots.slots[number], self._units(f"state_{number}")
        self.programme.precede(slot.sizes["state"], units, given=(slot.on_device[self.device],))
        return units

    def _bucket(self) -> int:
        units = self._units("bucket")
        for number in self.own:
            slot = self.slots.slots[number]
            self.programme.precede(slot.sizes["bucket"], units, given=(slot.on_device[self.device],))
        return units

    def _buffers(self, a: int, b: int, *, is_backward: bool) -> int:
        """Receive buffers for what comes from a stage that is not on this device alone."""
        receiver, sender = (self.slots.slots[s] for s in ((a, b) if is_backward else (b, a)))
        units = self._units(f"buffer_{a}_{b}_{int(is_backward)}")
        alone = [switch for k, switch in sender.assignments.items() if self.instance.assignments[k] == (self.device,)]
        for traffic, switch in self.timetable.traffic[a, b].items():
            for count, replicas in receiver.replicas.items():
                given = (switch, replicas, receiver.on_device[self.device], *(~each for each in alone))
                self.programme.at_least(units, self.instance.buffers[traffic, is_backward, count], given=given)
        return units

    def _cover(self, action: Action, static: list[int]) -> None:
        """At the start of `action`: what is resident, what is held, and what the action itself needs."""
        number, kind, _ = action
        sizes = self.slots.slots[number].sizes
        terms = [(units, 1) for units in static]
        terms += [(sizes[name], sign) for name, sign in EXTRA[kind]]
        for other, m in product(self.own, self.timetable.microbatches):
            if other == number or self.instance.rules["max_stages_per_device"] > 1:
                terms.append((self._held(other, m, action=action), 1))
        present = self.timetable.tasks[self.device, action].present
        self.programme.add(terms, high=self._capacity(), given=(present,))

    def _held(self, number: int, microbatch: int, *, action: Action) -> int:
        """Units that a slot holds for a microbatch when `action` starts."""
        sizes, tasks = self.slots.slots[number].sizes, self.timetable.tasks
        units = self._units(f"held_{number}_{microbatch}_at_{'_'.join(map(str, action))}")
        forward, backward, weight_grad = ((number, kind, microbatch) for kind in "FGW")
        present = tasks[self.device, forward].present
        when = (self._until(forward, action), self._until(action, backward))
        self._hold(units, sizes["held"], present=present, when=when)
        separate = tasks[self.device, weight_grad].present
        if action != backward:
            when = (self._until(backward, action), self._until(action, weight_grad))
            self._hold(units, sizes["weight_stash"], present=separate, when=when)
        return units

    def _until(self, a: Action, b: Action) -> Literal | bool:
        """Whether `a` is `b`, or comes before it."""
        return a == b or self.timetable.is_before(a, b, device=self.device)

    def _hold(self, units: int, size: int, *, present: Literal, when: Sequence[Literal | bool]) -> None:
        """The units are at least the size, where the action is there between those two."""
        if not any(each is False for each in when):
            given = (present, *(each for each in when if each is not True))
            self.programme.precede(size, units, given=tuple(dict.fromkeys(given)))


def add_memory(programme: Programme, instance: CompleteInstance, *, slots: Slots, timetable: Timetable) -> None:
    """The memory of every device that could hold more than it has."""
    for device in range(len(instance.devices)):
        if _may_overflow(instance, device):
            _MemoryRows(programme, instance, slots=slots, timetable=timetable, device=device).add()


def _may_overflow(instance: CompleteInstance, device: int) -> bool:
    """Whether all layers at once, with all microbatches under way, would need more than the device has."""
    most = [0] * instance.num_layers
    for each in instance.sets:
        for sizes in each.sizes.values():
            total = sizes.state + sizes.bucket + sizes.workspace + sizes.weight_workspace
            total += instance.num_microbatches * (sizes.stash + sizes.held + sizes.weight_stash)
            most[each.layers[0]] = max(most[each.layers[0]], total)
    buffers = sum(max(instance.buffers.values(), default=0) for _ in range(2 * instance.num_slots**2))
    return sum(sorted(most)[-instance.rules["max_stages_per_device"] :]) + buffers > instance.devices[device].memory

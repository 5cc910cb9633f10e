"""The complete programme of a problem, and how its solutions are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from solver_models.complete.complete_instance import CompleteInstance
from solver_models.complete.memory_rows import add_memory
from solver_models.complete.programme import Programme
from solver_models.complete.slots import Slots
from solver_models.complete.timetable import Action, Timetable
from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, DeviceOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteAnswer:
    """A solution, without times: those come from playing it."""

    sets: tuple[int, ...]
    """Set of layers of every stage."""
    assignments: tuple[int, ...]
    """Assignment of every stage."""
    recompute: tuple[bool, ...]
    """Whether every stage recomputes."""
    device_orders: dict[int, DeviceOrder]
    """Order of every device: (kind, stage, microbatch)."""
    objective: int
    """Ticks as the programme counts them; links may be taken in another order than by readiness there."""


class CompleteModel:
    """A programme with the meaning of its variables; `least`: ticks that no plan is known to be below."""

    def __init__(self, instance: CompleteInstance, *, least: int = 0) -> None:
        self.instance, self.programme = instance, Programme()
        self.slots = Slots(self.programme, instance)
        self.timetable = Timetable(self.programme, instance, slots=self.slots, least=least)
        add_memory(self.programme, instance, slots=self.slots, timetable=self.timetable)

    def read(self, values: Sequence[int]) -> CompleteAnswer:
        """The answer that these values of the variables stand for; raises ValueError if they stand for none."""
        used = [slot for slot in self.slots.slots if any(values[v] for v in slot.sets.values())]
        if not used:
            raise ValueError("no slot holds a stage")
        device_orders: dict[int, list[tuple[int, tuple[int, int, int]]]] = {}
        for (device, action), task in self.timetable.tasks.items():
            number, _, m = action
            code = self._code(values, action, device=device) if number < len(used) else None
            if code is not None:
                place = values[self.timetable.places.get((device, action), task.start)]
                device_orders.setdefault(device, []).append((place, (code, number, m)))
        return CompleteAnswer(
            sets=tuple(_chosen(slot.sets, values) for slot in used),
            assignments=tuple(_chosen(slot.assignments, values) for slot in used),
            recompute=tuple(bool(values[slot.recompute]) for slot in used),
            device_orders={
                device: [action for _, action in sorted(own)] for device, own in sorted(device_orders.items())
            },
            objective=values[self.programme.objective],
        )

    def decide(self, *, sets: Sequence[int], assignments: Sequence[int], recompute: Sequence[int]) -> dict[int, int]:
        """Values of the switches of stages that hold these sets on these assignments."""
        values: dict[int, int] = {}
        for number, slot in enumerate(self.slots.slots):
            chosen = (sets[number], assignments[number]) if number < len(sets) else (-1, -1)
            values |= {switch: int(key == chosen[0]) for key, switch in slot.sets.items()}
            values |= {switch: int(key == chosen[1]) for key, switch in slot.assignments.items()}
            values[slot.recompute] = recompute[number] if number < len(sets) else 0
        return values

    def time(self, device: int, number: int, *, kind: int, microbatch: int, start: int) -> dict[int, int]:
        """Values that say when an action starts, and whether a backward is fused."""
        name = {FORWARD: "F", WEIGHT_GRAD: "W"}.get(kind, "G")
        values = {self.timetable.tasks[device, (number, name, microbatch)].start: start}
        if name == "G":
            values[self.timetable.fused[device, number, microbatch]] = int(kind == BACKWARD)
        return values

    def _code(self, values: Sequence[int], action: Action, *, device: int) -> int | None:
        """The code of an action in words; None if it is not there."""
        number, kind, microbatch = action
        slot, is_fused = self.slots.slots[number], values[self.timetable.fused[device, number, microbatch]]
        if not values[slot.on_device[device]]:
            return None
        if kind == "W":
            return WEIGHT_GRAD if values[slot.has_weight_grad] and not is_fused else None
        return FORWARD if kind == "F" else (BACKWARD if is_fused else INPUT_GRAD)


def _chosen(switches: Mapping[int, int], values: Sequence[int]) -> int:
    chosen = [key for key, switch in switches.items() if values[switch]]
    if len(chosen) != 1:
        raise ValueError(f"a stage has {len(chosen)} sets of layers or assignments; it needs one of each")
    return chosen[0]

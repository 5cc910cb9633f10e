"""What stands in the slots: layers, assignment and kind of every stage, and what follows from them as numbers."""

from dataclasses import dataclass, field
from itertools import product
from typing import TypeVar

from solver_models.complete.complete_instance import CompleteInstance, Sizes
from solver_models.complete.programme import Literal, Programme

Key = TypeVar("Key")

KINDS = "FIWB"
"""Kinds of actions, as in `ActionTimes`."""


@dataclass(slots=True)
class Slot:
    """One stage of the plan, or none."""

    sets: dict[int, int]
    """Set of layers -> switch."""
    assignments: dict[int, int]
    """Assignment -> switch."""
    replicas: dict[int, int]
    """Number of replicas -> switch."""
    recompute: int
    """Switch; fixed at 0 where it is not allowed."""
    has_weight_grad: int
    """Switch."""
    positions: dict[tuple[int, int, int], int]
    """(device, number of the replica, replicas) -> switch."""
    on_device: dict[int, int]
    """Device -> switch."""
    lengths: dict[tuple[str, int], int] = field(default_factory=dict)
    """(kind, device) -> ticks of an action there."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Name in `Sizes` -> units per replica."""
    synchronisation: int = -1
    """Ticks of the all-reduce."""
    steps: dict[int, int] = field(default_factory=dict)
    """Device -> ticks of the optimizer's step there, where any set of layers has one."""


class Slots:
    """Variables and rules of what stands in the slots."""

    def __init__(self, programme: Programme, instance: CompleteInstance) -> None:
        self.programme, self.instance = programme, instance
        self.devices = range(len(instance.devices))
        self.slots = [self._make_slot(number) for number in range(instance.num_slots)]
        self._hold_every_layer_once()
        self._come_in_order()
        self._keep_device_rules()
        self._keep_edges_short()
        for number, slot in enumerate(self.slots):
            self._price(number, slot)

    def kind_literals(self, slot: Slot, kind: tuple[int, bool]) -> tuple[Literal, Literal]:
        """The literals of a number of replicas, and of recomputation or its absence."""
        return slot.replicas[kind[0]], slot.recompute if kind[1] else ~slot.recompute

    def _make_slot(self, number: int) -> Slot:
        add, instance = self.programme, self.instance
        sets = {k: add.switch(f"set_{number}_{k}") for k in instance.slot_sets[number]}
        assignments = {k: add.switch(f"seat_{number}_{k}") for k in instance.slot_assignments[number]}
        counts = sorted({len(instance.assignments[k]) for k in assignments})
        may_recompute = any(kind[1] for kind in instance.kinds)
        slot = Slot(
            sets=sets,
            assignments=assignments,
            replicas={count: add.switch(f"replicas_{number}_{count}") for count in counts},
            recompute=add.integer(f"recompute_{number}", high=int(may_recompute)),
            has_weight_grad=add.switch(f"trained_{number}"),
            positions={},
            on_device={},
        )
        for count in counts:
            own = {assignments[k]: 1 for k in assignments if len(instance.assignments[k]) == count}
            self._equal(slot.replicas[count], own)
        for device in self.devices:
            self._make_positions(slot, number=number, device=device)
        trained = {sets[k]: 1 for k in sets if instance.sets[k].has_weight_grad}
        self._equal(slot.has_weight_grad, trained)
        add.add([*((v, 1) for v in sets.values())], high=1)
        add.add([*((v, 1) for v in sets.values()), *((v, -1) for v in assignments.values())], low=0, high=0)
        for k, allowed in instance.set_assignments.items():
            if k in sets:
                for assignment in assignments.keys() - allowed:
                    add.forbid((sets[k], assignments[assignment]))
        return slot

    def _make_positions(self, slot: Slot, *, number: int, device: int) -> None:
        places: dict[tuple[int, int, int], dict[int, int]] = {}
        for k, switch in slot.assignments.items():
            assignment = self.instance.assignments[k]
            if device in assignment:
                places.setdefault((device, assignment.index(device), len(assignment)), {})[switch] = 1
        for place, own in places.items():
            slot.positions[place] = self.programme.switch(f"place_{number}_{'_'.join(map(str, place))}")
            self._equal(slot.positions[place], own)
        if places:
            slot.on_device[device] = self.programme.switch(f"on_{number}_{device}")
            self._equal(slot.on_device[device], {v: 1 for own in places.values() for v in own})

    def _equal(self, switch: int, terms: dict[int, int]) -> None:
        self.programme.add([(switch, -1), *terms.items()], low=0, high=0)

    def _hold_every_layer_once(self) -> None:
        for layer in range(self.instance.num_layers):
            holders = [slot.sets[k] for slot in self.slots for k in slot.sets if layer in self.instance.sets[k].layers]
            self.programme.add([(v, 1) for v in holders], low=1, high=1)

    def _come_in_order(self) -> None:
        """Slots are filled from the first on, and no edge goes back."""
        for earlier, later in zip(self.slots, self.slots[1:], strict=False):
            self.programme.add([(v, 1) for v in earlier.sets.values()] + [(v, -1) for v in later.sets.values()], low=0)
        for producer, consumer in self.instance.edges:
            terms = []
            for number, slot in enumerate(self.slots):
                for k, switch in slot.sets.items():
                    layers = self.instance.sets[k].layers
                    terms += [(switch, number)] * (consumer in layers) + [(switch, -number)] * (producer in layers)
            self.programme.add(terms, low=0)

    def _keep_device_rules(self) -> None:
        """Stages per device, devices that must not idle, and equal numbers of replicas."""
        for device in self.devices:
            own = [(slot.on_device[device], 1) for slot in self.slots if device in slot.on_device]
            self.programme.add(own, high=self.instance.rules["max_stages_per_device"])
            if "idle_devices" not in self.instance.rules:
                self.programme.add(own, low=1)
        if "uneven_replication" not in self.instance.rules:
            for (a, first), (b, second) in product(enumerate(self.slots), repeat=2):
                for count, other in product(first.replicas, second.replicas):
                    if a < b and count != other:
                        self.programme.forbid((first.replicas[count], second.replicas[other]))

    def _keep_edges_short(self) -> None:
        if "skip_edges" in self.instance.rules:
            return
        for (a, first), (b, second) in product(enumerate(self.slots), repeat=2):
            for mine, other in self.instance.traffic_of:
                if b > a + 1 and mine in first.sets and other in second.sets:
                    self.programme.forbid((first.sets[mine], second.sets[other]))

    def _price(self, number: int, slot: Slot) -> None:
        """ActionTimes and sizes are at least those of the set, assignment and kind that are chosen."""
        horizon, add = self.instance.horizon, self.programme
        for name, device in product(KINDS, slot.on_device):
            slot.lengths[name, device] = add.integer(f"ticks_{number}_{name}_{device}", high=horizon)
        for k, device in product(slot.sets, slot.on_device):
            self._price_times(slot, k=k, device=device)
        for place, name in enumerate(Sizes._fields):
            most = max((s[place] for each in self.instance.sets for s in each.sizes.values()), default=0)
            slot.sizes[name] = add.integer(f"units_{number}_{name}", high=most)
        for k in slot.sets:
            for kind, sizes in self.instance.sets[k].sizes.items():
                if kind[0] in slot.replicas:
                    given = (slot.sets[k], *self.kind_literals(slot, kind))
                    for name, value in zip(Sizes._fields, sizes, strict=True):
                        add.at_least(slot.sizes[name], value, given=given)
        slot.synchronisation = add.integer(f"ticks_{number}_sync", high=horizon)
        for k in slot.sets:
            for assignment, ticks in self.instance.sets[k].synchronisation.items():
                if assignment in slot.assignments:
                    add.at_least(slot.synchronisation, ticks, given=(slot.sets[k], slot.assignments[assignment]))
        if any(self.instance.sets[k].steps for k in slot.sets):
            self._price_steps(number, slot)

    def _price_steps(self, number: int, slot: Slot) -> None:
        add, instance = self.programme, self.instance
        for device, present in slot.on_device.items():
            slot.steps[device] = add.integer(f"ticks_{number}_step_{device}", high=instance.horizon)
            for k, chosen in slot.sets.items():
                if ticks := instance.sets[k].steps.get(instance.devices[device].kind, 0):
                    add.at_least(slot.steps[device], ticks, given=(chosen, present))

    def _price_times(self, slot: Slot, *, k: int, device: int) -> None:
        instance = self.instance
        for kind in instance.kinds:
            if kind[0] not in slot.replicas:
                continue
            given = (slot.sets[k], slot.on_device[device], *self.kind_literals(slot, kind))
            times = instance.sets[k].times.get((instance.devices[device].kind, kind))
            if times is None:
                self.programme.forbid(given)
                continue
            for name, value in zip(("F", "I", "W", "B"), times, strict=True):
                self.programme.at_least(slot.lengths[name, device], value, given=given)

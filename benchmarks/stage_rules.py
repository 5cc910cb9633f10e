"""What every plan keeps to that is done by a given time, with one stage per device, for a solver that logs its proof.

Partition, assignments, replicas, start of every F, I and W, and device orders are all open; the cost of a stage
is that of the cost model. Rules that make no plan late are left out, so that what has no solution here is no plan:

* a backward counts as I and W right after it, or as what is left of it where it takes less than both;
* of memory, so many microbatches between F and the end of I or B as fit, and so many between F and the end of W as fit
  with the least of what each holds;
* transfers of one flow take turns on their links, those of different flows need not;
* edges may skip stages, stages may differ in replicas, and a layer's own optimizer step takes no time.

No bound of the planner is used. Beside the order itself stand sums that follow from it: a device runs one action at a
time, so that what starts first and ends last are as far apart as all that runs between them takes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from benchmarks.proof_statement import Statement, SwitchLiteral
from solver_models.complete.complete_instance import ActionTimes, CompleteInstance, Kind

NAMES = ("F", "G", "W", "all")
"""Lengths per microbatch: F, I or B, what W adds to it, and the sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One way in which a replica may be there."""

    literal: SwitchLiteral
    """Where it holds, the replica is there like this."""
    device: int
    """The device."""
    replica: int
    """Number of the replica of its stage."""
    replicas: int
    """How many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaModel:
    """A replica of a stage: on whichever device its stage is, or on one of the devices where it may have several."""

    name: str
    """Unique."""
    slot: int
    """The stage."""
    positions: tuple[Position, ...]
    """Where it may be."""
    lengths: dict[str, str]
    """Variables: ticks of its actions, by `NAMES`."""
    starts: dict[str, tuple[str, ...]]
    """Variables: when its F, G and W start, by microbatch."""


def lengths_of(times: ActionTimes, *, has_weight_grad: bool, can_split: bool) -> tuple[int, int, int, int]:
    """The least ticks of F, of I or B, of what W adds to that, and of all; by `NAMES`."""
    forward, input_grad, weight_grad, backward = times
    if not has_weight_grad:
        return forward, min(input_grad, backward), 0, forward + min(input_grad, backward)
    if not can_split:
        return forward, backward, 0, forward + backward
    both, first = min(backward, input_grad + weight_grad), min(backward, input_grad)
    return forward, first, both - first, forward + both


class StageRules:
    """The statement that a plan of an instance with one stage per device is done by its horizon."""

    def __init__(self, instance: CompleteInstance) -> None:
        if instance.rules["max_stages_per_device"] != 1 or any(kind[1] for kind in instance.kinds):
            raise ValueError("the statement is one of one stage per device without recomputation; forbid both")
        self.instance, self.statement = instance, Statement()
        self.slots, self.devices = range(instance.num_slots), range(len(instance.devices))
        self.microbatches, self.end = range(instance.num_microbatches), instance.horizon - instance.tail
        self.synchronisation: dict[int, str] = {}
        self._choose()
        self.stage_replicas = [replica for slot in self.slots for replica in self._make_replicas(slot)]
        self.buffers = self._make_buffers()
        self._take_time()
        self._keep_memory()
        self._send()
        for replica in self.stage_replicas:
            self._take_steps(replica)
            self._order(replica)

    def _choose(self) -> None:
        """Which layers stand in a slot, and on which devices."""
        add, instance = self.statement, self.instance
        self.sets = {(s, k): add.switch(f"set_{s}_{k}") for s in self.slots for k in instance.slot_sets[s]}
        self.assignments = {
            (s, k): add.switch(f"seat_{s}_{k}") for s in self.slots for k in instance.slot_assignments[s]
        }
        self.on = {(s, d): add.switch(f"on_{s}_{d}") for s in self.slots for d in self.devices}
        self.counts = sorted({len(assignment) for assignment in instance.assignments})
        self.replicas = {(s, c): add.switch(f"replicas_{s}_{c}") for s in self.slots for c in self.counts}
        for slot in self.slots:
            self._fill_slot(slot)
        for layer in range(instance.num_layers):
            holders = [switch for (_, k), switch in self.sets.items() if layer in instance.sets[k].layers]
            add.row([(switch, 1) for switch in holders], most=1)
            add.clause(*((switch, 1) for switch in holders))
        for producer, consumer in instance.edges:
            layers = {key: instance.sets[key[1]].layers for key in self.sets}
            sides = {key: (producer in own) - (consumer in own) for key, own in layers.items()}
            add.row([(self.sets[key], key[0] * side) for key, side in sides.items()], most=0)
        for device in self.devices:
            add.row([(self.on[slot, device], 1) for slot in self.slots], most=1)
            if "idle_devices" not in instance.rules:
                add.clause(*((self.on[slot, device], 1) for slot in self.slots))
        self._cut_chain()
        self._break_symmetry()

    def _cut_chain(self) -> None:
        """Where sets are intervals of a chain: how far slots up to one reach, which says of many sets at once."""
        add, instance, last = self.statement, self.instance, self.instance.num_layers
        self.reaches: dict[tuple[int, int], str] = {}
        intervals = {tuple(range(a, b)) for a, b in combinations(range(last + 1), 2)}
        self.holds: dict[tuple[int, int], str] = {}
        if {each.layers for each in instance.sets} != intervals:
            self._name_layers()
            return
        self.reaches = {(s, n): add.switch(f"reaches_{s}_{n}") for s, n in product(self.slots, range(1, last + 1))}
        for (slot, layer), switch in self.reaches.items():
            for farther in ((slot + 1, layer), (slot, layer - 1)):
                if farther in self.reaches:
                    add.clause((switch, 0), (self.reaches[farther], 1))
        for (slot, k), chosen in self.sets.items():
            layers = instance.sets[k].layers
            ends = [*self._reach(slot, layers[-1] + 1), *self._reach(slot - 1, layers[0])]
            beyond = [*self._reach(slot, layers[-1] + 2), *self._reach(slot - 1, layers[0] + 1)]
            for name in ends:
                add.clause((chosen, 0), (name, 1))
            for name in beyond:
                add.clause((chosen, 0), (name, 0))
            if slot or not layers[0]:
                add.clause((chosen, 1), *((name, 0) for name in ends), *((name, 1) for name in beyond))
        add.clause((self.reaches[self.slots[-1], last], 1))

    def _name_layers(self) -> None:
        """Which layers a slot holds; what a layer needs is in the same slot or before."""
        add, instance = self.statement, self.instance
        layers = range(instance.num_layers)
        self.holds = {(s, layer): add.switch(f"holds_{s}_{layer}") for s, layer in product(self.slots, layers)}
        for (slot, layer), holds in self.holds.items():
            for k in instance.slot_sets[slot]:
                add.clause((self.sets[slot, k], 0), (holds, int(layer in instance.sets[k].layers)))
            owners = [(self.sets[slot, k], 1) for k in instance.slot_sets[slot] if layer in instance.sets[k].layers]
            add.clause((holds, 0), *owners)
            for producer in (p for p, consumer in instance.edges if consumer == layer):
                add.clause((holds, 0), *((self.holds[earlier, producer], 1) for earlier in range(slot + 1)))
        for layer in layers:
            add.clause(*((self.holds[slot, layer], 1) for slot in self.slots))
            for first, second in combinations(self.slots, 2):
                add.clause((self.holds[first, layer], 0), (self.holds[second, layer], 0))

    def _extremes(self, k: int) -> list[int]:
        """Layers of a set such that a stage with all of them has the whole set, since stages leave out none between."""
        own, edges = set(self.instance.sets[k].layers), self.instance.edges
        inner = {c for p, c in edges if p in own} & {p for p, c in edges if c in own}
        return [layer for layer in self.instance.sets[k].layers if layer not in inner]

    def _reach(self, slot: int, layer: int) -> list[str]:
        """The switch of slots up to one holding so many layers at least; none where that is known."""
        return [self.reaches[slot, layer]] if (slot, layer) in self.reaches else []

    def _fill_slot(self, slot: int) -> None:
        """A set and a assignment, or neither; slots are filled from the first on."""
        add, instance = self.statement, self.instance
        sets = [(self.sets[slot, k], 1) for k in instance.slot_sets[slot]]
        chosen = [(self.assignments[slot, k], 1) for k in instance.slot_assignments[slot]]
        negative = [(name, -1) for name, _ in chosen]
        add.row(sets, most=1)
        add.row([*sets, *negative], most=0)
        add.row([*chosen, *((name, -1) for name, _ in sets)], most=0)
        if slot:
            add.row([*sets, *((self.sets[slot - 1, k], -1) for k in instance.slot_sets[slot - 1])], most=0)
        for k in instance.slot_assignments[slot]:
            assignment = instance.assignments[k]
            add.clause((self.assignments[slot, k], 0), (self.replicas[slot, len(assignment)], 1))
            for device in self.devices:
                add.clause((self.assignments[slot, k], 0), (self.on[slot, device], int(device in assignment)))
        for k, allowed in instance.set_assignments.items():
            if (slot, k) in self.sets:
                for seat_number in set(instance.slot_assignments[slot]) - allowed:
                    add.clause((self.sets[slot, k], 0), (self.assignments[slot, seat_number], 0))

    def _break_symmetry(self) -> None:
        """Of two devices that can change places in every plan, the one that comes first is used first."""
        if self.instance.set_assignments or any(
            self.instance.slot_assignments[0] != own for own in self.instance.slot_assignments
        ):
            return
        for first, second in combinations(self.devices, 2):
            if is_alike(self.instance, first, other=second):
                for slot in self.slots:
                    used = [(self.on[earlier, first], 1) for earlier in range(slot + 1)]
                    self.statement.clause((self.on[slot, second], 0), *used)

    def _make_replicas(self, slot: int) -> Iterator[ReplicaModel]:
        if self.counts == [1]:
            alone = [
                (k, assignment[0])
                for k, assignment in enumerate(self.instance.assignments)
                if k in self.instance.slot_assignments[slot]
            ]
            positions = [
                Position(literal=(self.assignments[slot, k], 1), device=d, replica=0, replicas=1) for k, d in alone
            ]
            yield self._make_replica(str(slot), slot=slot, positions=positions)
            return
        for device in self.devices:
            places: dict[tuple[int, int], list[int]] = {}
            for k in self.instance.slot_assignments[slot]:
                assignment = self.instance.assignments[k]
                if device in assignment:
                    places.setdefault((assignment.index(device), len(assignment)), []).append(k)
            positions = []
            for (replica, replicas), own in places.items():
                place = self.statement.switch(f"place_{slot}_{device}_{replica}_{replicas}")
                for k in own:
                    self.statement.clause((self.assignments[slot, k], 0), (place, 1))
                positions.append(Position(literal=(place, 1), device=device, replica=replica, replicas=replicas))
            if positions:
                yield self._make_replica(f"{slot}_{device}", slot=slot, positions=positions)

    def _make_replica(self, name: str, *, slot: int, positions: Sequence[Position]) -> ReplicaModel:
        add, high = self.statement, self.instance.horizon
        return ReplicaModel(
            name=name,
            slot=slot,
            positions=tuple(positions),
            lengths={each: add.integer(f"ticks_{each}_{name}", high=high) for each in NAMES},
            starts={
                each: tuple(add.integer(f"start_{each}_{name}_{m}", high=high) for m in self.microbatches)
                for each in "FGW"
            },
        )

    def _take_time(self) -> None:
        """Actions take as long as those of the set, the device and the number of replicas that are chosen."""
        for replica in self.stage_replicas:
            ways: dict[tuple[int, int], list[SwitchLiteral]] = {}
            for position in replica.positions:
                key = self.instance.devices[position.device].kind, position.replicas
                ways.setdefault(key, []).append(position.literal)
            for (device_type, count), literals in ways.items():
                here = self.statement.switch(f"type_{replica.name}_{device_type}_{count}")
                for name, value in literals:
                    self.statement.clause((name, 1 - value), (here, 1))
                self._price(replica, here=here, device_type=device_type, kind=(count, False))
        self._synchronise()
        self._hold_all_work()

    def _price(self, replica: ReplicaModel, *, here: str, device_type: int, kind: Kind) -> None:
        instance, lengths = self.instance, dict[int, tuple[int, int, int, int]]()
        for k in instance.slot_sets[replica.slot]:
            found = instance.sets[k].times.get((device_type, kind))
            if found is None:
                self.statement.clause((here, 0), (self.sets[replica.slot, k], 0))
                continue
            lengths[k] = self.lengths(k, found)
        for place, name in enumerate(NAMES):
            ticks = {k: own[place] for k, own in lengths.items()}
            self._at_least_that_of_set(replica.lengths[name], slot=replica.slot, given=[(here, 0)], values=ticks)

    def lengths(self, k: int, times: ActionTimes) -> tuple[int, int, int, int]:
        """`lengths_of` a set of layers."""
        has_weight_grad = self.instance.sets[k].has_weight_grad
        return lengths_of(times, has_weight_grad=has_weight_grad, can_split="split_backward" in self.instance.rules)

    def _at_least_that_of_set(
        self, variable: str, *, slot: int, given: Sequence[SwitchLiteral], values: dict[int, int]
    ) -> None:
        """A slot that is filled holds a set of a lesser value, or the variable is at least this one, for every one.

        `given`: literals of which one holds where nothing is said.
        """
        if self._grows(values):
            for k, value in values.items():
                layers = self.instance.sets[k].layers
                if self.holds and value:
                    inside = [(self.holds[slot, layer], 0) for layer in self._extremes(k)]
                    self.statement.clause(*given, *inside, *self.statement.at_least(variable, value))
                elif value and (slot or not layers[0]):
                    begins = [(name, 1) for name in self._reach(slot - 1, layers[0] + 1)]
                    ends = [(name, 0) for name in self._reach(slot, layers[-1] + 1)]
                    self.statement.clause(*given, *begins, *ends, *self.statement.at_least(variable, value))
            return
        for value in sorted(set(values.values()) - {0}):
            less = [(self.sets[slot, k], 1) for k, own in values.items() if own < value]
            self.statement.clause(*given, *less, *self.statement.at_least(variable, value))

    def _grows(self, values: dict[int, int]) -> bool:
        """Whether every set has a value, no less than those of the sets inside it."""
        if len(values) < len(self.instance.sets):
            return False
        layers = [frozenset(each.layers) for each in self.instance.sets]
        return all(values[k] <= values[other] for k, other in product(values, values) if layers[k] < layers[other])

    def _synchronise(self) -> None:
        """The all-reduce of a slot takes as long as that of the set on the assignment."""
        for slot in self.slots:
            ticks = self.synchronisation[slot] = self.statement.integer(f"ring_{slot}", high=self.instance.horizon)
            for number in self.instance.slot_assignments[slot]:
                rings = {k: self.instance.sets[k].synchronisation for k in self.instance.slot_sets[slot]}
                values = {k: own.get(number, 0) for k, own in rings.items()}
                given = [(self.assignments[slot, number], 0)]
                self._at_least_that_of_set(ticks, slot=slot, given=given, values=values)

    def _hold_all_work(self) -> None:
        """All replicas together run every layer, each as fast as it can be run at all; only if sets are no faster."""
        least = [min((self._work(k) for k in self._sets_of((layer,))), default=0) for layer in self._layers]
        sets = range(len(self.instance.sets))
        if all(self._work(k) >= sum(least[layer] for layer in self.instance.sets[k].layers) for k in sets):
            self.statement.row([(replica.lengths["all"], -1) for replica in self.stage_replicas], most=-sum(least))

    @property
    def _layers(self) -> range:
        return range(self.instance.num_layers)

    def _sets_of(self, layers: tuple[int, ...]) -> list[int]:
        return [k for k, each in enumerate(self.instance.sets) if each.layers == layers]

    def _work(self, k: int) -> int:
        """The least ticks that all replicas of a set take together per microbatch."""
        times = self.instance.sets[k].times
        return min((kind[0] * self.lengths(k, own)[3] for (_, kind), own in times.items()), default=0)

    def _keep_memory(self) -> None:
        """What a device cannot hold is not there; F waits for the end of I or B, and for that of W, where few fit."""
        for replica, until in product(self.stage_replicas, "GW"):
            few: dict[int, str] = {}
            for k, position in product(self.instance.slot_sets[replica.slot], replica.positions):
                most = self._most_begun(k, position, until=until)
                literals = ((self.sets[replica.slot, k], 0), (position.literal[0], 1 - position.literal[1]))
                if most < 1:
                    self.statement.clause(*literals)
                elif most < self.instance.num_microbatches:
                    if most not in few:
                        few[most] = self.statement.switch(f"few_{until}_{replica.name}_{most}")
                    self.statement.clause(*literals, (few[most], 1))
            starts, length = replica.starts, [(replica.lengths[until], 1)]
            for most, switch in few.items():
                for m in self.microbatches[most:]:
                    earlier = starts[until][m - most]
                    self.statement.after(starts["F"][m], earlier=earlier, lengths=length, given=(switch, 1))

    def _most_begun(self, k: int, position: Position, *, until: str) -> int:
        """Most microbatches of a set whose F has begun and whose G, or W, has not ended; 0 if it has no room at all."""
        instance = self.instance
        sizes = instance.sets[k].sizes.get((position.replicas, False))
        if sizes is None:
            return instance.num_microbatches
        room = instance.devices[position.device].memory - sizes.state - sizes.bucket - sizes.workspace
        room -= self.buffers[k, position.replicas]
        # with so many begun, the next I or B starts while they are
        room -= max(0, sizes.stash - sizes.held)
        if room < sizes.held:
            return 0
        own = sizes.held if until == "G" else min(sizes.held, sizes.weight_stash)
        return room // own if own else instance.num_microbatches

    def _make_buffers(self) -> dict[tuple[int, int], int]:
        """Units of receive buffers by set and replicas, at least: all comes from other devices."""
        instance = self.instance
        arriving: dict[tuple[int, bool], set[int]] = {}
        for (sender, receiver), traffic in instance.traffic_of.items():
            arriving.setdefault((receiver, False), set()).add(traffic)
            arriving.setdefault((sender, True), set()).add(traffic)
        return {
            (k, count): sum(
                min((instance.buffers[t, way, count] for t in arriving.get((k, way), ())), default=0)
                for way in (False, True)
            )
            for k, count in product(range(len(instance.sets)), self.counts)
        }

    def _send(self) -> None:
        """What a stage sends arrives before it is used, both ways."""
        for a, b in combinations(self.slots, 2):
            kinds: dict[int, str] = {}
            for (k, other), traffic in self.instance.traffic_of.items():
                if (a, k) in self.sets and (b, other) in self.sets:
                    if traffic not in kinds:
                        kinds[traffic] = self.statement.switch(f"traffic_{a}_{b}_{traffic}")
                    literals = ((self.sets[a, k], 0), (self.sets[b, other], 0), (kinds[traffic], 1))
                    self.statement.clause(*literals)
            for first, second in product(self._replicas_of(a), self._replicas_of(b)):
                self._transfer(first, second, kinds=kinds)

    def _replicas_of(self, slot: int) -> list[ReplicaModel]:
        return [replica for replica in self.stage_replicas if replica.slot == slot]

    def _transfer(self, first: ReplicaModel, second: ReplicaModel, *, kinds: dict[int, str]) -> None:
        """What flows between two replicas, and how long it takes."""
        instance, add = self.instance, self.statement
        for is_backward in (False, True):
            name = f"{'gradient' if is_backward else 'output'}_{first.name}_{second.name}"
            flow, ticks = add.switch(name), add.integer(f"ticks_{name}", high=instance.horizon)
            durations: dict[str, list[int]] = {}
            for (traffic, kind), mine, other in product(kinds.items(), first.positions, second.positions):
                share = instance.shares.get((mine.replica, mine.replicas, other.replica, other.replicas))
                has_flow = instance.traffic[traffic].has_gradient or not is_backward
                if share is None or mine.device == other.device or not has_flow:
                    continue
                sender, receiver = (other, mine) if is_backward else (mine, other)
                duration = instance.transfers[traffic, is_backward, share, sender.device, receiver.device].duration
                absent = [(literal[0], 1 - literal[1]) for literal in (mine.literal, other.literal)]
                add.clause((kind, 0), *absent, (flow, 1))
                if duration:
                    add.clause((kind, 0), *absent, *add.at_least(ticks, duration))
                durations.setdefault(kind, []).append(duration)
            self._expect(flow, ticks=ticks, durations=durations)
            self._wait(first, second, flow=flow, ticks=ticks, is_backward=is_backward)

    def _expect(self, flow: str, *, ticks: str, durations: dict[str, list[int]]) -> None:
        """Where stages have one replica each, something flows and takes the least time, wherever they are."""
        if self.counts == [1]:
            for kind, found in durations.items():
                self.statement.clause((kind, 0), (flow, 1))
                if min(found):
                    self.statement.clause((kind, 0), *self.statement.at_least(ticks, min(found)))

    def _wait(self, first: ReplicaModel, second: ReplicaModel, *, flow: str, ticks: str, is_backward: bool) -> None:
        """A microbatch arrives after it was sent, and after those before it of the same flow took their turns."""
        kind = "G" if is_backward else "F"
        sender, receiver = (second, first) if is_backward else (first, second)
        for m in self.microbatches:
            for earlier in dict.fromkeys((0, m)):
                self.statement.after(
                    receiver.starts[kind][m],
                    earlier=sender.starts[kind][earlier],
                    lengths=[(sender.lengths[kind], 1), (ticks, m - earlier + 1)],
                    given=(flow, 1),
                )

    def _take_steps(self, replica: ReplicaModel) -> None:
        """Microbatches come in order, and what a device runs between two moments fits between them."""
        add, count, closing = self.statement, self.instance.num_microbatches, (self.synchronisation[replica.slot], 1)
        forward, backward, rest, whole = (replica.lengths[name] for name in NAMES)
        f, g, w = (replica.starts[name] for name in "FGW")
        for m in self.microbatches:
            left = count - m
            add.after(g[m], earlier=f[m], lengths=[(forward, 1)])
            add.after(w[m], earlier=g[m], lengths=[(backward, 1)])
            add.after(g[m], earlier=f[0], lengths=[(forward, m + 1), (backward, m)])
            add.after(w[m], earlier=f[0], lengths=[(forward, m + 1), (backward, m + 1), (rest, m)])
            add.after(g[-1], earlier=f[m], lengths=[(forward, left), (backward, left - 1)])
            add.row([(f[m], 1), (whole, left), closing], most=self.end)
            add.row([(g[m], 1), (backward, left), (rest, left), closing], most=self.end)
            add.row([(w[m], 1), (rest, left), closing], most=self.end)
        for name, length in zip("FGW", (forward, backward, rest), strict=True):
            for earlier, later in zip(replica.starts[name], replica.starts[name][1:], strict=False):
                add.after(later, earlier=earlier, lengths=[(length, 1)])

    def _order(self, replica: ReplicaModel) -> None:
        """Of G and a later F, of W and a later F or G, one comes first; what else runs until then follows."""
        add, lengths = self.statement, replica.lengths
        for (a, b), (m, n) in product(("GF", "WF", "WG"), combinations(self.microbatches, 2)):
            first, second = replica.starts[a][m], replica.starts[b][n]
            sooner = add.switch(f"sooner_{replica.name}_{a}{m}_{b}{n}")
            add.after(second, earlier=first, lengths=[(lengths[a], 1)], given=(sooner, 1))
            add.after(first, earlier=second, lengths=[(lengths[b], 1)], given=(sooner, 0))
            if (a, b) == ("G", "F"):
                begin, forward, backward = replica.starts["F"][0], lengths["F"], lengths["G"]
                until_first = [(forward, n + 1), (backward, m)]
                add.after(first, earlier=begin, lengths=until_first, given=(sooner, 0))
                until_second = [(forward, n), (backward, m + 1)]
                add.after(second, earlier=begin, lengths=until_second, given=(sooner, 1))


def is_alike(instance: CompleteInstance, device: int, *, other: int) -> bool:
    """Whether two devices can change places in every plan: types, memory, routes and rings stay what they are."""
    swap = {device: other, other: device}
    if instance.devices[device] != instance.devices[other]:
        return False
    number = {assignment: n for n, assignment in enumerate(instance.assignments)}
    moved = [number[tuple(swap.get(d, d) for d in assignment)] for assignment in instance.assignments]
    for each in instance.sets:
        if any(each.synchronisation.get(n) != each.synchronisation.get(m) for n, m in enumerate(moved)):
            return False
    return all(
        leg.duration == instance.transfers[traffic, way, share, swap.get(a, a), swap.get(b, b)].duration
        for (traffic, way, share, a, b), leg in instance.transfers.items()
    )

"""The pipeline bound: a dynamic programme over the trunk shows that no division into stages is done in time.

It asks whether a plan can reach a given objective T at all, and looks only at what every plan must do: cut the trunk
into stages, in order, each on r of the D devices, with at most C stages per device. A state is (layers done, slots
used), a slot being one stage on one device. It keeps, each at its least over all ways to get there, the head (no F of
the next stage starts sooner), the tail (what must follow an I of the next stage) and a cost that adds up. If no way
leads to the end, T is out of reach, whatever the partition, mapping, replication and order
(docs/proofs/bounds.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy
from numpy.typing import NDArray

from planner.bounds.bisection import largest_refuted
from planner.bounds.heaviest_path import NEVER, Replicas, Trunk, replica_ranges
from planner.bounds.minimum_costs import Integers, Least
from planner.bounds.stage_forms import StageForm, least_form, stage_forms
from planner.clock import HasTime, always

Mask = NDArray[numpy.bool_]

MAX_MAGNITUDE = 1 << 60
"""Sums stay below this, so that 64 bits hold them."""

_MAX_LOADS = 1000
"""Most different works of intervals of layers for which the loads that a device can have are listed."""

_MOST_REMEMBERED = 200_000
"""Stages that a programme remembers, each with some 150 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What the cost of a state is made of; any choice gives a valid bound."""

    weights: dict[str, int]
    """Per device type: weight of the time of a device of that type, at least 0."""
    memory: int
    """Weight of bytes x time, at least 0."""
    shift: int
    """Bytes are counted in units of 2 ** shift, rounded down where they are needed and up where they are offered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stages:
    """All stages of a form that begin at one boundary, on a range of numbers of replicas; one entry per end."""

    ends: slice
    """The boundaries behind their last layers."""
    replicas: Replicas
    """Their number, at least and at most."""
    used: int
    """On how many devices, at least."""
    forward: Integers
    """F of a replica."""
    returning: Integers
    """I of a replica, or B if that is shorter."""
    rest: Integers
    """The rest of its backward pass."""
    work: Integers
    """M x (F and backward)."""
    turning: Integers
    """M x (F and I)."""
    synchronisation: Integers
    """After the last W."""
    in_flight: Integers
    """F that may have started without their I having ended."""
    keeping: tuple[int, Integers]
    """How many microbatches recompute nothing at least, and how many of these may be in flight."""
    forced: Integers
    """Work of I and W that memory forces before the last F."""
    kept: Integers
    """Bytes of a microbatch over all replicas, from I to W."""
    static: Integers
    """Resident bytes over all replicas."""
    fits: Mask
    """Whether one microbatch fits into the largest device."""
    excess: Integers
    """Weighted device time beyond the least of the layers in any form."""


class DivisionProgramme:
    """The programme for one objective T."""

    def __init__(self, trunk: Trunk, deadline: int, *, price: Price, forms: Sequence[StageForm] = ()) -> None:
        """`forms`: those that stages have; none: the least of all in one, which knows more of loads."""
        least = trunk.least
        options = least.problem.options
        self.trunk, self.least, self.price = trunk, least, price
        self.is_span = options.ranked_by == "span"
        self.deadline = deadline - (0 if self.is_span else least.optimizer_ns)
        self.count, self.num_devices = least.problem.num_microbatches, least.num_devices
        self.chunks = options.max_stages_per_device
        widest = max(form.width for form in forms) if forms else 1
        self.slots = min(self.chunks * self.num_devices, trunk.num_layers * least.problem.max_replicas * widest)
        self.is_single = least.problem.max_replicas == 1
        self.runs = self.chunks if self.is_single else 1
        self.memory = max(device.usable_bytes for device in least.problem.cluster.devices)
        self.ranges = [entry for entry in replica_ranges(least.problem.max_replicas) if entry.least <= self.slots]
        self.shapes = [
            (form, entry)
            for form in forms or [least_form(trunk)]
            for entry in self.ranges
            if form.width * entry.least <= self.num_devices
        ]
        self.buffers, self.has_forms = options.receive_buffers, bool(forms)
        self.turned = trunk.forward + trunk.returning
        self._known: dict[int, list[_Stages]] = {}

    @cached_property
    def hops(self) -> tuple[list[int], list[int]]:
        """Per boundary: least time of an activation and of a gradient between stages on different devices.

        A replica waits for all that overlaps it, at least 1 / R**2 of the microbatch each. With several chunks per
        device and several replicas, stages may follow each other on the same devices: nothing is counted.
        """
        if self.chunks > 1 and not self.is_single:
            return [0] * len(self.trunk.forward_bytes), [0] * len(self.trunk.forward_bytes)
        share = self.least.problem.max_replicas**2
        forward, backward = (
            [self.least.transfer_ns(size // share) for size in sizes]
            for sizes in (self.trunk.forward_bytes, self.trunk.backward_bytes)
        )
        return forward, [time if has else 0 for time, has in zip(backward, self.trunk.returns, strict=True)]

    @cached_property
    def _synchronisations(self) -> dict[Replicas, Integers]:
        return {entry: self.trunk.synchronisation(entry) for entry in self.ranges}

    def _all_stages(self, start: int) -> list[_Stages]:
        """The stages of every form from a boundary; remembered for the second look, as far as there is room."""
        found = self._known.get(start)
        if found is None:
            made = (self._stages(start, form, replicas=replicas) for form, replicas in self.shapes)
            found = [stages for stages in made if stages is not None]
            if len(self._known) * len(self.shapes) * self.trunk.num_layers < _MOST_REMEMBERED:
                self._known[start] = found
        return found

    def _stages(self, start: int, form: StageForm, *, replicas: Replicas) -> _Stages | None:
        """The stages from a boundary that are done in time on their own."""
        trunk, most = self.trunk, replicas.most
        done = self.count * (form.forward + form.backward) + form.recomputing[0] * form.repeated
        last = int(numpy.searchsorted(done, done[start] + self.deadline * most, side="right")) - 1
        room = self.memory * most + form.state[start] * most + trunk.stash[start]
        last = min(last, int(numpy.searchsorted(form.state * most + trunk.stash, room, side="right")) - 1)
        last = min(last, int(numpy.searchsorted(form.lacking, form.lacking[start], side="right")) - 1)
        if last <= start:
            return None
        ends = slice(start + 1, last + 1)
        forward, returning, backward, held, kept, state, stash, gradient = (
            sums[ends] - sums[start]
            for sums in (
                form.forward, form.returning, form.backward, form.held,
                trunk.kept, form.state, trunk.stash, trunk.gradient,
            )
        )  # fmt: skip
        spare = (self.memory - state) * most - self._buffers(start, ends)
        times = self._synchronisations[replicas]
        synchronisation = numpy.maximum(times[ends] - times[start] - 1, 0)
        if replicas.least > 1:
            synchronisation += numpy.where(gradient > 0, trunk.synchronisation_latency(replicas), 0)
        extra: Integers | int = 0
        if form.layers is not None:
            extra = form.layers.beyond(start, ends, room=spare // form.fitting[0])
            returning, backward = returning + extra, backward + extra
        repeated = form.recomputing[0] * (form.repeated[ends] - form.repeated[start])
        left = form.left[ends] - form.left[start]
        kept_in_flight, in_flight = self._in_flight(form, held=held, left=left, spare=spare)
        least_held = numpy.minimum(held, left) if form.recomputing[1] else held
        before, after = self.least.overhead
        returned, rest = returning // most + after, (backward - returning) // most
        return _Stages(
            ends=ends,
            replicas=replicas,
            used=form.width * replicas.least,
            forward=forward // most + before,
            returning=returned,
            rest=rest,
            work=(self.count * (forward + backward) + repeated) // most + self.count * (before + after),
            turning=(self.count * (forward + returning) + repeated) // most + self.count * (before + after),
            synchronisation=synchronisation * (0 if self.is_span else 1),
            in_flight=in_flight,
            keeping=(self.count - form.recomputing[1], kept_in_flight),
            forced=self._forced(self.count - in_flight, memory=(least_held, kept, spare), work=(returned, rest)),
            kept=kept,
            static=state * form.width * replicas.least,
            fits=(stash <= spare) & (form.fitting[0] * held <= spare),
            excess=self.count * (form.excess[ends] - form.excess[start] + form.weight * extra)
            + form.recomputing[0] * (form.repeated_excess[ends] - form.repeated_excess[start]),
        )

    def _in_flight(
        self, form: StageForm, *, held: Integers, left: Integers, spare: Integers
    ) -> tuple[Integers, Integers]:
        """How many microbatches that recompute nothing may be in flight at once, and how many of all."""

        def fitting(room: Integers, size: Integers, *, most: int) -> Integers:
            return _between(numpy.where(size > 0, room // numpy.maximum(size, 1), most), least=0, most=most)

        most = self.count if form.fitting[1] is None else min(self.count, form.fitting[1])
        kept = every = fitting(spare, held, most=most)
        if form.recomputing[1]:
            recomputing = fitting(spare, left, most=form.recomputing[1])
            every = recomputing + fitting(spare - recomputing * left, held, most=most)
        return numpy.maximum(kept, 1), _between(every, least=1, most=self.count)

    def _forced(
        self, least: Integers, *, memory: tuple[Integers, Integers, Integers], work: tuple[Integers, Integers]
    ) -> Integers:
        """Least work of I and W before the last F: with a >= `least` of I, memory asks for W, the fewer the more I.

        Their number is convex in a, so the least is where a is least or where no W is needed; both rounded down.
        """
        (held, kept, spare), (returning, rest) = memory, work
        excess = (self.count - least) * held + least * kept - spare
        few = least * returning + _between(excess // numpy.maximum(kept, 1), least=0, most=self.count) * rest
        enough = (self.count * held - spare) // numpy.maximum(held - kept, 1)
        many = numpy.where(held > kept, _between(enough, least=least, most=2 * self.count) * returning, few)
        return numpy.where(kept > 0, numpy.minimum(few, many), least * returning)

    def _buffers(self, start: int, ends: slice) -> Integers:
        """Receive buffers of the replicas together, where neighbours are never on the same device."""
        if self.chunks > 1:
            return numpy.zeros(ends.stop - ends.start, dtype=numpy.int64)
        gradients = numpy.array(self.trunk.backward_bytes[ends], dtype=numpy.int64)
        return self.buffers * (gradients + self.trunk.forward_bytes[start])

    @cached_property
    def turnarounds(self) -> Integers:
        """[boundary, hops since the device changed, slots left]: least time from the end of F there to its gradient."""
        size = self.trunk.num_layers
        found = numpy.full((size + 1, self.runs, self.slots + 1), NEVER, dtype=numpy.int64)
        found[size] = 0
        for start in range(size - 1, -1, -1):
            if not self.trunk.returns[start]:
                found[start] = 0
                continue
            for stages in self._all_stages(start):
                if stages.fits.any():
                    self._raise_turnaround(found, start, stages=stages)
        return numpy.where(found < NEVER // 2, found, NEVER)

    def _raise_turnaround(self, found: Integers, start: int, *, stages: _Stages) -> None:
        """Turnarounds through one of the stages; staying on a device costs no transfer, but only C stages fit there."""
        used = stages.used
        inside = numpy.where(stages.fits, stages.forward + stages.returning, NEVER // 2)
        hop = self.hops[0][start] + self.hops[1][start]
        below = found[stages.ends, :, : self.slots + 1 - used] + inside[:, None, None]
        through = below.min(axis=0)
        for run in range(self.runs):
            best = through[0] + hop
            if run + 1 < self.runs:
                best = numpy.minimum(best, through[run + 1])
            found[start, run, used:] = numpy.minimum(found[start, run, used:], best)

    def is_out_of_reach(self) -> bool:
        """Whether no plan has an objective of at most T."""
        shape = (self.trunk.num_layers + 1, self.runs, self.slots + 1)
        self.heads, self.tails, self.costs = (numpy.full(shape, NEVER, dtype=numpy.int64) for _ in range(3))
        for table in (self.heads, self.tails, self.costs):
            table[0, self.runs - 1, 0] = 0
        for start in range(self.trunk.num_layers):
            if self.heads[start].min() >= NEVER:
                continue
            for stages in self._all_stages(start):
                self._go_on(start, stages)
        return not self._is_affordable()

    def _go_on(self, start: int, stages: _Stages) -> None:
        """Append each of the stages to every state at its start, on other devices or (within a run) on the same."""
        before = [table[start, :, : self.slots + 1 - stages.used] for table in (self.heads, self.tails, self.costs)]
        if not self.trunk.returns[start]:
            before[1] = numpy.zeros_like(before[1])
        head, tail, cost = (table.min(axis=0) for table in before)
        forward, backward = (self.hops[0][start], self.hops[1][start]) if start else (0, 0)
        self._append(start, stages, run=0, state=(head + forward, tail + backward, cost + self._hop_cost(start)))
        for run in range(1, self.runs if start else 0):
            self._append(start, stages, run=run, state=(before[0][run - 1], before[1][run - 1], before[2][run - 1]))

    def _hop_cost(self, start: int) -> int:
        """Everything stashed upstream waits for the transfers, and both ends have receive buffers."""
        if not start or not (self.is_single or self.chunks == 1):
            return 0
        trunk, shift = self.trunk, self.price.shift
        waiting = int(trunk.held[start] - trunk.held[trunk.gradient_start[start]]) >> shift
        stashed = self.count * waiting * (self.hops[0][start] + self.hops[1][start])
        buffers = self.buffers * (trunk.forward_bytes[start] + trunk.backward_bytes[start]) >> shift
        return self.price.memory * (stashed + buffers * self.deadline)

    def _append(self, start: int, stages: _Stages, *, run: int, state: tuple[Integers, Integers, Integers]) -> None:
        head, tail, cost = (values[None, :] for values in state)
        if head.min() >= NEVER // 2:
            return
        if self.is_span:
            head, tail = numpy.where(head < NEVER // 2, 0, NEVER), tail * 0
        follows = numpy.maximum(tail, (stages.rest + stages.synchronisation)[:, None] * (0 if self.is_span else 1))
        allowed = self._is_in_time(start, stages, head=head, tail=follows) & self._is_in_memory(
            stages, run=run, head=head, tail=follows
        )
        if not allowed.any():
            return
        used = stages.used
        slots = numpy.arange(self.slots + 1)
        weight = self._slot_weights[slots[used:]] - self._slot_weights[slots[: self.slots + 1 - used]]
        added = stages.excess + self._memory_cost(start, stages)
        prices = cost + weight[None, :] * self._idle(head) + added[:, None]
        for table, values in (
            (self.heads, head + stages.forward[:, None]),
            (self.tails, follows + stages.returning[:, None]),
            (self.costs, prices),
        ):
            place = table[stages.ends, run, used:]
            numpy.minimum(place, numpy.where(allowed, values, NEVER), out=place)

    def _is_in_time(self, start: int, stages: _Stages, *, head: Integers, tail: Integers) -> Mask:
        """Rules 1 to 4: the stage on its own, its last I, and what all devices have to do before that."""
        trunk, size = self.trunk, self.num_devices
        end = trunk.gradient_end[start]
        turned = int(self.turned[end] - self.turned[start])
        passed = int(trunk.forward[end] + trunk.returning[end] - trunk.returning[start])
        own = stages.synchronisation + self.count * (passed + stages.rest * stages.replicas.least) // size
        allowed: Mask = stages.fits[:, None] & (head + (stages.work + stages.synchronisation)[:, None] <= self.deadline)
        allowed &= head + stages.turning[:, None] + tail <= self.deadline
        allowed &= head + self.count * turned // size + tail <= self.deadline
        allowed &= self.count * passed // size + tail <= self.deadline
        allowed &= own[:, None] <= self.deadline
        return allowed

    def _is_in_memory(self, stages: _Stages, *, run: int, head: Integers, tail: Integers) -> Mask:
        """Rules 5 to 7: few microbatches are between F and I, fewer of those that keep all; W make room for F."""
        left = self.slots - stages.used - numpy.arange(head.shape[1])
        turnaround = self.turnarounds[stages.ends, run][:, left] + (stages.forward + stages.returning)[:, None]
        rounds, rest = numpy.divmod(self.count - 1, stages.in_flight)
        allowed: Mask = (turnaround < NEVER) & (
            head + rounds[:, None] * turnaround + (rest * stages.forward)[:, None] + turnaround + tail <= self.deadline
        )
        num_kept, kept_in_flight = stages.keeping
        if 0 < num_kept < self.count:
            rounds, rest = numpy.divmod(num_kept - 1, kept_in_flight)
            kept = head + rounds[:, None] * turnaround + (rest * stages.forward)[:, None] + turnaround + tail
            allowed &= kept <= self.deadline
        # rule 6: from the first I to the last F lies the work that memory forces, after it another turnaround
        forced = stages.forced + numpy.maximum(self.count - stages.in_flight, 0) * stages.forward
        first, last = turnaround - stages.returning[:, None], turnaround - stages.forward[:, None]
        in_rounds = head + first + forced[:, None] + last + tail
        allowed &= (stages.in_flight == self.count)[:, None] | (in_rounds <= self.deadline)
        if self.chunks == 1:
            # rule 7: before the first I a device of one stage only has so many F to run
            idle = numpy.maximum(turnaround - (stages.in_flight * stages.forward + stages.returning)[:, None], 0)
            allowed &= head + (stages.work + stages.synchronisation)[:, None] + idle <= self.deadline
        return allowed

    def _memory_cost(self, start: int, stages: _Stages) -> Integers:
        """Rule 8: bytes x time of all that waits while the stage runs F and I, of its own until W, and of its state."""
        if not self.price.memory:
            return numpy.zeros(len(stages.forward), dtype=numpy.int64)
        trunk, shift = self.trunk, self.price.shift
        waiting = (trunk.held[stages.ends] - trunk.held[trunk.gradient_start[start]]) >> shift
        moving = self.count * (waiting * (stages.forward + stages.returning) + (stages.kept >> shift) * stages.rest)
        cost: Integers = self.price.memory * (moving + (stages.static >> shift) * self.deadline)
        return cost

    @cached_property
    def _loads(self) -> Integers | None:
        """The loads a device can have, sorted, where they are few: equal devices, no replicas, 1 or 2 stages each."""
        trunk = self.trunk
        if not self.is_single or self.chunks > 2 or len(self.least.types) > 1 or not trunk.is_everything:
            return None
        ends = trunk.forward + trunk.backward
        works = numpy.unique((ends[:, None] - ends[None, :])[numpy.tril_indices(len(ends))])
        if len(works) > _MAX_LOADS or self.least.widths != (1,) or self.has_forms:
            return None
        return self.count * (numpy.unique(works[:, None] + works[None, :]) if self.chunks == 2 else works)

    def _idle(self, head: Integers) -> Integers:
        """Rule 9: time until T that a device cannot work: its head, and what the largest load that fits leaves over."""
        if self._loads is None or self.is_span:
            return head
        fitting = numpy.searchsorted(self._loads, self.deadline - head, side="right") - 1
        return numpy.where(fitting >= 0, self.deadline - self._loads[numpy.maximum(fitting, 0)], self.deadline)

    @cached_property
    def _slot_weights(self) -> Integers:
        """Per number of slots: the sum of the largest weights of as many devices, at most of all.

        Where slots are not counted exactly, they may hold more devices: then none of them is known to be idle.
        """
        weights = sorted(
            (self.price.weights[device.type] for device in self.least.problem.cluster.devices), reverse=True
        )
        has_widths = self.least.widths != (1,) and not self.has_forms
        if has_widths or any(entry.least < entry.most for entry in self.ranges):
            return numpy.full(self.slots + 1, self._total_weight, dtype=numpy.int64)
        sums = numpy.cumsum([0, *weights, *[0] * self.slots], dtype=numpy.int64)
        return sums[: self.slots + 1]

    @cached_property
    def _total_weight(self) -> int:
        return sum(self.price.weights[device.type] for device in self.least.problem.cluster.devices)

    def _is_affordable(self) -> bool:
        """Rules 8 and 9: whether some way to the end costs no more than devices and memory offer until T."""
        costs = self.costs[-1].min(axis=0)
        idle = (self._total_weight - self._slot_weights) * self.deadline
        need = numpy.where(costs < NEVER // 2, costs + idle, NEVER) + self.weighted_work
        return bool((need <= self._offer).any())

    @cached_property
    def _offer(self) -> int:
        """What devices and memory offer until T; what the layers beside the trunk hold is taken off."""
        memory = sum(device.usable_bytes for device in self.least.problem.cluster.devices) - self.trunk.state_beside
        units = -(-memory >> self.price.shift)
        return self._total_weight * self.deadline + self.price.memory * units * self.deadline

    @cached_property
    def weighted_work(self) -> int:
        """The least weighted time of all work; of the trunk alone if devices may work beside it before their heads."""
        work = self.least.weighted_work(self.price.weights)
        return self.count * sum(work if self.trunk.is_everything else (work[layer] for layer in self.trunk.path))

    @property
    def is_exact(self) -> bool:
        """Whether no sum can leave 64 bits."""
        hops = sum(self.hops[0]) + sum(self.hops[1])
        most, forms = max(entry.most for entry in self.ranges), [form for form, _ in self.shapes]
        work, state = max(form.work for form in forms), max(form.width * int(form.state[-1]) for form in forms)
        time = 2 * self.count * most * (work + hops) + self.deadline * most
        moving = self.count * (int(self.trunk.stash[-1]) >> self.price.shift) * (work + hops)
        received = self.buffers * sum(self.trunk.forward_bytes + self.trunk.backward_bytes)
        static = state * most + received >> self.price.shift
        cost = self.price.memory * (moving + static * self.deadline) + self.weighted_work + self._offer
        cost += self.count * max(
            int(form.excess[-1] + form.repeated_excess[-1]) + form.weight * form.most_beyond for form in forms
        )
        room = (self.memory + state + int(self.trunk.stash[-1]) + received) * most
        return max(time, cost, room, self.deadline) < MAX_MAGNITUDE

    @property
    def effort(self) -> int:
        """About how many table entries one answer takes."""
        size, lengths = self.trunk.num_layers, 0
        for form, entry in self.shapes:
            length = size * self.deadline // max(self.count * form.work, 1) + 1
            lengths += min(size, length * entry.most) + 50
        return size * lengths * self.runs * (self.slots + 1)


def _between(values: Integers, *, least: Integers | int, most: int) -> Integers:
    """What `numpy.clip` gives, which takes four times as long for as few values as these."""
    return numpy.minimum(numpy.maximum(values, least), most)


def make_price(least: Least, deadline: int, *, weights: dict[str, int] | None) -> Price:
    """The price of time with these weights, or of memory (None), in units that keep sums up to T within 64 bits."""
    if weights is not None:
        scale = max(1, max(weights.values()) // 256) if len(weights) > 1 else max(weights.values())
        return Price(weights={name: weight // scale for name, weight in weights.items()}, memory=0, shift=0)
    total = sum(device.usable_bytes for device in least.problem.cluster.devices)
    shift = max(0, (total * max(deadline, 1)).bit_length() - 54)
    return Price(weights=dict.fromkeys(least.types, 0), memory=1, shift=shift)


def raise_bound(
    trunk: Trunk, start: int, *, price: Price, steps: int, entries: float = inf, has_time: HasTime = always
) -> int:
    """The largest T + 1 found out of reach, at least `start`, in so many steps: doubled strides, then halves.

    `entries`: of tables, about, that may be looked at without forms of stages, and then with these.
    """
    for forms in every_forms(trunk, price):

        def is_out(deadline: int, forms: Sequence[StageForm] = forms) -> bool:
            programme = DivisionProgramme(trunk, deadline, price=price, forms=forms)
            return programme.is_exact and programme.is_out_of_reach()

        most = entries / DivisionProgramme(trunk, start, price=price, forms=forms).effort
        start = largest_refuted(is_out, start, steps=int(min(steps, most)), has_time=has_time)
    return start


def every_forms(trunk: Trunk, price: Price) -> list[list[StageForm]]:
    """What a programme may tell apart: nothing, and the forms of stages, if there are several."""
    forms = stage_forms(trunk, price.weights)
    return [[], forms] if forms else [[]]

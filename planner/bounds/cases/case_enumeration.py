"""All partitions and mappings of a small problem that may end by a deadline, level by level, many at once.

A state is a sequence of stages, each a segment on an assignment, that begins with the sources of the graph. The stages
of every plan are such a sequence, in the order of their heads, which follows the dependencies. States are left out for
three reasons only: no plan that begins so ends by the deadline, the heads are in no order, or a symmetry of the devices
leads to a sequence that is looked at (docs/proofs/refutations.md).
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import numpy

from planner.bounds.cases.case_tables import FORWARD, HELD, REST, RETURNING, STATE, WORKSPACE, CaseTables, WorkCount
from planner.bounds.cases.order_windows import NEVER, Bits
from planner.bounds.minimum_costs import Integers
from planner.bounds.work import find_weights
from planner.layout.costs import overlaps

BATCH = 20_000
"""States that are looked at together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Beginnings of `N` plans, of equally many stages each."""

    done: Integers
    """[N] number of the set of layers that are in a stage."""
    segments: Integers
    """[N, stages]"""
    assignments: Integers
    """[N, stages]"""
    used: Integers
    """[N, devices] stages on a device."""
    load: Integers
    """[N, devices] time of its actions."""
    first: Integers
    """[N, devices] none of them starts sooner; 0 where there is none."""
    state: Integers
    """[N, devices] bytes that are resident."""
    running: Integers
    """[N, devices] the most that one microbatch takes besides."""
    ready: Integers
    """[N, layers] the first F of the layer's stage ends no sooner."""
    back: Integers
    """[N, layers] from the start of an I of the layer's stage to the end of what follows for its microbatch."""
    assignment_of: Integers
    """[N, layers] assignment of the layer's stage."""
    head: Integers
    """[N] the last stage starts no sooner, and no stage before it is known to start later."""
    is_same: Bits
    """[N, symmetries] whether the symmetry takes the assignments to themselves."""

    def take(self, rows: Integers) -> "States":
        """These states, some maybe several times."""
        return States(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})


class CaseEnumeration:
    """The cases of a problem that end by a deadline, as far as quick rules see."""

    def __init__(self, tables: CaseTables, deadline: int, *, effort: WorkCount) -> None:
        """`effort`: a unit is spent for every state."""
        self.tables, self.deadline, self.effort = tables, deadline, effort
        self.count = tables.problem.num_microbatches
        self.places = min(tables.problem.options.max_stages_per_device, len(tables.names))
        self.full = len(tables.downsets) - 1

    def cases(self) -> Iterator[tuple[Integers, Integers]]:
        """([N, stages] segments, [N, stages] assignments) of whole plans that are left, some at a time.

        Raises TooManyCasesError as soon as that takes more effort than there may be.
        """
        ahead = [self._root()]
        while ahead:
            states = ahead.pop()
            if len(states.done) > BATCH:
                half = numpy.arange(len(states.done))
                ahead += [states.take(half[BATCH:]), states.take(half[:BATCH])]
                continue
            following = self._expand(states)
            is_whole = following.done == self.full
            whole, rest = numpy.flatnonzero(is_whole), numpy.flatnonzero(~is_whole)
            if len(whole):
                yield following.segments[whole], following.assignments[whole]
            if len(rest):
                ahead.append(following.take(rest))

    def _root(self) -> States:
        devices, layers = len(self.tables.devices), len(self.tables.names)
        zeros, columns = numpy.zeros((1, devices), dtype=numpy.int64), numpy.zeros((1, layers), dtype=numpy.int64)
        empty = numpy.zeros((1, 0), dtype=numpy.int64)
        return States(
            done=numpy.zeros(1, dtype=numpy.int64), segments=empty, assignments=empty, used=zeros, load=zeros,
            first=zeros,
            state=zeros, running=zeros, ready=columns, back=columns, assignment_of=columns,
            head=numpy.zeros(1, dtype=numpy.int64),
            is_same=numpy.ones((1, len(self.tables.images)), dtype=bool),
        )  # fmt: skip

    def _expand(self, states: States) -> States:
        """Every stage that may come next, after every state."""
        starts, ends, segments = self._extensions
        assignments = numpy.arange(len(self.tables.assignments))
        parts = []
        num_extensions = starts[states.done + 1] - starts[states.done]
        parents = numpy.repeat(numpy.arange(len(states.done)), num_extensions)
        first = numpy.repeat(numpy.cumsum(num_extensions) - num_extensions, num_extensions)
        extensions = numpy.repeat(starts[states.done], num_extensions) + numpy.arange(len(parents)) - first
        size = max(1, BATCH * 4 // len(assignments))
        for begin in range(0, len(parents), size):
            rows = numpy.repeat(parents[begin : begin + size], len(assignments))
            extension = numpy.repeat(extensions[begin : begin + size], len(assignments))
            assignment = numpy.tile(assignments, len(extension) // len(assignments))
            kept = self._is_possible(states, rows, segment=segments[extension], assignment=assignment)
            rows, extension, assignment = rows[kept], extension[kept], assignment[kept]
            self.effort.spend(len(rows))
            parts.append(
                self._append(states.take(rows), segments[extension], assignment=assignment, done=ends[extension])
            )
        names = [each.name for each in fields(States)]
        return States(**{name: numpy.concatenate([getattr(part, name) for part in parts]) for name in names})

    @cached_property
    def _extensions(self) -> tuple[Integers, Integers, Integers]:
        """Per set of layers done, where its ways begin; per way, the set it leads to and the segment that it adds."""
        extensions = self.tables.extensions
        starts = numpy.cumsum([0, *(len(row) for row in extensions)])
        pairs = numpy.array([pair for row in extensions for pair in row], dtype=numpy.int64).reshape(-1, 2)
        return starts, pairs[:, 0], pairs[:, 1]

    @cached_property
    def _work(self) -> Integers:
        """[segments, assignments, devices] time of all actions."""
        figures = self.tables.figures
        return numpy.asarray(self.count * figures[..., [FORWARD, RETURNING, REST]].sum(axis=-1))

    def _is_possible(self, states: States, rows: Integers, *, segment: Integers, assignment: Integers) -> Bits:
        """Whether a stage may come next as far as loads, memory, places and symmetries say."""
        members = self.tables.members[assignment]
        load = states.load[rows] + self._work[segment, assignment]
        possible = ((states.used[rows] + members) <= self.places).all(axis=1)
        possible &= (states.first[rows] + load <= self.deadline).all(axis=1)
        figures = self.tables.figures
        state = states.state[rows] + figures[segment, assignment, :, STATE]
        running = figures[segment, assignment, :, HELD] + figures[segment, assignment, :, WORKSPACE]
        possible &= (state + numpy.maximum(states.running[rows], running) <= self.tables.usable).all(axis=1)
        images = self.tables.images[:, assignment].T
        possible &= ~(states.is_same[rows] & (images < assignment[:, None])).any(axis=1)
        return numpy.asarray(possible)

    def _append(self, states: States, segment: Integers, *, assignment: Integers, done: Integers) -> States:
        """The states with one stage more; those that cannot end by the deadline are left out."""
        tables, figures = self.tables, self.tables.figures[segment, assignment]
        members, inside = tables.members[assignment] > 0, tables.layers[segment] > 0
        head, tail = self._surroundings(states, inside, assignment=assignment)
        forward, returning = figures[..., FORWARD], figures[..., RETURNING]
        ready = head + numpy.where(members, forward, -NEVER).min(axis=1)
        back = tail + numpy.where(members, returning, -NEVER).min(axis=1)
        load = states.load + self._work[segment, assignment]
        is_new = members & (states.used == 0)
        first = numpy.where(is_new, head[:, None], states.first)
        first = numpy.where(members & ~is_new, numpy.minimum(first, head[:, None]), first)
        longest = self.count * (forward + returning) + numpy.maximum(tail[:, None], figures[..., REST])
        kept = numpy.where(members, head[:, None] + longest, 0).max(axis=1) <= self.deadline
        kept &= (first + load <= self.deadline).all(axis=1) & (head >= states.head)
        following = States(
            done=done,
            segments=numpy.concatenate([states.segments, segment[:, None]], axis=1),
            assignments=numpy.concatenate([states.assignments, assignment[:, None]], axis=1),
            used=states.used + members,
            load=load,
            first=first,
            state=states.state + figures[..., STATE],
            running=numpy.maximum(states.running, figures[..., HELD] + figures[..., WORKSPACE]),
            ready=numpy.where(inside, ready[:, None], states.ready),
            back=numpy.where(inside, back[:, None], states.back),
            assignment_of=numpy.where(inside, assignment[:, None], states.assignment_of),
            head=head,
            is_same=states.is_same & (assignment[:, None] == tables.images[:, assignment].T),
        )
        kept &= self._has_capacity(following)
        return following.take(numpy.flatnonzero(kept))

    def _surroundings(self, states: States, inside: Bits, *, assignment: Integers) -> tuple[Integers, Integers]:
        """When the first F of a stage may start, and what follows an I of it upstream."""
        head = numpy.zeros(len(assignment), dtype=numpy.int64)
        tail = numpy.zeros(len(assignment), dtype=numpy.int64)
        for number, (producer, consumer, edge) in enumerate(self.tables.edges):
            crosses = inside[:, consumer] & ~inside[:, producer]
            forward, backward = self._lags[number][:, states.assignment_of[:, producer], assignment]
            head = numpy.where(crosses, numpy.maximum(head, states.ready[:, producer] + forward), head)
            if edge.has_gradient:
                tail = numpy.where(crosses, numpy.maximum(tail, states.back[:, producer] + backward), tail)
        return head, tail

    @cached_property
    def _lags(self) -> list[Integers]:
        """Per edge [2, assignments, assignments]: least times of its activation and gradient between assignments."""
        return [self._lag(edge.bytes, edge.backward_bytes) for _, _, edge in self.tables.edges]

    def _lag(self, num_bytes: int, backward_bytes: int) -> Integers:
        assignments = [members for members, _ in self.tables.assignments]
        table = numpy.zeros((2, len(assignments), len(assignments)), dtype=numpy.int64)
        names = self.tables.devices
        for a, senders in enumerate(assignments):
            for b, receivers in enumerate(assignments):
                if set(senders) & set(receivers):
                    continue
                shares = [share for _, _, share, _ in overlaps(len(senders), len(receivers))]
                whole, share = len(senders) * len(receivers), min(shares)
                pairs = [(names[i], names[j]) for i in senders for j in receivers]
                for extension, size in enumerate((num_bytes, backward_bytes)):
                    part = -(-size * share // whole)
                    ends = pairs if extension == 0 else [(j, i) for i, j in pairs]
                    table[extension, a, b] = min(self._least_transfer(i, j, num_bytes=part) for i, j in ends)
        return table

    def _least_transfer(self, source: str, target: str, *, num_bytes: int) -> int:
        """No transfer of so many bytes or more is faster; over several links, more bytes may go another, faster way."""
        if (source, target) not in self.tables.linked:
            return self.tables.least.transfer_ns(num_bytes)
        return self.tables.problem.cluster.route(source, target, num_bytes=num_bytes).duration_ns(num_bytes)

    @cached_property
    def _prices(self) -> list[tuple[Integers, Integers]]:
        """Prices of time: [devices] per device, and [layers] the least that a layer's work costs at them."""
        least = self.tables.least
        types = [device.type for device in self.tables.problem.cluster.devices]
        found = []
        for weights in (dict.fromkeys(least.types, 1), find_weights(least)):
            scale = max(1, max(weights.values()) >> 6)
            coarse = {name: max(1, weight // scale) for name, weight in weights.items()}
            column = numpy.array([coarse[name] for name in types], dtype=numpy.int64)
            found.append((column, self.count * numpy.array(least.weighted_work(coarse), dtype=numpy.int64)))
        return found

    @cached_property
    def _left(self) -> Bits:
        """[sets of layers done, layers] the layers that are in no stage."""
        layers = numpy.arange(len(self.tables.names))
        return numpy.asarray(numpy.array(self.tables.downsets, dtype=numpy.int64)[:, None] >> layers & 1 == 0)

    def _has_capacity(self, states: States) -> Bits:
        """Whether the time that is left on all devices suffices for the layers that are left."""
        start = self._soonest(states)
        begin = numpy.where(states.used > 0, states.first + states.load, start[:, None])
        room = numpy.where(states.used < self.places, numpy.maximum(self.deadline - begin, 0), 0)
        enough = numpy.ones(len(start), dtype=bool)
        left = self._left[states.done]
        for price, work in self._prices:
            enough &= room @ price >= numpy.where(left, work, 0).sum(axis=1)
        return enough

    def _soonest(self, states: States) -> Integers:
        """No stage that is to come starts before: some layer that waits for layers in stages only is the first."""
        left = self._left[states.done]
        head = numpy.zeros(left.shape, dtype=numpy.int64)
        is_open = left.copy()
        for producer, consumer, _ in self.tables.edges:
            numpy.maximum(head[:, consumer], states.ready[:, producer], out=head[:, consumer])
            is_open[:, consumer] &= ~left[:, producer]
        soonest: Integers = numpy.where(is_open, head, -NEVER).min(axis=1)
        return numpy.where(soonest == -NEVER, 0, soonest)

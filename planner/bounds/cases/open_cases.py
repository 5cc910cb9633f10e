"""Whole partitions and mappings as cases whose orders are open: durations, transfers and memory per place."""

from collections.abc import Iterator
from itertools import combinations, permutations, product
from math import prod

import numpy

from planner.bounds.cases.case_tables import (
    FORWARD,
    FUSED,
    HELD,
    INPUT,
    KEPT,
    REST,
    RETURNING,
    STATE,
    STEP,
    WEIGHT,
    WORKSPACE,
    CaseTables,
    WorkCount,
    for_each,
)
from planner.bounds.cases.order_windows import NEVER, Cases
from planner.bounds.minimum_costs import Integers
from planner.layout.costs import overlaps
from planner.plan import Stage


class CaseMaker:
    """Cases of so many stages each, made from segments and assignments."""

    def __init__(self, tables: CaseTables, *, effort: WorkCount, are_links_free: bool = False) -> None:
        """`effort`: a unit is spent for every order of replicas. `are_links_free`: nothing waits there at all."""
        self.are_links_free = are_links_free
        self.tables, self.effort = tables, effort
        self.problem = tables.problem
        self.places = min(self.problem.options.max_stages_per_device, len(tables.names))
        orders: list[tuple[int, ...]] = []
        self.orders_of: list[list[int]] = []
        """Per assignment, the numbers of its devices' orders."""
        for members, _ in tables.assignments:
            found = list(permutations(members))
            self.orders_of.append(list(range(len(orders), len(orders) + len(found))))
            orders += found
        self.orders = numpy.full((len(orders), len(tables.devices)), -1, dtype=numpy.int64)
        for row, order in enumerate(orders):
            self.orders[row, : len(order)] = order

    def in_every_order(
        self, segments: Integers, assignments: Integers
    ) -> Iterator[tuple[Integers, Integers, Integers]]:
        """The same, and [N, stages] an order of replicas for every stage: all combinations."""
        for row in range(len(segments)):
            choices = [self.orders_of[assignment] for assignment in assignments[row].tolist()]
            self.effort.spend(prod(map(len, choices)))
            combinations = numpy.array(list(product(*choices)))
            yield (
                numpy.broadcast_to(segments[row], combinations.shape),
                numpy.broadcast_to(assignments[row], combinations.shape),
                combinations,
            )

    def stages(self, case: int, *, part: tuple[Integers, Integers, Integers]) -> tuple[Stage, ...]:
        """The stages of one of the cases with these segments, assignments and orders of replicas."""
        figures = zip(*(column[case].tolist() for column in part), strict=True)
        return tuple(
            self.tables.stage(segment, self._members(order), recompute=self.tables.assignments[assignment][1])
            for segment, assignment, order in figures
        )

    def make(self, segments: Integers, assignments: Integers, *, orders: Integers) -> tuple[Cases, Integers]:
        """The cases, and the numbers of those that may fit into memory."""
        num, stages = segments.shape
        devices, stage_replicas = len(self.tables.devices), len(self.tables.devices) * self.places
        stage_replica, figures = self._assign_all(segments, assignments, orders=orders)
        stage_of = self._stage_of(segments)
        forward = numpy.full((num, stage_replicas, stage_replicas), NEVER, dtype=numpy.int64)
        backward, rank = forward.copy(), numpy.zeros(forward.shape, dtype=numpy.int64)
        static = figures[..., STATE].reshape(num, devices, self.places).sum(axis=2)
        replicas = self.tables.replicas[assignments]
        for a, b in combinations(range(stages), 2):
            sizes = self._traffic(stage_of, sender=a, receiver=b)
            both, counts = (orders[:, a], orders[:, b]), (replicas[:, a], replicas[:, b])
            replicas_of = stage_replica[:, a], stage_replica[:, b]
            self._connect((forward, backward), sizes, orders=both, stage_replicas=replicas_of, replicas=counts)
            self._rank(rank, stage_of, stages=(a, b), stage_replicas=replicas_of)
            self._add_buffers(static, sizes, orders=both, replicas=counts)
        sent = numpy.zeros((num, devices, stage_replicas, 2), dtype=numpy.int64)
        for kind, transfers in () if self.are_links_free else enumerate((forward, backward)):
            sent[..., kind] = self._serialise_sends(transfers, rank)
        tail, bucket = self._synchronise(segments, orders, stage_replica=stage_replica)
        static += bucket
        tail += self._late_steps(figures[..., STEP].reshape(num, devices, self.places))[:, None]
        shape = (num, devices, self.places)
        held, kept, workspace = (figures[..., name].reshape(shape) for name in (HELD, KEPT, WORKSPACE))
        room = (self.tables.usable - static)[:, :, None] - workspace
        times = figures[..., [FORWARD, RETURNING, REST]]
        count = self.problem.num_microbatches
        cases = Cases(
            time=numpy.repeat(times[..., None], count, axis=3).reshape(num, devices, -1),
            returning=figures[..., INPUT], rest=figures[..., WEIGHT], fused=figures[..., FUSED],
            forward=forward, backward=backward, sent=sent * (times[..., :2] > 0)[:, None],
            tail=tail, held=held, kept=kept, room=room, count=count,
        )  # fmt: skip
        return cases, numpy.flatnonzero((room >= held).all(axis=(1, 2)))

    def _assign_all(self, segments: Integers, assignments: Integers, *, orders: Integers) -> tuple[Integers, Integers]:
        """[N, stages, devices] the stage replica of every replica (-1: none); [N, stage replicas, 11] what it costs."""
        num, stages = segments.shape
        devices = len(self.tables.devices)
        stage_replica = numpy.full((num, stages, devices), -1, dtype=numpy.int64)
        used = numpy.zeros((num, devices), dtype=numpy.int64)
        figures = numpy.zeros((num, devices * self.places, self.tables.figures.shape[-1]), dtype=numpy.int64)
        for stage, replica in product(range(stages), range(devices)):
            device = self.orders[orders[:, stage], replica]
            rows = numpy.flatnonzero(device >= 0)
            where = device[rows]
            stage_replica[rows, stage, replica] = where * self.places + used[rows, where]
            used[rows, where] += 1
            own = self.tables.figures[segments[rows, stage], assignments[rows, stage], where]
            figures[rows, stage_replica[rows, stage, replica]] = own
        return stage_replica, figures

    def _stage_of(self, segments: Integers) -> Integers:
        """[N, layers] the stage of every layer."""
        inside = self.tables.layers[segments]
        stages: Integers = inside.argmax(axis=1)
        return stages

    def _traffic(self, stage_of: Integers, *, sender: int, receiver: int) -> tuple[Integers, Integers, Integers]:
        """[N] bytes of activations and gradients from stage to stage, and whether a gradient flows, and -1 if nothing.

        Of every producer the most that any consumer of the stage takes.
        """
        num = len(stage_of)
        total = numpy.zeros((2, num), dtype=numpy.int64)
        has_edge, has_gradient = numpy.zeros(num, dtype=bool), numpy.zeros(num, dtype=bool)
        for layer in range(len(self.tables.names)):
            most = numpy.zeros((2, num), dtype=numpy.int64)
            for producer, consumer, edge in self.tables.edges:
                if producer != layer:
                    continue
                crosses = (stage_of[:, producer] == sender) & (stage_of[:, consumer] == receiver)
                has_edge |= crosses
                has_gradient |= crosses & edge.has_gradient
                for combination, size in enumerate((edge.bytes, edge.backward_bytes)):
                    most[combination] = numpy.where(crosses, numpy.maximum(most[combination], size), most[combination])
            total += most
        return numpy.where(has_edge, total[0], -1), total[1], has_gradient.astype(numpy.int64)

    def _connect(
        self,
        transfers: tuple[Integers, Integers],
        sizes: tuple[Integers, Integers, Integers],
        *,
        orders: tuple[Integers, Integers],
        stage_replicas: tuple[Integers, Integers],
        replicas: tuple[Integers, Integers],
    ) -> None:
        """Enter the times of transfers between the replicas of two stages that share samples."""
        for senders, receivers in {tuple(pair) for pair in numpy.stack(replicas, axis=1).tolist()}:
            rows = numpy.flatnonzero((replicas[0] == senders) & (replicas[1] == receivers) & (sizes[0] >= 0))
            for i, j, share, whole in overlaps(senders, receivers) if len(rows) else ():
                a, b = self.orders[orders[0][rows], i], self.orders[orders[1][rows], j]
                source, target = stage_replicas[0][rows, i], stage_replicas[1][rows, j]
                part = -(-sizes[0][rows] * share // whole)
                transfers[0][rows, source, target] = self.tables.duration(a, b, size=part)
                part = -(-sizes[1][rows] * share // whole)
                time = self.tables.duration(b, a, size=part)
                transfers[1][rows, target, source] = numpy.where(sizes[2][rows] > 0, time, NEVER)

    def _rank(
        self, rank: Integers, stage_of: Integers, *, stages: tuple[int, int], stage_replicas: tuple[Integers, Integers]
    ) -> None:
        """Enter which of the profile's edges is the first between two stages, for all of their replicas."""
        first = numpy.full(len(stage_of), len(self.tables.edges), dtype=numpy.int64)
        for number, (producer, consumer, _) in reversed(list(enumerate(self.tables.edges))):
            first[(stage_of[:, producer] == stages[0]) & (stage_of[:, consumer] == stages[1])] = number
        for i, j in product(*(range(own.shape[1]) for own in stage_replicas)):
            source, target = stage_replicas[0][:, i], stage_replicas[1][:, j]
            rows = numpy.flatnonzero((source >= 0) & (target >= 0))
            rank[rows, source[rows], target[rows]] = rank[rows, target[rows], source[rows]] = first[rows]

    def _serialise_sends(self, transfers: Integers, rank: Integers) -> Integers:
        """What a stage replica sends to several of one device comes over one by one, by the first edge between them.

        Returns [N, devices, stage replicas] how long what each sends to a device occupies the link there.
        """
        num, devices = len(transfers), len(self.tables.devices)
        times = transfers.reshape(num, devices, self.places, devices, self.places)
        ranks, alone = rank.reshape(times.shape), times.copy()
        is_fixed = self.tables.has_fixed_route[None, :, None, :]
        for own, other in permutations(range(self.places), 2):
            is_later = (alone[..., own] > 0) & (alone[..., other] > 0) & (ranks[..., other] < ranks[..., own])
            times[..., own] += numpy.where(is_later & is_fixed, alone[..., other], 0)
        sent = numpy.where(is_fixed, numpy.maximum(alone, 0).sum(axis=4), 0)
        return numpy.asarray(sent.reshape(num, -1, devices).swapaxes(1, 2))

    def _add_buffers(
        self,
        static: Integers,
        sizes: tuple[Integers, Integers, Integers],
        *,
        orders: tuple[Integers, Integers],
        replicas: tuple[Integers, Integers],
    ) -> None:
        """Receive buffers on the devices of both stages, unless the other one is on that device alone."""
        number = self.problem.options.receive_buffers
        for at, other, size in ((1, 0, sizes[0]), (0, 1, sizes[1])):
            each = -(-number * numpy.where(sizes[0] >= 0, size, 0) // replicas[at])
            for replica in range(self.orders.shape[1]):
                device = self.orders[orders[at], replica]
                is_alone = (replicas[other] == 1) & (self.orders[orders[other], 0] == device)
                rows = numpy.flatnonzero((device >= 0) & ~is_alone)
                static[rows, device[rows]] += each[rows]

    def _synchronise(
        self, segments: Integers, orders: Integers, *, stage_replica: Integers
    ) -> tuple[Integers, Integers]:
        """[N, stage replicas] time after the last action, and [N, devices] bytes of buckets."""
        costs = self.tables.costs
        tail = numpy.zeros((len(segments), stage_replica.shape[2] * self.places), dtype=numpy.int64)
        bucket = numpy.zeros((len(segments), stage_replica.shape[2]), dtype=numpy.int64)
        ends_whole = self.problem.options.synchronisation == "after"

        def measure(segment: int, order: int) -> int:
            return costs.synchronisation_ns(self.tables.stage(segment, self._members(order)))

        def hold(segment: int, order: int) -> int:
            return costs.reduction_bytes(self.tables.stage(segment, self._members(order)))

        for stage in range(segments.shape[1]):
            time = for_each(measure, segments[:, stage], orders[:, stage])
            size = for_each(hold, segments[:, stage], orders[:, stage])
            for replica in range(stage_replica.shape[2]):
                rows = numpy.flatnonzero(stage_replica[:, stage, replica] >= 0)
                place = stage_replica[rows, stage, replica]
                tail[rows, place] = time[rows] if ends_whole else 0
                device = place // self.places
                bucket[rows, device] = numpy.maximum(bucket[rows, device], size[rows])
        return tail, bucket

    def _late_steps(self, steps: Integers) -> Integers:
        """[N] by how much longer than at the least the optimizer takes, on the device that has most to do."""
        least = self.tables.least.optimizer_ns - self.problem.profile.optimizer_ns
        late: Integers = steps.sum(axis=2).max(axis=1) - least
        return late

    def _members(self, order: int) -> list[int]:
        return [device for device in self.orders[order].tolist() if device >= 0]

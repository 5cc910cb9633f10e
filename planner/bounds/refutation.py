"""Refutations: no plan of a small problem ends by a deadline, shown case by case.

All partitions and mappings are gone through (`case_enumeration`); those that no quick rule closes are closed by the
windows of their actions, or by a tree over the order of two actions: a node is closed by its windows, or has two nodes,
one for either order. The certificate holds the trees; everything else is derived again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from planner.bounds.backward_passes import ONE, SPLIT, settle, settle_passes
from planner.bounds.case_enumeration import CaseEnumeration
from planner.bounds.case_tables import MAX_DEADLINE_NS, CaseTables, TooManyCasesError, WorkCount
from planner.bounds.minimum_costs import Integers
from planner.bounds.open_cases import CaseMaker
from planner.bounds.order_windows import Cases, OrderNodes, begin, narrow, screen
from planner.clock import HasTime, always
from planner.costs import CostModel
from planner.problem import Problem

MAX_EFFORT, MAX_NODES = 2_000_000, 200_000
"""Units of work, and nodes of all trees, that a certificate may need; what states more is refused."""

UNIT_CELLS = 80
"""Pairs of actions of a node that cost a unit of work."""

BATCH_CELLS = 1_500_000
"""Pairs of actions that are looked at together."""

ORDER_BATCH = 4_000
"""Partitions and mappings, with an order of replicas each, that are made together."""

FIELDS = ("effort", "trees")
"""What a certificate has besides its kind and its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRefutation:
    """Why no plan ends by a deadline."""

    effort: int
    """Units of work that it takes to check."""
    trees: tuple[tuple[int, ...], ...]
    """For every case that is open, in order: nodes in preorder, 0 if closed, or 1 + the code of a pair."""


def refute(
    problem: Problem, costs: CostModel, *, value: int, effort: int = MAX_EFFORT, has_time: HasTime = always
) -> CaseRefutation | None:
    """A proof that no plan has a makespan below `value`; None if none was found within so many units of work."""
    spent = WorkCount(min(effort, MAX_EFFORT), has_time=has_time)
    try:
        proof = _Proof(problem, costs, value=value, effort=spent)
        search = _TreeSearch(effort=spent, has_time=has_time)
        for cases, orders in proof.open_cases():
            if not has_time() or not search.close(cases, orders):
                return None
    except TooManyCasesError:
        return None
    return CaseRefutation(effort=spent.spent, trees=tuple(search.trees))


def check(problem: Problem, costs: CostModel, *, value: int, effort: int, trees: Sequence[Sequence[int]]) -> bool:
    """Whether the trees show, with what is derived here, that no plan has a makespan below `value`.

    Raises ValueError if they do not fit the cases, or take more work than stated.
    """
    spent = WorkCount(effort)
    proof = _Proof(problem, costs, value=value, effort=spent)
    replay = _TreeCheck(trees, effort=spent)
    for cases, orders in proof.open_cases():
        if not replay.close(cases, orders):
            return False
    return replay.is_used_up and spent.spent == effort


def read(certificate: Mapping[str, Any]) -> tuple[int, list[list[int]]]:
    """Work and trees as stated; raises ValueError before anything is done that takes time."""
    effort, trees = certificate["effort"], certificate["trees"]
    if type(effort) is not int or not 0 <= effort <= MAX_EFFORT:
        raise ValueError(f"certificate: effort is not an integer from 0 to {MAX_EFFORT:,}; make the bound again")
    if not isinstance(trees, list) or len(trees) > MAX_NODES or not all(isinstance(tree, list) for tree in trees):
        raise ValueError("certificate: trees are no lists, or too many; make the bound again")
    if sum(map(len, trees)) > MAX_NODES:
        raise ValueError(f"certificate: trees have more than {MAX_NODES:,} nodes; make the bound again")
    if not all(type(code) is int and 0 <= code < 1 << 30 for tree in trees for code in tree):
        raise ValueError("certificate: trees have nodes that are no integers from 0; make the bound again")
    return effort, trees


class _Proof:
    """The cases of a problem that are open below a value."""

    def __init__(self, problem: Problem, costs: CostModel, *, value: int, effort: WorkCount) -> None:
        self.effort = effort
        tables = CaseTables(problem, costs)
        self.deadline = value - 1 - tables.least.optimizer_ns
        if not 0 <= self.deadline < MAX_DEADLINE_NS:
            raise TooManyCasesError("certificate: its value leaves the range of a refutation")
        self.enumeration = CaseEnumeration(tables, self.deadline, effort=effort)
        self.maker = CaseMaker(tables, effort=effort)

    def open_cases(self) -> Iterator[tuple[Cases, OrderNodes]]:
        """Cases that windows leave open, and the windows; as many at a time as are looked at together."""
        for segments, seats in self.enumeration.cases():
            for part in self._batches(segments, seats):
                cases, rows = self.maker.make(*part[:2], orders=part[2])
                rows, size = self._screened(cases, rows), batch_size(cases)
                for first in range(0, len(rows), size):
                    part_rows = rows[first : first + size]
                    self.effort.spend(units(cases) * len(part_rows))
                    orders = narrow(begin(cases, part_rows, deadline=self.deadline), cases, settle=settle_passes)
                    if len(orders.case):
                        yield cases, orders

    def _screened(self, cases: Cases, rows: Integers) -> Integers:
        """Those that the quick rules leave; the clock is looked at before every batch."""
        kept, size = [rows[:0]], batch_size(cases)
        for first in range(0, len(rows), size):
            self.effort.spend(0)
            kept.append(screen(cases, rows[first : first + size], deadline=self.deadline))
        return numpy.concatenate(kept)

    def _batches(self, segments: Integers, seats: Integers) -> Iterator[tuple[Integers, Integers, Integers]]:
        """Segments, seats and orders of replicas, as many at a time as are made together."""
        waiting: list[tuple[Integers, Integers, Integers]] = []
        count = 0
        for part in self.maker.in_every_order(segments, seats):
            waiting.append(part)
            count += len(part[0])
            if count >= ORDER_BATCH:
                yield _joined(waiting)
                waiting, count = [], 0
        if waiting:
            yield _joined(waiting)


def _joined(parts: list[tuple[Integers, Integers, Integers]]) -> tuple[Integers, Integers, Integers]:
    segments, seats, orders = (numpy.concatenate(column) for column in zip(*parts, strict=True))
    return segments, seats, orders


def batch_size(cases: Cases) -> int:
    """Nodes that are looked at together."""
    _, devices, actions = cases.time.shape
    return max(1, BATCH_CELLS // int(devices * actions * actions))


def units(cases: Cases) -> int:
    """Work that a node takes."""
    _, devices, actions = cases.time.shape
    return int(1 + devices * actions * actions // UNIT_CELLS)


class _TreeSearch:
    """Makes a tree for every open case."""

    def __init__(self, *, effort: WorkCount, has_time: HasTime) -> None:
        self.effort, self.has_time = effort, has_time
        self.trees: list[tuple[int, ...]] = []
        self.num_nodes = 0

    def close(self, cases: Cases, roots: OrderNodes) -> bool:
        """Append the trees of these roots; False if one is out of reach."""
        children: dict[int, tuple[int, int, int]] = {}
        roots.node[...] = numpy.arange(len(roots.node))
        ahead, number, size = [roots], len(roots.node), batch_size(cases)
        is_narrowed = True
        while ahead:
            if not self.has_time() or self.num_nodes + number > MAX_NODES:
                return False
            orders, is_narrowed = _next(ahead, cases, is_narrowed=is_narrowed, effort=self.effort), False
            if not len(orders.node):
                continue
            pairs = choose(orders)
            if (pairs < 0).any():
                return False
            nodes = number + numpy.arange(2 * len(pairs))
            for node, code, first, second in zip(
                orders.node.tolist(), pairs.tolist(), nodes[::2].tolist(), nodes[1::2].tolist(), strict=True
            ):
                children[node] = code, first, second
            number += len(nodes)
            both = decide(orders, pairs, nodes=(nodes[::2], nodes[1::2]), cases=cases)
            ahead += _parts(both, size)
        self.trees += [tuple(_preorder(children, root)) for root in range(len(roots.node))]
        self.num_nodes += number
        return True


def _next(ahead: list[OrderNodes], cases: Cases, *, is_narrowed: bool, effort: WorkCount) -> OrderNodes:
    """What is left of the next nodes; roots are narrowed already."""
    orders = ahead.pop()
    if is_narrowed:
        return orders
    effort.spend(units(cases) * len(orders.node))
    return narrow(orders, cases, settle=settle_passes)


def _preorder(children: Mapping[int, tuple[int, int, int]], root: int) -> Iterator[int]:
    ahead = [root]
    while ahead:
        code, *following = children.get(ahead.pop(), (-1,))
        yield code + 1
        ahead += reversed(following)


class _TreeCheck:
    """Holds the trees of a certificate against the open cases, in their order."""

    def __init__(self, trees: Sequence[Sequence[int]], *, effort: WorkCount) -> None:
        self.effort = effort
        self.first = numpy.cumsum([0, *map(len, trees)])[:-1]
        self.codes = numpy.array([code for tree in trees for code in tree], dtype=numpy.int64)
        self.skip = numpy.array([size for tree in trees for size in _sizes(tree)], dtype=numpy.int64)
        self.used = 0

    @property
    def is_used_up(self) -> bool:
        """Whether every tree was asked for."""
        return self.used == len(self.first)

    def close(self, cases: Cases, roots: OrderNodes) -> bool:
        """Whether the next trees close these cases."""
        count, size = len(roots.node), batch_size(cases)
        if self.used + count > len(self.first):
            return False
        roots.node[...] = self.first[self.used : self.used + count]
        self.used += count
        ahead, is_narrowed = [roots], True
        while ahead:
            left, is_narrowed = _next(ahead, cases, is_narrowed=is_narrowed, effort=self.effort), False
            pairs = self.codes[left.node] - 1
            if (pairs < 0).any() or not is_sound(pairs, left):
                return False
            second = left.node + 1 + self.skip[numpy.minimum(left.node + 1, len(self.skip) - 1)]
            both = decide(left, pairs, nodes=(left.node + 1, second), cases=cases)
            ahead += _parts(both, size)
        return True


def _sizes(tree: Sequence[int]) -> list[int]:
    """Nodes of the subtree that begins at every place; raises ValueError if the tree is none."""
    sizes, done = [0] * len(tree), list[int]()
    for place in range(len(tree) - 1, -1, -1):
        if not tree[place]:
            sizes[place] = 1
        elif len(done) < 2:
            raise ValueError("certificate: one of its trees ends too soon; make the bound again")
        else:
            sizes[place] = 1 + done.pop() + done.pop()
        done.append(sizes[place])
    if len(done) != 1:
        raise ValueError("certificate: one of its trees has nodes that lead nowhere; make the bound again")
    return sizes


def _parts(orders: OrderNodes, size: int) -> list[OrderNodes]:
    total = len(orders.node)
    return [orders.take(numpy.arange(first, min(first + size, total))) for first in range(0, total, size)]


def is_sound(codes: Integers, orders: OrderNodes) -> bool:
    """Whether these codes name two actions of a device each, or a backward pass that is open."""
    _, devices, actions = orders.start.shape
    pairs = devices * actions * actions
    is_pass, place = codes >= pairs, codes - pairs
    size = orders.is_open.shape[1] * orders.is_open.shape[2]
    is_known, rows = place < size, numpy.arange(len(codes))
    is_open = orders.is_open.reshape(len(codes), size)[rows, numpy.where(is_pass & is_known, place, 0)]
    is_pair = codes // actions % actions != codes % actions
    return bool(numpy.where(is_pass, is_known & is_open, is_pair).all())


def choose(orders: OrderNodes) -> Integers:
    """[N] code of the pair of least room in either order, then of an open backward pass; -1 where nothing is open."""
    time = orders.time
    room = orders.end[..., None, :] - (orders.start + time)[..., :, None] - time[..., None, :]
    other = room.swapaxes(2, 3)
    size, num = room.shape[-1], len(room)
    is_open = ~(orders.before | orders.before.swapaxes(2, 3)) & ~numpy.eye(size, dtype=bool)
    is_open &= (time[..., :, None] > 0) & (time[..., None, :] > 0)
    score = numpy.where(is_open, room.astype(float) * other + room + other, numpy.inf).reshape(num, room[:1].size)
    best = score.argmin(axis=1)
    passes = orders.is_open.reshape(num, orders.is_open.shape[1] * orders.is_open.shape[2])
    either = numpy.where(passes.any(axis=1), score.shape[1] + passes.argmax(axis=1), -1)
    return numpy.where(numpy.isinf(score[numpy.arange(num), best]), either, best)


def decide(orders: OrderNodes, codes: Integers, *, nodes: tuple[Integers, Integers], cases: Cases) -> OrderNodes:
    """Two nodes for each, in turns: a pair in the order given, and in the other; or a pass in one piece, and split."""
    num, devices, actions = orders.start.shape
    both = orders.take(numpy.repeat(numpy.arange(num), 2))
    both.node[::2], both.node[1::2] = nodes
    is_pass = codes >= devices * actions * actions
    rows = numpy.flatnonzero(~is_pass)
    device, a, b = codes // (actions * actions), codes // actions % actions, codes % actions
    both.before[2 * rows, device[rows], a[rows], b[rows]] = True
    both.before[2 * rows + 1, device[rows], b[rows], a[rows]] = True
    rows = numpy.flatnonzero(is_pass)
    place = codes[rows] - devices * actions * actions
    own = cases.take(both.case)
    for what in (ONE, SPLIT):
        settle(both, own, rows=(2 * rows + what, place // cases.count, place % cases.count), what=what)
    return both

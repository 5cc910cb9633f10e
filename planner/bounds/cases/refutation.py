"""Refutations: no plan of a small problem ends by a deadline, shown case by case.

All partitions and mappings are gone through (`case_enumeration`); those that no quick rule closes are closed by the
windows of their actions, or by a tree: a node is closed by its windows, or has two nodes, one for either order of two
actions, say. The certificate holds the trees; everything else is derived again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

import numpy

from planner.bounds.cases.backward_passes import settle_passes
from planner.bounds.cases.case_enumeration import CaseEnumeration
from planner.bounds.cases.case_tables import MAX_DEADLINE_NS, CaseTables, TooManyCasesError, WorkCount
from planner.bounds.cases.open_cases import CaseMaker
from planner.bounds.cases.order_windows import Cases, OrderNodes, begin, narrow, screen
from planner.bounds.cases.tree_codes import TreeCodes, are_sound, choose, decide, subtree_sizes
from planner.bounds.minimum_costs import Integers
from planner.clock import HasTime, always
from planner.errors import refused_certificate
from planner.layout.costs import CostModel
from planner.plan import Stage
from planner.problem import Problem

MAX_EFFORT, MAX_NODES = 2_000_000, 200_000
"""Units of work, and nodes of all trees, that a certificate may need; what states more is refused."""

_UNIT_CELLS = 80
"""Pairs of actions of a node that cost a unit of work."""

_BATCH_CELLS = 1_500_000
"""Pairs of actions that are looked at together."""

_ORDER_BATCH = 4_000
"""Partitions and mappings, with an order of replicas each, that are made together."""

RULES = 3
"""Number of the rules that close cases: the one that changes which cases stay open, or what work is counted, adds one.

The trees of a certificate fit no other rules; it states the number beside them. By earlier rules, links are free."""

FIELDS = ("effort", "trees")
"""What a certificate has besides its kind and its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CaseRefutation:
    """Why no plan ends by a deadline."""

    effort: int
    """Units of work that it takes to check."""
    trees: tuple[tuple[int, ...], ...]
    """For every case that is open, in order: nodes in preorder, 0 if closed, or 1 + a code (`tree_codes`)."""


Propose = Callable[[tuple[Stage, ...], TreeCodes], Sequence[int] | None]
"""A tree that may close the orders of these stages, as in a certificate; None if there is none to propose."""


def propose_nothing(stages: tuple[Stage, ...], codes: TreeCodes) -> None:
    """Proposes no tree, so that only windows close cases."""
    del stages, codes


def refute(
    problem: Problem,
    costs: CostModel,
    *,
    value: int,
    effort: int = MAX_EFFORT,
    has_time: HasTime = always,
    propose: Propose = propose_nothing,
) -> _CaseRefutation | None:
    """A proof that no plan has a makespan below `value`; None if none was found within so many units of work.

    What `propose` says is tried first: every node is looked at by the rules of a check, and where these leave open what
    was proposed as closed, the search continues by itself.
    """
    spent = WorkCount(min(effort, MAX_EFFORT), has_time=has_time)
    try:
        proof = _Proof(problem, costs, value=value, effort=spent)
        search = _TreeSearch(effort=spent)
        for cases, orders, stages in proof.open_cases():
            codes = TreeCodes.of(orders)
            # a proposal may take as long as a case, so the clock is looked at before each
            numbers = takewhile(lambda _: has_time(), orders.case.tolist())
            proposed = [propose(stages(case), codes) for case in numbers]
            if len(proposed) < len(orders.case) or not search.close(cases, orders, proposed=proposed):
                return None
    except TooManyCasesError:
        return None
    return _CaseRefutation(effort=spent.spent, trees=tuple(search.trees))


def check(
    problem: Problem,
    costs: CostModel,
    *,
    value: int,
    effort: int,
    trees: Sequence[Sequence[int]],
    rules: object,
) -> bool:
    """Whether the trees show, with what is derived here, that no plan has a makespan below `value`.

    `rules`: as the certificate states them. Raises ValueError if the trees do not fit the cases, or take more work than
    stated.
    """
    spent = WorkCount(effort)
    proof = _Proof(problem, costs, value=value, effort=spent, are_links_free=rules != RULES)
    replay = _TreeCheck(trees, effort=spent)
    for cases, orders, _ in proof.open_cases():
        if not replay.close(cases, orders):
            return False
    return replay.used == len(replay.first) and spent.spent == effort


def close_alone(
    cases: Cases,
    *,
    deadline: int,
    effort: WorkCount,
    given: Sequence[int] | None = None,
    proposed: Sequence[int] | None = None,
) -> Sequence[int] | None:
    """A tree that closes the only case there is, empty if its windows do: the `given` one if any. None without one, or
    where that is too much work; ValueError where the given one is no tree. `proposed`: as far as that goes.
    """
    if deadline >= MAX_DEADLINE_NS:
        return None
    try:
        effort.spend(units_of(cases))
        roots = narrow(begin(cases, numpy.arange(1), deadline=deadline), cases, settle=settle_passes)
        if not len(roots.case):
            return None if given else ()
        if given is not None:
            return given if _TreeCheck([given], effort=effort).close(cases, roots) else None
        search = _TreeSearch(effort=effort)
        return search.trees[0] if search.close(cases, roots, proposed=[proposed]) else None
    except TooManyCasesError:
        return None


def read(certificate: Mapping[str, Any]) -> tuple[int, list[list[int]]]:
    """Work and trees as stated; raises ValueError before anything is done that takes time."""
    effort, trees = certificate["effort"], certificate["trees"]
    if type(effort) is not int or not 0 <= effort <= MAX_EFFORT:
        raise refused_certificate(f"effort is not an integer from 0 to {MAX_EFFORT:,}")
    if not isinstance(trees, list) or len(trees) > MAX_NODES or not all(isinstance(tree, list) for tree in trees):
        raise refused_certificate("trees are not lists, or too many")
    if sum(map(len, trees)) > MAX_NODES:
        raise refused_certificate(f"trees have more than {MAX_NODES:,} nodes")
    if not all(type(code) is int and 0 <= code < 1 << 30 for tree in trees for code in tree):
        raise refused_certificate("trees have nodes that are not integers from 0")
    return effort, trees


class _Proof:
    """The cases of a problem that are open below a value."""

    def __init__(
        self, problem: Problem, costs: CostModel, *, value: int, effort: WorkCount, are_links_free: bool = False
    ) -> None:
        self.effort = effort
        tables = CaseTables(problem, costs)
        self.deadline = value - 1 - tables.least.optimizer_ns
        if not 0 <= self.deadline < MAX_DEADLINE_NS:
            raise TooManyCasesError("certificate: its value is too large for a refutation")
        self.enumeration = CaseEnumeration(tables, self.deadline, effort=effort)
        self.maker = CaseMaker(tables, effort=effort, are_links_free=are_links_free)

    def open_cases(self) -> Iterator[tuple[Cases, OrderNodes, Callable[[int], tuple[Stage, ...]]]]:
        """Cases that windows leave open, the windows, and the stages of a case; as many as are looked at together."""
        for segments, assignments in self.enumeration.cases():
            for part in self._batches(segments, assignments):
                cases, rows = self.maker.make(*part[:2], orders=part[2])
                rows, size = self._screened(cases, rows), _batch_size(cases)
                for first in range(0, len(rows), size):
                    part_rows = rows[first : first + size]
                    self.effort.spend(units_of(cases) * len(part_rows))
                    orders = narrow(begin(cases, part_rows, deadline=self.deadline), cases, settle=settle_passes)
                    if len(orders.case):
                        yield cases, orders, partial(self.maker.stages, part=part)

    def _screened(self, cases: Cases, rows: Integers) -> Integers:
        """Those that the quick rules leave; the clock is looked at before every batch."""
        kept, size = [rows[:0]], _batch_size(cases)
        for first in range(0, len(rows), size):
            self.effort.spend(0)
            kept.append(screen(cases, rows[first : first + size], deadline=self.deadline))
        return numpy.concatenate(kept)

    def _batches(self, segments: Integers, assignments: Integers) -> Iterator[tuple[Integers, Integers, Integers]]:
        """Segments, assignments and orders of replicas, as many at a time as are made together."""
        waiting: list[tuple[Integers, Integers, Integers]] = []
        count = 0
        for part in self.maker.in_every_order(segments, assignments):
            waiting.append(part)
            count += len(part[0])
            if count >= _ORDER_BATCH:
                yield _joined(waiting)
                waiting, count = [], 0
        if waiting:
            yield _joined(waiting)


def _joined(parts: list[tuple[Integers, Integers, Integers]]) -> tuple[Integers, Integers, Integers]:
    segments, assignments, orders = (numpy.concatenate(column) for column in zip(*parts, strict=True))
    return segments, assignments, orders


def _batch_size(cases: Cases) -> int:
    """Nodes that are looked at together."""
    _, devices, actions = cases.time.shape
    return max(1, _BATCH_CELLS // int(devices * actions * actions))


def units_of(cases: Cases) -> int:
    """Work that a node takes."""
    _, devices, actions = cases.time.shape
    return int(1 + devices * actions * actions // _UNIT_CELLS)


class _TreeSearch:
    """Makes a tree for every open case."""

    def __init__(self, *, effort: WorkCount) -> None:
        self.effort, self.has_time = effort, effort.has_time
        self.trees: list[tuple[int, ...]] = []
        self.num_nodes = 0

    def close(self, cases: Cases, roots: OrderNodes, *, proposed: Sequence[Sequence[int] | None]) -> bool:
        """Append the trees of these roots, each the one proposed as far as that goes; False if one is out of reach."""
        children: dict[int, tuple[int, int, int]] = {}
        given = _Proposed(proposed)
        roots.node[...] = numpy.arange(len(roots.node))
        ahead, number, size = [roots], len(roots.node), _batch_size(cases)
        is_narrowed = True
        while ahead:
            if not self.has_time() or self.num_nodes + number > MAX_NODES:
                return False
            orders, is_narrowed = _next(ahead, cases, is_narrowed=is_narrowed, effort=self.effort), False
            if not len(orders.node):
                continue
            pairs = given.decisions(orders)
            if (pairs < 0).any():
                return False
            nodes = number + numpy.arange(2 * len(pairs))
            given.go_down(orders.node)
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


class _Proposed:
    """What was proposed for the nodes of a search, which are numbered as they are made."""

    def __init__(self, trees: Sequence[Sequence[int] | None]) -> None:
        known = [tree or (0,) for tree in trees]
        self.codes, self.skip = _flatten(known)
        self.place = numpy.cumsum([0, *map(len, known)])[:-1]
        """[nodes] where each stands in the trees; -1 if it was not proposed."""

    def decisions(self, orders: OrderNodes) -> Integers:
        """[N] a code for each of these nodes: the one proposed, or where there is none that fits, one of our own."""
        place = self.place[orders.node]
        codes = numpy.where(place >= 0, self.codes[place] - 1, -1)
        own = numpy.flatnonzero(~are_sound(codes, orders))
        self.place[orders.node[own]] = -1
        if len(own):
            codes[own] = choose(orders.take(own))
        return codes

    def go_down(self, nodes: Integers) -> None:
        """Two new nodes for each, the children of what was proposed there."""
        place = self.place[nodes]
        first = numpy.where(place < 0, 0, place + 1)
        second = first + self.skip[first]
        both = numpy.stack([first, second], axis=1)
        both[place < 0] = -1
        self.place = numpy.concatenate([self.place, both.ravel()])


def _flatten(trees: Sequence[Sequence[int]]) -> tuple[Integers, Integers]:
    """The nodes of all trees one after the other, and how many the subtree of each has."""
    codes = numpy.array([code for tree in trees for code in tree], dtype=numpy.int64)
    return codes, numpy.array([size for tree in trees for size in subtree_sizes(tree)], dtype=numpy.int64)


def _next(ahead: list[OrderNodes], cases: Cases, *, is_narrowed: bool, effort: WorkCount) -> OrderNodes:
    """What is left of the next nodes; roots are narrowed already."""
    orders = ahead.pop()
    if is_narrowed:
        return orders
    effort.spend(units_of(cases) * len(orders.node))
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
        self.codes, self.skip = _flatten(trees)
        self.used = 0

    def close(self, cases: Cases, roots: OrderNodes) -> bool:
        """Whether the next trees close these cases."""
        count, size = len(roots.node), _batch_size(cases)
        if self.used + count > len(self.first):
            return False
        roots.node[...] = self.first[self.used : self.used + count]
        self.used += count
        ahead, is_narrowed = [roots], True
        while ahead:
            left, is_narrowed = _next(ahead, cases, is_narrowed=is_narrowed, effort=self.effort), False
            pairs = self.codes[left.node] - 1
            if not are_sound(pairs, left).all():
                return False
            second = left.node + 1 + self.skip[numpy.minimum(left.node + 1, len(self.skip) - 1)]
            both = decide(left, pairs, nodes=(left.node + 1, second), cases=cases)
            ahead += _parts(both, size)
        return True


def _parts(orders: OrderNodes, size: int) -> list[OrderNodes]:
    total = len(orders.node)
    return [orders.take(numpy.arange(first, min(first + size, total))) for first in range(0, total, size)]

"""Runtime concurrency control: how many cores each operation gets, and which operations run side by side.

An operation is F, I or W of a layer, or any node of a graph; the cores of a host are shared. Strategies: (1) the best
number of cores for every operation; (2) one number per kind of operation, that of its most expensive instance; (3)
ready operations run on idle cores if none outlasts what is running; (4) small ones run on the SMT siblings of busy
cores, under the same condition, on machines that have siblings.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A node of a graph of operations."""

    name: str
    kind: str
    """Operations of one kind are told apart by their sizes only."""
    times_ns: Mapping[int, int]
    """By the number of cores; 1 is always among them."""
    after: tuple[int, ...] = ()
    """Numbers of the operations that must have ended, all smaller than its own."""

    @property
    def best_width(self) -> int:
        """The fewest cores with the least time."""
        return min(self.times_ns, key=lambda width: (self.times_ns[width], width))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """When an operation runs, and on how many cores."""

    operation: int
    start_ns: int
    end_ns: int
    width: int
    on_sibling: bool = False
    """Whether it runs on the SMT sibling of a core; then `width` is 1, and the core itself stays free."""


def uniform_widths(operations: Sequence[Operation], cores: int) -> list[int]:
    """All cores for every operation, or as many as it was measured on: a framework's default."""
    return [max(width for width in operation.times_ns if width <= cores) for operation in operations]


def best_widths(operations: Sequence[Operation]) -> list[int]:
    """Strategy 1."""
    return [operation.best_width for operation in operations]


def widths_by_kind(operations: Sequence[Operation]) -> list[int]:
    """Strategy 2."""
    dearest: dict[str, Operation] = {}
    for operation in operations:
        known = dearest.get(operation.kind)
        if known is None or operation.times_ns[1] > known.times_ns[1]:
            dearest[operation.kind] = operation
    return [_nearest(operation, dearest[operation.kind].best_width) for operation in operations]


def _nearest(operation: Operation, width: int) -> int:
    return min(operation.times_ns, key=lambda each: (abs(each - width), each))


def run_one_by_one(operations: Sequence[Operation], widths: Sequence[int]) -> list[Placed]:
    """In the listed order, one at a time."""
    placed, now = [], 0
    for number, (operation, width) in enumerate(zip(operations, widths, strict=True)):
        end = now + operation.times_ns[width]
        placed.append(Placed(operation=number, start_ns=now, end_ns=end, width=width))
        now = end
    return placed


def run_side_by_side(
    operations: Sequence[Operation],
    widths: Sequence[int],
    *,
    cores: int,
    may_outlast: bool = False,
    sibling_percent: int | None = None,
) -> list[Placed]:
    """Strategy 3: the longest ready operation first; others beside it on idle cores, if they do not outlast it.

    An operation that does not fit on the idle cores is tried with fewer. `may_outlast`: it may end later than what is
    running; the operation with most work behind it comes first then. `sibling_percent`: strategy 4 as well, where an
    operation on a sibling takes so many percent of its time on a core.
    """
    return _SideBySide(operations, widths, cores=cores, may_outlast=may_outlast, sibling_percent=sibling_percent).play()


def sibling_ns(operation: Operation, percent: int) -> int:
    """The time of an operation on the sibling of a busy core."""
    return -(-operation.times_ns[1] * percent // 100)


class _SideBySide:
    def __init__(
        self,
        operations: Sequence[Operation],
        widths: Sequence[int],
        *,
        cores: int,
        may_outlast: bool,
        sibling_percent: int | None,
    ) -> None:
        self.operations, self.widths, self.idle, self.may_outlast = operations, widths, cores, may_outlast
        self.sibling_percent, self.idle_siblings = sibling_percent, cores
        self.left = [len(operation.after) for operation in operations]
        self.followers: list[list[int]] = [[] for _ in operations]
        for number, operation in enumerate(operations):
            for before in operation.after:
                self.followers[before].append(number)
        self.behind = [0] * len(operations)
        for number in reversed(range(len(operations))):
            later = max((self.behind[other] for other in self.followers[number]), default=0)
            self.behind[number] = operations[number].times_ns[widths[number]] + later
        self.ready = {number for number, missing in enumerate(self.left) if not missing}
        self.running: list[tuple[int, int, Placed]] = []
        self.placed: list[Placed] = []
        self.numbers = count()

    def play(self) -> list[Placed]:
        now = 0
        while self.ready or self.running:
            while (chosen := self._next(now)) is not None:
                self._start(now, chosen[0], width=chosen[1])
            while (small := self._next_small(now)) is not None:
                self._start_on_sibling(now, small)
            now, _, ended = heappop(self.running)
            if ended.on_sibling:
                self.idle_siblings += 1
            else:
                self.idle += ended.width
            for number in self.followers[ended.operation]:
                self.left[number] -= 1
                if not self.left[number]:
                    self.ready.add(number)
        return self.placed

    def _next(self, now: int) -> tuple[int, int] | None:
        """What may start, and on how many cores."""
        horizon = None if self.may_outlast else max((end for end, *_ in self.running), default=None)
        choices = (
            (-(self.behind[number] if self.may_outlast else self._time(number, width)), number, width)
            for number in self.ready
            for width in self._widths(number)
            if horizon is None or now + self._time(number, width) <= horizon
        )
        best = min(choices, default=None)
        return None if best is None else (best[1], best[2])

    def _next_small(self, now: int) -> int | None:
        """The longest ready operation that ends on a sibling before what is running on cores does."""
        ends = [end for end, _, placed in self.running if not placed.on_sibling]
        if self.sibling_percent is None or not self.idle_siblings or not ends:
            return None
        times = {number: sibling_ns(self.operations[number], self.sibling_percent) for number in self.ready}
        fitting = [number for number, time in times.items() if now + time <= max(ends)]
        return max(fitting, key=lambda number: (times[number], -number), default=None)

    def _start_on_sibling(self, now: int, number: int) -> None:
        assert self.sibling_percent is not None
        self.ready.remove(number)
        self.idle_siblings -= 1
        end = now + sibling_ns(self.operations[number], self.sibling_percent)
        placed = Placed(operation=number, start_ns=now, end_ns=end, width=1, on_sibling=True)
        self.placed.append(placed)
        heappush(self.running, (end, next(self.numbers), placed))

    def _widths(self, number: int) -> Iterator[int]:
        """The wanted width if that many cores are idle; otherwise the widest that fits."""
        fitting = [width for width in self.operations[number].times_ns if width <= min(self.idle, self.widths[number])]
        if fitting:
            yield max(fitting)

    def _time(self, number: int, width: int) -> int:
        return self.operations[number].times_ns[width]

    def _start(self, now: int, number: int, *, width: int) -> None:
        self.ready.remove(number)
        self.idle -= width
        end = now + self._time(number, width)
        placed = Placed(operation=number, start_ns=now, end_ns=end, width=width)
        self.placed.append(placed)
        heappush(self.running, (end, next(self.numbers), placed))


def makespan_ns(placed: Sequence[Placed]) -> int:
    """The end of the last operation."""
    return max(each.end_ns for each in placed)


def find_mistakes(
    operations: Sequence[Operation], placed: Sequence[Placed], *, cores: int, sibling_percent: int | None = None
) -> list[str]:
    """What is wrong with a schedule: operations missing or too early, unknown widths or times, too many cores."""
    found = []
    if sorted(each.operation for each in placed) != list(range(len(operations))):
        found.append("not every operation runs exactly once")
    end = {each.operation: each.end_ns for each in placed}
    for each in placed:
        operation = operations[each.operation]
        if _due_ns(operation, each, sibling_percent=sibling_percent) != each.end_ns - each.start_ns:
            where = "a sibling" if each.on_sibling else f"{each.width} cores"
            found.append(f"{operation.name} does not take {each.end_ns - each.start_ns} ns on {where}")
        if any(end.get(before, each.start_ns + 1) > each.start_ns for before in operation.after):
            found.append(f"{operation.name} starts before what it waits for has ended")
        beside = [other for other in placed if other.start_ns <= each.start_ns < other.end_ns]
        for name, is_sibling in (("cores", False), ("siblings", True)):
            at_once = sum(other.width for other in beside if other.on_sibling == is_sibling)
            if at_once > cores:
                found.append(f"{at_once} of {cores} {name} are busy when {operation.name} starts")
    return found


def _due_ns(operation: Operation, placed: Placed, *, sibling_percent: int | None) -> int | None:
    """How long an operation takes where it was placed; None where it cannot run."""
    if placed.on_sibling:
        return None if sibling_percent is None or placed.width != 1 else sibling_ns(operation, sibling_percent)
    return operation.times_ns.get(placed.width)

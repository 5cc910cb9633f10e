"""Runtime concurrency control: how many cores each operation gets, and which operations run side by side.

An operation is F, I or W of a layer, or any node of a graph; the cores of a host are shared. Strategies: (1) the best
number of cores for every operation; (2) one number per kind of operation, that of its most expensive instance; (3)
ready operations run on idle cores if none outlasts what is running. Filling SMT siblings (4) is left to machines that
have them.
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
    operations: Sequence[Operation], widths: Sequence[int], *, cores: int, may_outlast: bool = False
) -> list[Placed]:
    """Strategy 3: the longest ready operation first; others beside it on idle cores, if they do not outlast it.

    An operation that does not fit on the idle cores is tried with fewer. `may_outlast`: it may end later than what is
    running; the operation with most work behind it comes first then.
    """
    return _SideBySide(operations, widths, cores=cores, may_outlast=may_outlast).play()


class _SideBySide:
    def __init__(
        self, operations: Sequence[Operation], widths: Sequence[int], *, cores: int, may_outlast: bool
    ) -> None:
        self.operations, self.widths, self.idle, self.may_outlast = operations, widths, cores, may_outlast
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
            now, _, ended = heappop(self.running)
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


def find_mistakes(operations: Sequence[Operation], placed: Sequence[Placed], *, cores: int) -> list[str]:
    """What is wrong with a schedule: operations missing or too early, unknown widths or times, too many cores."""
    found = []
    if sorted(each.operation for each in placed) != list(range(len(operations))):
        found.append("not every operation runs exactly once")
    end = {each.operation: each.end_ns for each in placed}
    for each in placed:
        operation = operations[each.operation]
        if operation.times_ns.get(each.width) != each.end_ns - each.start_ns:
            found.append(f"{operation.name} does not take {each.end_ns - each.start_ns} ns on {each.width} cores")
        if any(end.get(before, each.start_ns + 1) > each.start_ns for before in operation.after):
            found.append(f"{operation.name} starts before what it waits for has ended")
        at_once = sum(other.width for other in placed if other.start_ns <= each.start_ns < other.end_ns)
        if at_once > cores:
            found.append(f"{at_once} of {cores} cores are busy when {operation.name} starts")
    return found

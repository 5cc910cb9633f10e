"""The time-indexed bound: how many actions have begun by when, where every microbatch may recompute or keep everything.

Stages and devices are given, any order is allowed. Time is cut into cells, and durations are rounded down to whole
cells. The rows are inequalities between counts; multipliers of the rows show that they contradict each other.

Proof. Multiplied by integers from 0 and added up, the rows say that counts at some prices add up to at most a number.
A count lies between 0 and all microbatches, and those of a stage replica that has its devices to itself are a path
(`device_paths`): where the least sum is above that number, no counts fulfil the rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import gcd

from planner.bounds.order.cell_rows import (
    KEPT,
    KINDS,
    RECOMPUTED,
    CellRow,
    CellRows,
    ReplicaCells,
    there_and_back,
)
from planner.bounds.order.device_paths import (
    F_KEPT,
    F_RECOMPUTED,
    I_KEPT,
    I_RECOMPUTED,
    MemoryStates,
    ReplicaMemory,
    make_graph,
)
from planner.errors import refused_certificate
from planner.layout.costs import CostModel, StageCost
from planner.layout.stage_replicas import LaidOut, lay_out_stages
from planner.problem import Problem

KIND = "time-indexed"
MOST_TERMS = 3_000_000
"""Terms of all rows, at most: more take too long to check."""
MOST_PLACES = 4_000_000
"""States times cells of all paths, at most; certificates rely on it, and longer ones take too long to check."""
_MOST_UNITS = 1 << 10
"""Memory is counted in at most so many units per device."""
_DIVISIONS = (1, 2, 3, 4, 6, 8)
"""Cells are such parts of durations."""

_MOST_PARTS, _ROUGH = 4, 0.3
"""Rough cells are such a part of the median action at least; by how much they may change an action."""

_Multipliers = Sequence[tuple[int, int]]
"""Numbers of rows, each with a positive integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPaths:
    """What a stage replica alone on its devices can do until the last cell."""

    graph: MemoryStates
    columns: tuple[range, ...]
    """Counts of each kind, one per cell."""
    owner: int
    """The stage replica."""
    windows: tuple[tuple[int, int], ...]
    """The first and the last cell at which an action of each kind may start."""


_Solve = Callable[..., "tuple[float, _Multipliers] | None"]
"""(rows, (columns, most of a column)) to (by how many microbatches the ends are missed, multipliers).

None: there was no time.
"""


def applies_to(problem: Problem) -> bool:
    """Whether stages that may recompute are given, each on one device or group, under the makespan."""
    options = problem.options
    if options.partition is None or options.placement is None or problem.may_shard or problem.microbatches is not None:
        return False
    is_plain = not (options.has_few_bounds or options.recompute_layers)
    is_single = all(len(groups) == 1 for groups in options.placement)
    return is_plain and is_single and options.recompute and options.objective == "makespan"


def choose_cells(problem: Problem, costs: CostModel, *, value_ns: int, most_cells: int) -> list[int]:
    """Lengths of cells in nanoseconds, the one that loses the least first, so that a value has at most so many."""
    counts = [
        {
            duration
            for cost in (replica.cost for laid_out in _both(problem, costs) for replica in laid_out.replicas)
            for duration in (cost.forward_ns, *cost.least_parts_ns(can_split=problem.options.split_backward))
            if duration
        }
    ]
    durations = sorted(counts[0])
    cells = {max(1, each // part) for each in durations for part in _DIVISIONS}
    fine = [cell for cell in cells if value_ns // cell <= most_cells]

    def rounded(cell: int) -> int:
        return min(
            (sum(each // cell * cell for each in own) * 10**6 // max(1, sum(own)))
            for own in _work_of_devices(problem, costs)
        )

    return sorted(fine, key=lambda cell: (-rounded(cell), -cell))


def _work_of_devices(problem: Problem, costs: CostModel) -> Iterator[list[int]]:
    """Durations per device of a microbatch."""
    for replica in _both(problem, costs)[KEPT].replicas:
        parts = replica.cost.least_parts_ns(can_split=problem.options.split_backward)
        yield [replica.cost.forward_ns, *parts]


def _both(problem: Problem, costs: CostModel) -> tuple[LaidOut, LaidOut]:
    """The given stages where every microbatch is kept, and where all recompute."""
    stages = problem.given_stages or ()
    kept, recomputed = (
        lay_out_stages([replace(stage, recompute=flag) for stage in stages], costs=costs) for flag in (False, True)
    )
    return kept, recomputed


class TimeIndexed:
    """The rows of one problem for cells of one length."""

    def __init__(
        self, problem: Problem, costs: CostModel, *, cell_ns: int, is_joined: bool = False, is_rough: bool = False
    ) -> None:
        """`is_joined`: states of paths that take as much memory are one, which only makes paths cheaper. `is_rough`:
        durations are the nearest whole cells, which proves nothing.
        """
        self.problem, self.cell_ns, self.count = problem, cell_ns, problem.num_microbatches
        self.is_joined, self.is_rough = is_joined, is_rough
        both = _both(problem, costs)
        self.tail_ns = min(laid_out.tail_ns for laid_out in both)
        self.room, self.units = _room(problem, both)
        self.replicas = [self._replica(both, number) for number in range(len(both[0].replicas))]
        transfers = both[KEPT].transfers
        self.forwards = sorted(
            (each.sender, each.receiver, self._cells_of(each.ticks)) for each in transfers if not each.is_backward
        )
        self.backwards = sorted(
            ((each.sender, each.receiver, self._cells_of(each.ticks)) for each in transfers if each.is_backward),
            reverse=True,
        )
        self.lags = [
            there_and_back(n, self.replicas, transfers=(self.forwards, self.backwards))
            for n in range(len(self.replicas))
        ]
        """Cells from the start of F to that of I, at least."""
        self.heads, self.tails = self._heads(), self._tails()
        """Cells from the start of the plan to an F, and from the end of an I to that of the plan, at least."""
        self.graphs = [self._graph(n) for n in range(len(self.replicas))]
        """Of those alone on their devices."""

    @staticmethod
    def rough_cell(problem: Problem, costs: CostModel) -> int:
        """The longest part of the median action of which all actions are nearly whole numbers."""
        durations = sorted(each for own in _work_of_devices(problem, costs) for each in own if each)
        median = durations[len(durations) // 2] if durations else 1
        for parts in range(1, _MOST_PARTS + 1):
            cell = max(1, median // parts)
            if all(abs(max(1, round(each / cell)) * cell - each) <= _ROUGH * each for each in durations):
                break
        return cell

    def _cells_of(self, duration_ns: int) -> int:
        """Whole cells of a duration."""
        if self.is_rough and duration_ns:
            return max(1, round(duration_ns / self.cell_ns))
        return duration_ns // self.cell_ns

    def _replica(self, both: tuple[LaidOut, LaidOut], number: int) -> ReplicaCells:
        pair = [laid_out.replicas[number] for laid_out in both]
        costs = [each.cost for each in pair]
        parts = [cost.least_parts_ns(can_split=self.problem.options.split_backward) for cost in costs]
        unit = max(self.units[device] for device in pair[0].group)
        closing = min(laid_out.synchronisation_ns[pair[0].stage] for laid_out in both)

        def during(cost: StageCost) -> int:
            return max(0, min(cost.stash_bytes, cost.whole_backward_bytes) // unit - cost.held_bytes // unit)

        return ReplicaCells(
            devices=pair[0].group,
            forward=self._cells_of(min(cost.forward_ns for cost in costs)),
            returning=(self._cells_of(parts[KEPT][0]), self._cells_of(parts[RECOMPUTED][0])),
            rest=self._cells_of(min(rest for _, rest in parts)),
            held=(costs[KEPT].held_bytes // unit, costs[RECOMPUTED].held_bytes // unit),
            during=(during(costs[KEPT]), during(costs[RECOMPUTED])),
            kept=min(min(cost.weight_stash_bytes, cost.whole_backward_bytes) for cost in costs) // unit,
            closing=self._cells_of(closing),
        )

    def _graph(self, number: int) -> MemoryStates | None:
        own = self.replicas[number]
        if any(other is not own and set(other.devices) & set(own.devices) for other in self.replicas):
            return None
        room = min(self.room[device] for device in own.devices)
        memory = ReplicaMemory(room=room, held=own.held, during=own.during, waiting=own.kept)
        return make_graph(memory, own.cells, count=self.count, is_joined=self.is_joined)

    def _heads(self) -> list[int]:
        heads = [0] * len(self.replicas)
        for sender, receiver, ticks in self.forwards:
            heads[receiver] = max(heads[receiver], heads[sender] + self.replicas[sender].forward + ticks)
        return heads

    def _tails(self) -> list[int]:
        tails = [own.rest + own.closing for own in self.replicas]
        for sender, receiver, ticks in reversed(self.backwards):
            tails[sender] = max(tails[sender], ticks + min(self.replicas[receiver].returning) + tails[receiver])
        return tails

    def paths(self, cells: int) -> list[ReplicaPaths]:
        """Those of all stage replicas that have some; none where they are too long."""
        found: list[ReplicaPaths] = []
        if self.places(cells) > MOST_PLACES:
            return found
        for n, graph in enumerate(self.graphs):
            first = [(n * KINDS + kind) * (cells + 1) for kind in range(KINDS)]
            columns = tuple(range(begin, begin + cells + 1) for begin in first)
            windows = self._windows(n, cells)
            found += [] if graph is None else [ReplicaPaths(graph=graph, columns=columns, owner=n, windows=windows)]
        return found

    def _windows(self, number: int, cells: int) -> tuple[tuple[int, int], ...]:
        """When actions of each kind may start: after what comes before them, and so that the rest is done in time."""
        own, lag = self.replicas[number], self.lags[number]
        head, tail = self.heads[number], cells - self.tails[number]
        returns = [(head + lag, tail - each) for each in own.returning]
        leaves = [(head, last - lag) for _, last in returns]
        return (*leaves, *returns, (head + lag + min(own.returning), cells - own.closing - own.rest))

    def places(self, cells: int) -> int:
        """States times cells of all paths."""
        return sum(graph.num_states for graph in self.graphs if graph is not None) * (cells + 1)

    def cells(self, value_ns: int) -> int:
        """Whole cells until the last action of a plan that takes `value_ns` may end; negative if there is no time."""
        return (value_ns - self.tail_ns) // self.cell_ns

    def value_ns(self, cells: int) -> int:
        """What every plan takes at least, if none ends within so many cells."""
        return (cells + 1) * self.cell_ns + self.tail_ns

    def num_columns(self, cells: int) -> int:
        """Counts of all kinds, one for every moment at which an action can begin."""
        return len(self.replicas) * KINDS * (cells + 1)

    def size(self, cells: int) -> int:
        """Terms of all rows, about."""
        return 8 * self.num_columns(cells)

    def rows(self, cells: int) -> CellRows:
        """What holds of every plan that ends within so many cells."""
        transfers = (tuple(self.forwards), tuple(self.backwards))
        return CellRows(self.replicas, transfers=transfers, room=self.room, count=self.count, cells=cells)


def _room(problem: Problem, both: tuple[LaidOut, LaidOut]) -> tuple[dict[str, int], dict[str, int]]:
    """Per device its room for stashes in units, and the bytes of a unit.

    The least workspace is there whenever memory grows: F, I and B have it, and W, which may have none, only frees.
    """
    room, units = dict[str, int](), dict[str, int]()
    for device in {name for replica in both[KEPT].replicas for name in replica.group}:
        static = min(laid_out.static_bytes[device] for laid_out in both)
        own = [each.cost for laid_out in both for each in laid_out.replicas if device in each.group]
        left = problem.cluster.by_name[device].usable_bytes - static - min(cost.workspace_bytes for cost in own)
        units[device] = max(1, -(-left // _MOST_UNITS))
        room[device] = left
    unit = max(units.values())
    common = _common_divisor(both, unit)
    return {device: left // common for device, left in room.items()}, dict.fromkeys(room, common)


def _common_divisor(both: tuple[LaidOut, LaidOut], unit: int) -> int:
    """A unit of about so many bytes; a divisor of all stashes where one is large enough."""
    sizes = [
        size
        for laid_out in both
        for each in laid_out.replicas
        for size in (each.cost.held_bytes, each.cost.stash_bytes, each.cost.weight_stash_bytes)
    ]
    common = gcd(*sizes)
    return common if common >= unit else unit


def is_contradiction(
    rows: Sequence[CellRow], multipliers: _Multipliers, *, most: int, paths: Sequence[ReplicaPaths] = ()
) -> bool:
    """Whether the rows, each multiplied by an integer from 0, add up to what no counts from 0 to `most` fulfil.

    `paths`: of stage replicas whose counts are one of them each.
    """
    total, bound = dict[int, int](), 0
    for number, factor in multipliers:
        row = rows[number]
        bound += factor * row.most
        for column, coefficient in row.terms.items():
            total[column] = total.get(column, 0) + factor * coefficient
    least = most * sum(value for value in total.values() if value < 0)
    return least > bound or least + sum(_gain(own, total, most=most) for own in paths) > bound


def _gain(paths: ReplicaPaths, total: dict[int, int], *, most: int) -> int:
    """By how much the least sum of a stage replica is larger since it is that of a path, 0 at least."""
    kinds = {F_KEPT, F_RECOMPUTED, I_KEPT, I_RECOMPUTED, *(move.kind for move in paths.graph.moves)}
    begun = [[total.get(column, 0) for column in columns] for columns in paths.columns]
    alone = most * sum(value for kind in kinds for value in begun[kind] if value < 0)
    # a start counts from its cell to the last
    prices = [list(accumulate(reversed(own)))[::-1] for own in begun]
    least = paths.graph.least_price(prices, cells=len(paths.columns[0]) - 1, windows=paths.windows)
    return 0 if least is None else max(0, least - alone)


def raise_bound(
    problem: Problem,
    costs: CostModel,
    *,
    start_ns: int,
    most_ns: int,
    solve: _Solve,
    most_cells: int,
) -> tuple[int, dict[str, object]] | None:
    """The largest value found from `start_ns` to `most_ns` with what its certificate holds; None if none is above.

    Missed ends fall about evenly with time, so that a secant leads to the last time at which some are missed.
    """
    lengths = choose_cells(problem, costs, value_ns=most_ns, most_cells=most_cells)
    if not lengths:
        return None
    model = TimeIndexed(problem, costs, cell_ns=lengths[0])
    low, high = max(model.cells(start_ns - 1), -1), model.cells(most_ns - 1)
    best: tuple[int, dict[str, object]] | None = None
    known: list[tuple[int, float]] = []
    at = low + 1
    while low < at <= high and model.size(at) <= MOST_TERMS:
        rows = model.rows(at)
        found = solve(rows, (model.num_columns(at), model.count))
        if found is None:
            break
        missed, multipliers = found
        if is_contradiction(rows, multipliers, most=model.count, paths=model.paths(at)):
            low = at
            fields: dict[str, object] = {"cell_ns": model.cell_ns, "multipliers": [list(pair) for pair in multipliers]}
            best = model.value_ns(at), fields
        else:
            high = at - 1
        known.append((at, missed))
        at = _next(known, low=low, high=high, count=model.count)
    return best


def _next(known: Sequence[tuple[int, float]], *, low: int, high: int, count: int) -> int:
    """Where to look next above `low` and up to `high`; `low` where nothing is left."""
    if high <= low:
        return low
    missing = [(at, missed) for at, missed in known if missed > 0]
    if len(missing) < 2:
        # every microbatch that is missed takes about its share of the time
        guess = missing[-1][0] + int(missing[-1][0] * missing[-1][1] / count) if missing else (low + high) // 2
    else:
        (first, more), (second, less) = sorted(missing)[-2:]
        slope = (more - less) / (second - first)
        guess = second + int(less / slope - 1e-6) if slope > 0 else (low + high) // 2
    return max(low + 1, min(guess, high))


def is_out_of_reach(
    problem: Problem,
    costs: CostModel,
    *,
    value_ns: int,
    cell_ns: int,
    multipliers: _Multipliers,
) -> bool:
    """Whether no plan takes less than `value_ns`. Raises ValueError where the rows are too many."""
    model = TimeIndexed(problem, costs, cell_ns=cell_ns)
    cells = model.cells(value_ns - 1)
    if cells < 0:
        return True
    if model.size(cells) > MOST_TERMS:
        raise refused_certificate("cell_ns makes too many rows to be checked")
    rows = model.rows(cells)
    if any(number >= len(rows) for number, _ in multipliers):
        raise refused_certificate("multipliers name rows that are not there")
    return is_contradiction(rows, multipliers, most=model.count, paths=model.paths(cells))

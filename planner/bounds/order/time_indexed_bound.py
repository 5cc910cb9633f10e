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

from planner.bounds.order.device_paths import MemoryStates, ReplicaMemory, make_graph
from planner.layout.costs import CostModel, StageCost
from planner.layout.stage_replicas import LaidOut, lay_out_stages
from planner.plan import Stage
from planner.problem import Problem

KIND = "time-indexed"
_KEPT, _RECOMPUTED = 0, 1
_F, _I, _W = 0, 2, 4
"""Kinds of counts of a stage replica: F and I of what is kept and of what recomputes, and W."""
_KINDS = 5

MOST_TERMS = 3_000_000
"""Terms of all rows, at most: more take too long to check."""
_MOST_PLACES = 4_000_000
"""States times cells of all paths, at most; certificates rely on it, and longer ones take too long to check."""
_MOST_SOUGHT = 60_000
"""The same of paths that multipliers are sought with."""
_MOST_UNITS = 1 << 10
"""Memory is counted in at most so many units per device."""
_DIVISIONS = (1, 2, 3, 4, 6, 8)
"""Cells are such parts of durations."""

_Multipliers = Sequence[tuple[int, int]]
"""Numbers of rows, each with a positive integer."""


_Entry = tuple[int, int, int, int]
"""Stage replica, kind, time and factor."""


@dataclass(frozen=True, slots=True)
class CellRow:
    """The sum of coefficients times counts is at most `most`."""

    terms: dict[int, int]
    """Column to coefficient."""
    most: int
    is_end: bool = False
    """Whether it says that everything is done in the end."""
    owner: int = -1
    """The stage replica whose paths fulfil it in any case; -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPaths:
    """What a stage replica alone on its devices can do until the last cell."""

    graph: MemoryStates
    columns: tuple[range, ...]
    """Counts of each kind, one per cell."""
    owner: int
    """The stage replica."""


_Solve = Callable[..., "tuple[float, _Multipliers] | None"]
"""(rows, (columns, most of a column), paths=...) to (by how many microbatches the ends are missed, multipliers).

None: there was no time.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replica:
    """What a stage does, in cells and units; pairs are of what is kept and of what recomputes."""

    devices: tuple[str, ...]
    forward: int
    returning: tuple[int, int]
    rest: int
    held: tuple[int, int]
    """From F to the end of I."""
    during: tuple[int, int]
    """More of it while I runs."""
    kept: int
    """From I to the end of W."""
    closing: int

    @property
    def cells(self) -> tuple[int, ...]:
        """Durations by kind."""
        return (self.forward, self.forward, *self.returning, self.rest)


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
    for replica in _both(problem, costs)[_KEPT].replicas:
        parts = replica.cost.least_parts_ns(can_split=problem.options.split_backward)
        yield [replica.cost.forward_ns, *parts]


def _both(problem: Problem, costs: CostModel) -> tuple[LaidOut, LaidOut]:
    """The given stages where every microbatch is kept, and where all recompute."""
    pairs = zip(problem.options.partition or (), problem.options.placement or (), strict=True)
    stages = [Stage(layers=layers, replicas=groups) for layers, groups in pairs]
    kept, recomputed = (
        lay_out_stages([replace(stage, recompute=flag) for stage in stages], costs=costs) for flag in (False, True)
    )
    return kept, recomputed


class TimeIndexed:
    """The rows of one problem for cells of one length."""

    def __init__(self, problem: Problem, costs: CostModel, *, cell_ns: int) -> None:
        self.problem, self.cell_ns, self.count = problem, cell_ns, problem.num_microbatches
        both = _both(problem, costs)
        self.tail_ns = min(laid_out.tail_ns for laid_out in both)
        self.room, self.units = _room(problem, both)
        self.replicas = [self._replica(both, number) for number in range(len(both[0].replicas))]
        self.graphs = [self._graph(n) for n in range(len(self.replicas))]
        """Of those alone on their devices."""
        transfers = both[_KEPT].transfers
        self.forwards = sorted(
            (each.sender, each.receiver, each.ticks // cell_ns) for each in transfers if not each.is_backward
        )
        self.backwards = sorted(
            ((each.sender, each.receiver, each.ticks // cell_ns) for each in transfers if each.is_backward),
            reverse=True,
        )

    def _replica(self, both: tuple[LaidOut, LaidOut], number: int) -> _Replica:
        pair = [laid_out.replicas[number] for laid_out in both]
        costs = [each.cost for each in pair]
        parts = [cost.least_parts_ns(can_split=self.problem.options.split_backward) for cost in costs]
        unit = max(self.units[device] for device in pair[0].group)
        closing = min(laid_out.synchronisation_ns[pair[0].stage] for laid_out in both)

        def during(cost: StageCost) -> int:
            return max(0, min(cost.stash_bytes, cost.whole_backward_bytes) // unit - cost.held_bytes // unit)

        return _Replica(
            devices=pair[0].group,
            forward=min(cost.forward_ns for cost in costs) // self.cell_ns,
            returning=(parts[_KEPT][0] // self.cell_ns, parts[_RECOMPUTED][0] // self.cell_ns),
            rest=min(rest for _, rest in parts) // self.cell_ns,
            held=(costs[_KEPT].held_bytes // unit, costs[_RECOMPUTED].held_bytes // unit),
            during=(during(costs[_KEPT]), during(costs[_RECOMPUTED])),
            kept=min(min(cost.weight_stash_bytes, cost.whole_backward_bytes) for cost in costs) // unit,
            closing=closing // self.cell_ns,
        )

    def _graph(self, number: int) -> MemoryStates | None:
        own = self.replicas[number]
        if any(other is not own and set(other.devices) & set(own.devices) for other in self.replicas):
            return None
        room = min(self.room[device] for device in own.devices)
        memory = ReplicaMemory(room=room, held=own.held, during=own.during, waiting=own.kept)
        return make_graph(memory, own.cells, count=self.count)

    def paths(self, cells: int) -> list[ReplicaPaths]:
        """Those of all stage replicas that have some; none where they are too long."""
        found: list[ReplicaPaths] = []
        if self.places(cells) > _MOST_PLACES:
            return found
        for n, graph in enumerate(self.graphs):
            first = [(n * _KINDS + kind) * (cells + 1) for kind in range(_KINDS)]
            columns = tuple(range(begin, begin + cells + 1) for begin in first)
            found += [] if graph is None else [ReplicaPaths(graph=graph, columns=columns, owner=n)]
        return found

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
        return len(self.replicas) * _KINDS * (cells + 1)

    def size(self, cells: int) -> int:
        """Terms of all rows, about."""
        return 8 * self.num_columns(cells)

    def rows(self, cells: int) -> list[CellRow]:
        """What holds of every plan that ends within so many cells.

        Proof. Keep the order of every device, and begin each action as early as it can with the shorter durations:
        all begin at whole cells, none later than before. Column (n, c, t) is how many actions of kind c of stage
        replica n begin by t. `_CellRows` says why each row holds, whatever the order of microbatches.
        """
        return list(_CellRows(self, cells).all_rows())


class _CellRows:
    """The rows for a number of cells."""

    def __init__(self, model: TimeIndexed, cells: int) -> None:
        self.model, self.cells = model, cells

    def begun(self, terms: dict[int, int], entry: _Entry) -> None:
        """Add what of a kind has begun by t; nothing has before 0, and all has in the end."""
        n, kind, t, factor = entry
        if t >= 0 and factor:
            column = (n * _KINDS + kind) * (self.cells + 1) + min(t, self.cells)
            terms[column] = terms.get(column, 0) + factor

    def row(self, *entries: _Entry, most: int = 0, is_end: bool = False, owner: int = -1) -> CellRow:
        """Of what has begun."""
        terms: dict[int, int] = {}
        for entry in entries:
            self.begun(terms, entry)
        return CellRow({column: factor for column, factor in terms.items() if factor}, most, is_end, owner)

    def forwards(self, n: int, t: int, *, factor: int) -> list[_Entry]:
        """F that have begun by t."""
        return [(n, _F + variant, t, factor) for variant in (_KEPT, _RECOMPUTED)]

    def returned(self, n: int, t: int, *, factor: int) -> list[_Entry]:
        """I that have ended by t."""
        own = self.model.replicas[n]
        return [(n, _I + variant, t - own.returning[variant], factor) for variant in (_KEPT, _RECOMPUTED)]

    def all_rows(self) -> Iterator[CellRow]:
        """Those of every stage replica and device, in an order that certificates rely on."""
        devices: dict[str, list[int]] = {}
        for n, replica in enumerate(self.model.replicas):
            yield from self._of_replica(n)
            for device in replica.devices:
                devices.setdefault(device, []).append(n)
        for sender, receiver, ticks in self.model.forwards:
            for t in range(self.cells + 1):
                # the k-th F begins after k F have ended where its input comes from
                sent = t - ticks - self.model.replicas[sender].forward
                yield self.row(*self.forwards(receiver, t, factor=1), *self.forwards(sender, sent, factor=-1))
        for sender, receiver, ticks in self.model.backwards:
            for t in range(self.cells + 1):
                began = [(receiver, _I + variant, t, 1) for variant in (_KEPT, _RECOMPUTED)]
                yield self.row(*began, *self.returned(sender, t - ticks, factor=-1))
        for device, numbers in devices.items():
            for t in range(self.cells + 1):
                yield self._one_at_a_time(numbers, t)
                yield self._memory(device, numbers, t=t)

    def _of_replica(self, n: int) -> Iterator[CellRow]:
        """Counts grow; a microbatch returns its way later as what it left as; W follow I; in the end all is done."""
        own, last, lag = self.model.replicas[n], self.cells, self._there_and_back(n)
        for t in range(last + 1):
            for kind in range(_KINDS):
                if t:
                    yield self.row((n, kind, t - 1, 1), (n, kind, t, -1), owner=n)
            for variant in (_KEPT, _RECOMPUTED):
                yield self.row((n, _I + variant, t, 1), (n, _F + variant, t - lag, -1))
            yield self.row((n, _W, t, 1), *self.returned(n, t, factor=-1))
        for variant in (_KEPT, _RECOMPUTED):
            yield self.row((n, _F + variant, last, 1), (n, _I + variant, last, -1))
        end = last - own.closing
        yield self.row(*self.returned(n, end, factor=-1), most=-self.model.count, is_end=True)
        yield self.row((n, _W, end - own.rest, -1), most=-self.model.count, is_end=True)

    def _there_and_back(self, n: int) -> int:
        """The least from the start of a microbatch's F to the start of its I: there and back by the longest way."""
        replicas, there = self.model.replicas, {n: 0}
        for sender, receiver, ticks in self.model.forwards:
            if sender in there:
                there[receiver] = max(there.get(receiver, 0), there[sender] + replicas[sender].forward + ticks)
        back = {m: at + replicas[m].forward for m, at in there.items()}
        for sender, receiver, ticks in self.model.backwards:
            if sender in back and receiver in back:
                back[receiver] = max(back[receiver], back[sender] + min(replicas[sender].returning) + ticks)
        return back[n]

    def _one_at_a_time(self, numbers: Sequence[int], t: int) -> CellRow:
        """Of the actions of a device, at most one has begun by t and ends after it."""
        entries: list[_Entry] = []
        for n in numbers:
            own = self.model.replicas[n]
            for kind, time in enumerate(own.cells):
                entries += [(n, kind, t, 1), (n, kind, t - time, -1)] if time else []
        return self.row(*entries, most=1, owner=numbers[0])

    def _memory(self, device: str, numbers: Sequence[int], *, t: int) -> CellRow:
        """What a device holds once all is done that ends by t, and what is running has begun."""
        entries: list[_Entry] = []
        for n in numbers:
            own = self.model.replicas[n]
            for variant in (_KEPT, _RECOMPUTED):
                held, during, ended = own.held[variant], own.during[variant], t - own.returning[variant]
                entries += [(n, _F + variant, t, held), (n, _I + variant, ended, -held)]
                entries += [(n, _I + variant, t, during), (n, _I + variant, ended, -during)]
                entries += [(n, _I + variant, ended, own.kept)]
            entries.append((n, _W, t - own.rest, -own.kept))
        return self.row(*entries, most=self.model.room[device], owner=numbers[0])


def _room(problem: Problem, both: tuple[LaidOut, LaidOut]) -> tuple[dict[str, int], dict[str, int]]:
    """Per device its room for stashes in units, and the bytes of a unit.

    The least workspace is there whenever memory grows: F, I and B have it, and W, which may have none, only frees.
    """
    room, units = dict[str, int](), dict[str, int]()
    for device in {name for replica in both[_KEPT].replicas for name in replica.group}:
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
    kinds = {move.kind for move in paths.graph.moves}
    begun = [[total.get(column, 0) for column in columns] for columns in paths.columns]
    alone = most * sum(value for kind in kinds for value in begun[kind] if value < 0)
    # a start counts from its cell to the last
    prices = [list(accumulate(reversed(own)))[::-1] for own in begun]
    least = paths.graph.least_price(prices, cells=len(paths.columns[0]) - 1)
    return 0 if least is None else max(0, least - alone)


def raise_bound(
    problem: Problem,
    costs: CostModel,
    *,
    start_ns: int,
    most_ns: int,
    solve: _Solve,
    most_cells: int,
    has_paths: bool = False,
) -> tuple[int, dict[str, object]] | None:
    """The largest value found from `start_ns` to `most_ns` with what its certificate holds; None if none is above.

    `has_paths`: whether multipliers are sought that say most together with paths, which takes longer. Missed ends fall
    about evenly with time, so that a secant leads to the last time at which some are missed.
    """
    lengths = choose_cells(problem, costs, value_ns=most_ns, most_cells=most_cells)
    if not lengths:
        return None
    model = TimeIndexed(problem, costs, cell_ns=lengths[0])
    low, high = model.cells(start_ns - 1), model.cells(most_ns - 1)
    best: tuple[int, dict[str, object]] | None = None
    known: list[tuple[int, float]] = []
    at = max(low + 1, 0)
    while low < at <= high and model.size(at) <= MOST_TERMS and (not has_paths or model.places(at) <= _MOST_SOUGHT):
        rows, paths = model.rows(at), model.paths(at)
        found = solve(rows, (model.num_columns(at), model.count), paths=paths if has_paths else ())
        if found is None:
            break
        missed, multipliers = found
        if is_contradiction(rows, multipliers, most=model.count, paths=paths):
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
    problem: Problem, costs: CostModel, *, value_ns: int, cell_ns: int, multipliers: _Multipliers
) -> bool:
    """Whether no plan takes less than `value_ns`. Raises ValueError where the rows are too many."""
    model = TimeIndexed(problem, costs, cell_ns=cell_ns)
    cells = model.cells(value_ns - 1)
    if cells < 0:
        return True
    if model.size(cells) > MOST_TERMS:
        raise ValueError("certificate: cell_ns makes too many rows to be checked; make the bound again")
    rows = model.rows(cells)
    if any(number >= len(rows) for number, _ in multipliers):
        raise ValueError("certificate: multipliers name rows that are not there; make the bound again")
    return is_contradiction(rows, multipliers, most=model.count, paths=model.paths(cells))

"""What steers the search and was chosen by hand: groups of parameters, one per room of this floor, each with its range.

`SolverParams` collects them; a `Searcher` carries it to wherever it searches. A field's type has its unit's range, its
docstring says what it does and what was measured. Another value never makes a plan wrong, only better or worse, sooner
or later found: plans are verified, and bounds proved, whatever is set here.

Some parameters are compiled into the kernels that read them, and so are no fields:

* `solver_models.local_search.critical_path_search`: REACH, how far an action moves at most;
* `solver_models.joint.branch_and_bound`: MAX_DEPTH, RUN_GROWTH, SHAVED_RUN, PLAYED, the course of its runs;
* `solver_models.joint.lower_bounds`: MAX_PASSES, after which heads and tails are left as they are;
* `solver_models.joint.propagation`: MAX_NARROWINGS, after which windows are left as they are;
* `solver_models.joint.shaving`: SHARE, the part of an action's room that is tried;
* `solver_models.starts.link_spread`: POWER, TRIP_PART, by which busy links and long ways are priced;
* `solver_models.moves.split_placement`: WISH_SHARE, how often a step changes a wish.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

Count = Annotated[int, (1, 10**6)]
"""How many: at least one."""
Amount = Annotated[int, (0, 10**6)]
"""How many: perhaps none."""
Work = Annotated[int, (1, 10**12)]
"""Actions played, nodes, cells or steps: what is counted instead of seconds, so that it is the same everywhere."""
Share = Annotated[float, (0.0, 1.0)]
"""A part of something."""
Ratio = Annotated[float, (1.0, 1000.0)]
"""How many times as much."""
Heat = Annotated[float, (0.0, 10.0)]
"""A temperature, as a part of the objective; 0 takes no step that is worse."""
FallingHeat = Annotated[float, (1e-9, 10.0)]
"""The first or last temperature of an anneal, which falls in equal ratios."""
Seconds = Annotated[float, (0.0, 10.0**6)]
"""Wall-clock seconds, or CP-SAT's deterministic ones."""


class ParamGroup:
    """Parameters of one room, each within the range that its type has."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Raise ValueError that names the field, its value and the remedy."""
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            _require(f"{group_name(type(self))}.{name}", getattr(self, name), kind=kind)


def group_name(kind: type) -> str:
    """What a group is called where parameters are named: `order_search` for `OrderSearchParams`."""
    words = kind.__name__.removesuffix("Params")
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in words).lstrip("_")


def _require(what: str, value: object, *, kind: Any) -> None:
    """Raise ValueError unless a value is what its type says, within its range."""
    if get_origin(kind) in (Union, UnionType):
        if value is not None:
            _require(what, value, kind=get_args(kind)[0])
    elif get_origin(kind) is tuple:
        for index, (item, inner) in enumerate(_items(what, value, kinds=get_args(kind))):
            _require(f"{what}[{index}]", item, kind=inner)
    else:
        number, (least, most) = get_args(kind)
        shown, noun = repr(value)[:60], "a whole number" if number is int else "a number"
        if isinstance(value, bool) or not isinstance(value, (int, float) if number is float else int):
            raise ValueError(f"search parameter {what} = {shown} is not {noun}; give {noun} from {least:g} to {most:g}")
        if not least <= value <= most:
            raise ValueError(f"search parameter {what} = {shown} is out of range; give {noun} from {least} to {most}")


def _items(what: str, value: object, *, kinds: tuple[Any, ...]) -> Iterator[tuple[object, Any]]:
    """The items of a list with the type of each; raises ValueError unless it is one, as long as it has to be."""
    is_open = kinds[-1] is Ellipsis
    wanted = "one or more items" if is_open else f"{len(kinds)} items"
    if not isinstance(value, tuple) or not value or (not is_open and len(value) != len(kinds)):
        raise ValueError(f"search parameter {what} = {repr(value)[:60]} is no list of {wanted}; give {wanted}")
    yield from ((item, kinds[0] if is_open else kind) for item, kind in zip(value, _padded(kinds, value), strict=True))


def _padded(kinds: tuple[Any, ...], value: tuple[object, ...]) -> tuple[Any, ...]:
    return kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWindowParams(ParamGroup):
    """How many tasks are under way at once where rounds are counted, whatever the number of threads; under a time limit
    it is one more than there are threads (`solver_models.local_search.task_window`).
    """

    first: Annotated[int, (1, 1024)] = 2
    """Tasks under way at first; a task knows nothing of those that are. Measured: 1 and 4 change neither plans nor
    bounds, for 1.10 and 1.09 of the processor time (docs/benchmarks/search_params.md)."""
    tasks_per_width: Count = 64
    """Started tasks that make room for one more under way. Measured: gnmt8 on four devices, 20 s on two cores, seeds 0
    to 2, took 199.0, 193.3, 195.7 ms with room for one more every 8 or 16 tasks, and 191.1, 193.3, 195.4 ms with every
    64; hosts of many cores fill later (`python -m benchmarks.threads`)."""
    most: Annotated[int, (1, 1024)] = 64
    """Most tasks under way. Measured: 32 and 128 change neither plans nor bounds, for 0.98 and 0.98 of the processor
    time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MultistartParams(ParamGroup):
    """Rounds of the joint search and the pool that they start from (`solver_models.local_search.multistart`)."""

    tasks_per_round: Annotated[int, (1, 1024)] = 2
    """Anneals and polishes of a round; the number of threads is another matter. Measured: 1 and 4 give plans 2.0 and
    0.5 % (each ± 0.3) longer for 0.46 and 1.88 of the processor time (`benchmarks/search_params.py`, ten rounds)."""
    round_ticks: Work = 2_000_000
    """Work of one task of the first rounds, in played actions. Measured: about a fifth of a second; half and twice of a
    tenth of it give plans 1.3 % longer and 0.2 % (each ± 0.3) shorter for 0.51 and 1.48 of the processor time
    (`benchmarks/search_params.py`, ten rounds)."""
    max_iterations: Work = 20_000
    """Steps of an anneal of the first rounds, however short plans are. Measured: does not bind on gnmt8 and bert24
    (`benchmarks/search_params.py`)."""
    rounds_per_step: Count = 8
    """Every so many rounds, rounds become one step longer: late improvements need long anneals. Measured: 4 and 16
    change plans by 0.0 and 0.2 % (each ± 0.3) for 1.35 and 0.74 of the processor time
    (`benchmarks/search_params.py`, ten rounds)."""
    most_steps: Count = 6
    """Steps of `round_ticks` up to which rounds grow. Measured: 3 and 12 change neither plans nor bounds, for 1.01 and
    1.01 of the processor time (docs/benchmarks/search_params.md)."""
    pool_size: Count = 12
    """Candidates kept to start from. Measured: 6 and 24 change neither plans nor bounds, for 1.05 and 1.00 of the
    processor time (docs/benchmarks/search_params.md)."""
    per_shape: Count = 2
    """How many of them may have the same numbers of replicas stage by stage. Measured: 1 and 4 change neither plans nor
    bounds, for 1.06 and 0.98 of the processor time (docs/benchmarks/search_params.md)."""
    rank_weight: Share = 0.7
    """How likely each next candidate of the pool is to be started from, relative to the one before. Measured: 0.35
    changes plans by -0.04 %, for 1.13 of the processor time (docs/benchmarks/search_params.md)."""
    stale_rounds: Count = 5
    """Rounds without progress after which the pool begins afresh. Measured: 2 and 10 change plans by +0.12 and -0.16 %,
    for 1.15 and 1.24 of the processor time (docs/benchmarks/search_params.md)."""
    progress_parts: Count = 1000
    """Progress is one part in so many of the objective. Measured: 500 and 2000 change neither plans nor bounds, for
    1.05 and 1.02 of the processor time (docs/benchmarks/search_params.md)."""
    narrow_rounds: Amount = 8
    """Where widths are open: first rounds on single devices alone. Measured: 4 and 16 change neither plans nor bounds,
    for 1.07 and 1.00 of the processor time (docs/benchmarks/search_params.md)."""
    wide_every_rounds: Count = 2
    """After those, one round in so many looks at groups of devices. Measured: 1 and 4 change neither plans nor bounds,
    for 0.98 and 1.00 of the processor time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealParams(ParamGroup):
    """Temperatures of the joint search and of split placement (`solver_models.local_search.multistart`)."""

    heats: tuple[tuple[FallingHeat, FallingHeat], ...] = (
        (0.03, 0.0005),
        (0.01, 0.0002),
        (0.1, 0.0005),
        (0.003, 0.0001),
        (0.3, 0.001),
    )
    """First and last temperature of an anneal, as parts of the objective; rounds take turns. Measured: [[0.015,
    0.00025], [0.005, 0.0001], [0.05, 0.00025], [0.0015, 5e-05], [0.15, 0.0005]] and [[0.06, 0.001], [0.02, 0.0004],
    [0.2, 0.001], [0.006, 0.0002], [0.6, 0.002]] change plans by -0.17 and +0.65 %, for 1.03 and 0.92 of the processor
    time (docs/benchmarks/search_params.md)."""
    parts: Annotated[int, (1, 100)] = 2
    """Anneals that follow each other within a task, each from the best of those before. Measured: 1 and 4 change plans
    by +0.29 and -0.16 %, for 0.88 and 1.10 of the processor time (docs/benchmarks/search_params.md)."""
    floor_heats: tuple[tuple[FallingHeat, FallingHeat], ...] = (
        (0.01, 0.0005),
        (0.03, 0.0005),
        (0.003, 0.0002),
        (0.1, 0.0005),
    )
    """Temperatures of anneals on the floor, which take turns. Measured: [[0.005, 0.00025], [0.015, 0.00025], [0.0015,
    0.0001], [0.05, 0.00025]] and [[0.02, 0.001], [0.06, 0.001], [0.006, 0.0004], [0.2, 0.001]] change plans by -0.45
    and +0.41 %, for 1.12 and 1.05 of the processor time (docs/benchmarks/search_params.md)."""
    floor_ticks: Work = 200
    """Work of a step on the floor, in played actions, on up to `floor_devices` devices. Measured: between 110 (24
    layers on 4 devices) and 300 (96 on 16)."""
    floor_devices: Count = 16
    """With more devices that work grows in proportion. Measured: 110 on 4, 180 on 8, 300 on 16."""
    near_heats: tuple[tuple[FallingHeat, FallingHeat], ...] = ((0.01, 0.0003), (0.003, 0.0001))
    """Temperatures of anneals on the floor that begin with a candidate whose orders are good; they take turns.
    Measured: [[0.005, 0.00015], [0.0015, 5e-05]] changes no plan, [[0.02, 0.0006], [0.006, 0.0002]] one of four, by
    -2.4 % (24 layers on 6 and on 4 devices, 12 s, one thread, two seeds, which are 3 to 5 % apart)."""
    most_floored_actions: Work = 30_000
    """Actions of the largest candidate whose schedule bound is asked for before its orders are polished.
    Measured: 15000 and 60000 change no plan (24 layers on 6 and on 4 devices, 12 s, one thread, two seeds)."""
    first_polish_round: Count = 3
    """The first round in which orders are polished. Measured: 2 and 6 change plans by +0.00 and +0.12 %, for 0.97 and
    1.08 of the processor time (docs/benchmarks/search_params.md)."""
    polish_heats: tuple[Heat, ...] = (0.0, 0.0003, 0.001, 0.0001)
    """Temperatures of polishing orders, which take turns. Measured: [0.0, 0.00015, 0.0005, 5e-05] and [0.0, 0.0006,
    0.002, 0.0002] change neither plans nor bounds, for 1.18 and 1.00 of the processor time
    (docs/benchmarks/search_params.md)."""
    kept_polished: Count = 12
    """Candidates with orders of their own that are kept. Measured: 6 and 24 change no plan (24 layers on 6 and on 4
    devices, 12 s, one thread, two seeds)."""
    most_polished: Count = 3
    """Of how many of these, and of the pool, orders are polished beside annealing what policies reach. Measured: 2 and
    6 change neither plans nor bounds, for 1.06 and 1.03 of the processor time
    (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolishParams(ParamGroup):
    """Tabu search on the orders of one candidate of the joint search (`solver_models.local_search.search`)."""

    samples: Count = 60
    """Moves judged per step. Measured: 30 and 120 change neither plans nor bounds, for 1.05 and 1.17 of the processor
    time (docs/benchmarks/search_params.md)."""
    patience: Count = 300
    """Steps without success before it starts again. Measured: 150 and 600 change neither plans nor bounds, for 1.05 and
    1.10 of the processor time (docs/benchmarks/search_params.md)."""
    step_plays: Count = 3
    """Plays that a step is counted as. Measured: 2 and 6 change neither plans nor bounds, for 1.03 and 0.99 of the
    processor time (docs/benchmarks/search_params.md)."""
    most_floored_actions: Work = 400_000
    """Actions of the largest candidate whose schedule bound says whether its orders are worth looking at. Measured:
    that of 786,000 actions takes 17 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchParams(ParamGroup):
    """Branch and bound over the orders of a case (`solver_models.local_search.search`,
    `solver_models.joint.branch_and_bound`).
    """

    whole_nodes: Amount = 100
    """With so few nodes, orders are searched as a whole; with more, parts that share nothing one by one. Measured: 50
    and 200 change neither plans nor bounds, for 1.32 and 1.04 of the processor time
    (docs/benchmarks/search_params.md)."""
    first_run: Work = 100
    """Nodes until the search starts again for the first time, with the weighted degrees learnt. Measured: 50 and 200
    change neither plans nor bounds, for 1.04 and 1.16 of the processor time (docs/benchmarks/search_params.md)."""
    refuted_nodes: Work = 20_000
    """Nodes that the search for the tree of one case of a refutation looks at, at most. Measured: those of the eight
    problems of `benchmarks.joint_small` that have trees of more than 20 nodes are found in 1,700."""
    refuted_effort: Annotated[int, (0, 10**9)] = 400_000
    """Units of work that a refutation may take, of some 20 microseconds each; 0: none is tried. Measured: 200000 and
    800000 change neither plans nor bounds, for 0.75 and 0.75 of the processor time
    (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeParams(ParamGroup):
    """The exact search over partitions and mappings (`solver_models.joint`)."""

    max_downsets: Work = 2_000
    """Down-sets of the layers of the largest graph that is searched exactly. Measured: 1000 and 4000 change neither
    plans nor bounds, for 0.96 and 1.07 of the processor time (docs/benchmarks/search_params.md)."""
    max_arcs: Work = 200_000
    """Sets of layers that may be a stage, at most. Measured: 100000 and 400000 change neither plans nor bounds, for
    0.99 and 1.05 of the processor time (docs/benchmarks/search_params.md)."""
    max_groups: Work = 400
    """Ordered groups of devices that may hold a stage, at most. Measured: 200 and 800 change neither plans nor bounds,
    for 1.02 and 1.02 of the processor time (docs/benchmarks/search_params.md)."""
    max_permutations: Work = 720
    """Permutations of the devices that are tried for symmetry; 720 are all of six. Measured: 360 and 1440 change
    neither plans nor bounds, for 1.33 and 1.09 of the processor time (docs/benchmarks/search_params.md)."""
    max_cases: Work = 100_000
    """Open cases that are listed, at most. Measured: 50000 and 200000 change neither plans nor bounds, for 1.09 and
    1.22 of the processor time (docs/benchmarks/search_params.md)."""
    parts: Annotated[int, (1, 1024)] = 16
    """Parts of the tree that may be searched side by side. Measured: 8 and 32 change neither plans nor bounds, for 1.17
    and 1.35 of the processor time (docs/benchmarks/search_params.md)."""
    largest_part: Share = 0.25
    """How much of all nodes one of them may have. Measured: 0.125 and 0.5 change neither plans nor bounds, for 1.00 and
    1.09 of the processor time (docs/benchmarks/search_params.md)."""
    max_columns: Work = 20_000
    """Columns of the largest integer programme over cases that is built. Measured: 10000 and 40000 change no plan (a
    tree that gives up in 8 s, where seeds differ by 0.3 %; docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSearchParams(ParamGroup):
    """Rounds of search for the order of one partition and mapping (`solver_models.local_search.order_search`)."""

    tasks_per_round: Annotated[int, (1, 1024)] = 2
    """Tasks of a round; the number of threads is another matter. Measured: 1 and 4 change neither plans nor bounds, for
    0.95 and 0.89 of the processor time (docs/benchmarks/search_params.md)."""
    first_actions: Work = 1_000_000
    """Work of one task of the first round, in played actions; it doubles. Measured: about a twentieth of a second."""
    most_actions: Work = 16_000_000
    """Work up to which it doubles, where partition and mapping are given or come from the sequential planner. Measured:
    800000 and 3200000 change neither plans nor bounds, for 0.88 and 1.04 of the processor time
    (docs/benchmarks/search_params.md)."""
    samples: tuple[Count, ...] = (60, 30, 120, 200)
    """Moves judged per step of the tabu search; tasks take turns. Measured: [30, 15, 60, 100] and [120, 60, 240, 400]
    change neither plans nor bounds, for 0.91 and 0.97 of the processor time (docs/benchmarks/search_params.md)."""
    patience: tuple[Count, ...] = (300, 1000, 200, 3000)
    """Steps without success before it goes back to the best order; tasks take turns. Measured: [150, 500, 100, 1500]
    and [600, 2000, 400, 6000] change neither plans nor bounds, for 0.93 and 0.92 of the processor time
    (docs/benchmarks/search_params.md)."""
    heats: tuple[Heat, ...] = (0.0, 0.0003, 0.001, 0.0001)
    """Temperatures where a tabu search does not know the critical path (shared links); tasks take turns. Measured:
    [0.0, 0.00015, 0.0005, 5e-05] and [0.0, 0.0006, 0.002, 0.0002] change no plan (100 layers on 64 devices of four
    types in 12 s; docs/benchmarks/search_params.md)."""
    pool_size: Count = 8
    """Orders that are kept, at most one of each origin. Measured: 4 and 16 change neither plans nor bounds, for 0.88
    and 0.86 of the processor time (docs/benchmarks/search_params.md)."""
    rank_weight: Share = 0.6
    """How likely each next order of the pool is to be started from, relative to the one before. Measured: 0.3 changes
    neither plans nor bounds, for 0.90 of the processor time (docs/benchmarks/search_params.md)."""
    block_seeds: Amount = 4
    """Orders that repeat a building block to begin with. Measured: 2 and 8 change no plan (24 layers on 4 unlike
    devices in 6 s, where seeds differ by 0.8 %; docs/benchmarks/search_params.md)."""
    slopes: tuple[Amount, ...] = (4, 8, 6, 2, 12, 5, 0)
    """Slopes of the in-flight caps that policies are annealed from, in quarters; 0: caps that fill the pipeline.
    Measured: [2, 4, 3, 1, 6, 2, 1] and [8, 16, 12, 4, 24, 10, 1] change neither plans nor bounds, for 0.84 and 0.83 of
    the processor time (docs/benchmarks/search_params.md)."""
    extras: tuple[Amount, ...] = (0, 1)
    """Microbatches beyond the caps that fill the pipeline. Measured: [1, 1] and [1, 2] change neither plans nor bounds,
    for 0.87 and 0.86 of the processor time (docs/benchmarks/search_params.md)."""
    repetend_task: Amount = 5
    """The number of the task that looks for repetends. Measured: 2 and 10 change neither plans nor bounds, for 0.86 and
    0.84 of the processor time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpWindowParams(ParamGroup):
    """Windows of an order that CP-SAT solves anew (`solver_models.local_search.order_search`)."""

    every_turns: Count = 6
    """Turns of an order search between two with windows. Measured: 3 and 12 change neither plans nor bounds, for 0.85
    and 0.78 of the processor time (docs/benchmarks/search_params.md)."""
    free_actions: Count = 120
    """Actions in a window. Measured: 60 and 240 change plans by 0.0 and -0.3 % (the order in half the memory in 8 s,
    where seeds differ by 0.2 %; docs/benchmarks/search_params.md)."""
    most_windows: Count = 2
    """Windows of a task. Measured: 1 and 4 change plans by +0.1 and -0.3 % (the order in half the memory in 8 s, where
    seeds differ by 0.2 %; docs/benchmarks/search_params.md)."""
    work: Seconds = 0.5
    """CP-SAT's deterministic limit of a window. Measured: 0.25 and 1 change no plan (the order in half the memory in 8
    s, where seeds differ by 0.2 %; docs/benchmarks/search_params.md)."""
    max_actions: Work = 30_000
    """Longer orders have no windows. Measured: 15000 and 60000 change neither plans nor bounds, for 0.78 and 0.81 of
    the processor time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetendParams(ParamGroup):
    """Periods of an order, found by CP-SAT (`solver_models.schedule.repetend`)."""

    slots: Count = 120
    """Ticks of the fullest device's work on one microbatch are rounded so that it has at most about so many. Measured:
    60 and 240 change neither plans nor bounds, for 0.88 and 0.93 of the processor time
    (docs/benchmarks/search_params.md)."""
    stretches: tuple[Annotated[int, (100, 10_000)], ...] = (
        100, 102, 104, 107, 110, 114, 118, 122, 127, 133, 140, 150, 165, 200,
    )  # fmt: skip
    """Periods tried, in percent of the fullest device's work, until one is possible in the memory. Measured: [200, 204,
    208, 214, 220, 228, 236, 244, 254, 266, 280, 300, 330, 400] changes neither plans nor bounds, for 0.79 of the
    processor time (docs/benchmarks/search_params.md)."""
    more_periods: Amount = 1
    """Longer periods tried after the first possible one: they need a shorter fill. Measured: 2 changes neither plans
    nor bounds, for 0.94 of the processor time (docs/benchmarks/search_params.md)."""
    most_failures: Count = 2
    """Periods given up in all. Measured: 1 and 4 change neither plans nor bounds, for 0.82 and 0.85 of the processor
    time (docs/benchmarks/search_params.md)."""
    max_actions: Count = 256
    """Largest patterns looked for, in actions of one microbatch. Measured: 128 and 512 change neither plans nor bounds,
    for 0.90 and 0.90 of the processor time (docs/benchmarks/search_params.md)."""
    work: Seconds = 0.25
    """CP-SAT's deterministic limit of one period. Measured: 0.025 and 0.1 change neither plans nor bounds, for 0.88 and
    0.79 of the processor time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockParams(ParamGroup):
    """Building blocks of two-chunk V to begin with (`solver_models.local_search.building_blocks`)."""

    steps: tuple[Annotated[int, (1, 6)], ...] = (1, 2, 3, 4)
    """Slots tried from device to device. Measured: [1, 1, 2, 2] changes no plan (24 layers on 4 unlike devices in 6 s,
    where seeds differ by 0.8 %; docs/benchmarks/search_params.md)."""
    per_steps: Count = 10
    """Blocks of the same steps that are looked at: those of the shortest stay in memory. Measured: 5 and 20 change no
    plan (24 layers on 4 unlike devices in 6 s, where seeds differ by 0.8 %; docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedSeedParams(ParamGroup):
    """First candidates with balanced cuts (`solver_models.starts.first_candidates`)."""

    fewest_rated: Count = 6
    """Candidates that are rated whatever the time: a search needs some to begin with. Measured: 3 and 12 change no plan
    (100 layers on 64 devices of four types in 12 s; docs/benchmarks/search_params.md)."""
    first_chunks: tuple[Annotated[float, (0.01, 0.99)], ...] = (0.5, 0.25, 1 / 3, 2 / 3, 0.75)
    """Part of a device's work that its first chunk takes, where every device holds two. Measured: [0.25, 0.125,
    0.16666666666666666, 0.3333333333333333, 0.375] changes neither plans nor bounds, for 0.95 of the processor time
    (docs/benchmarks/search_params.md)."""
    most_chunks: Count = 12
    """Most stages per device that seeds have. Measured: 6 and 24 change neither plans nor bounds, for 0.99 and 1.00 of
    the processor time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFitParams(ParamGroup):
    """Intervals of layers for unlike devices, device by device (`solver_models.starts.best_fit`)."""

    most_tries: Count = 192
    """Choices that are followed at once; the first always takes the best fit. Measured: 96 and 384 change neither plan
    nor bound of "unequal shares"."""
    tries_times_devices: Work = 3_072
    """Choices times devices, at most. Measured: 1536 and 6144 change neither plan nor bound of "unequal shares"."""
    steps: Amount = 9
    """Halvings of the bracket around the least period. Measured: 4 and 18 change neither plan nor bound of "unequal
    shares"."""
    first_targets: tuple[Ratio, ...] = (1.02, 1.1, 1.3, 2.0, 4.0)
    """Targets over the floor, in turn until one is reached. Measured: twice each changes neither plan nor bound of
    "unequal shares"."""
    held: tuple[Share, ...] = (1.0, 0.5, 0.0)
    """Microbatches that a stage shall hold at once, as parts of the devices that are left. Measured: half of each
    changes neither plan nor bound of "unequal shares"."""
    most_noise: Share = 1.0
    """What chance adds at most to the waste that devices are compared by, as a part of the target; little in most
    tries. Measured: 0.5 changes neither plan nor bound of "unequal shares"."""
    shares: tuple[Share, ...] = (1.0, 0.75, 0.5)
    """Parts of the devices, the fastest ones, that may be used. Measured: half of each changes neither plan nor bound
    of "unequal shares"."""
    most_devices: Count = 256
    """With more devices it takes too long and is left out. Measured: 128 and 512 change neither plan nor bound of
    "unequal shares"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeSeedParams(ParamGroup):
    """First candidates of problems whose plans take long to play (`solver_models.starts.large_construction`)."""

    replicas: tuple[Count, ...] = (
        1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
    )  # fmt: skip
    """Devices per stage that are tried. Measured: [1, 1, 2, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256,
    384, 512] and [2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048] change no
    plan (taken for large in 5 s, where seeds differ by 1.1 %; docs/benchmarks/search_params.md)."""
    depths: tuple[Share, ...] = (1.0, 0.5, 0.2, 0.0)
    """Microbatches that a stage shall hold at once, as parts of the stages from it to the last. Measured: [0.5, 0.25,
    0.1, 0.0] changes no plan (taken for large in 5 s, where seeds differ by 1.1 %;
    docs/benchmarks/search_params.md)."""
    slacks: tuple[Share, ...] = (0.0, 0.03, 0.1, 0.25)
    """By how much a stage may fall short of the largest load where that makes what crosses its end smaller. Measured:
    [0.0, 0.015, 0.05, 0.125] and [0.0, 0.06, 0.2, 0.5] change no plan (taken for large in 5 s, where seeds differ by
    1.1 %; docs/benchmarks/search_params.md)."""
    most_slack_groups: Count = 160
    """Cuts into more stages have no slack to give. Measured: 80 and 320 change no plan (taken for large in 5 s, where
    seeds differ by 1.1 %; docs/benchmarks/search_params.md)."""
    steps: Annotated[int, (1, 200)] = 14
    """Halvings of the search for the least largest load of a cut. Measured: 7 and 28 change no plan (taken for large in
    5 s, where seeds differ by 1.1 %; docs/benchmarks/search_params.md)."""
    most_floors: Count = 200
    """Cuts whose floor is looked at, those with the least estimates. Measured: 100 and 400 change no plan (taken for
    large in 5 s, where seeds differ by 1.1 %; docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCutParams(ParamGroup):
    """First candidates on classes of many like devices (`solver_models.starts.device_class_cuts`)."""

    least_devices: Count = 32
    """Clusters with fewer devices have none. Measured: 16 and 64 change neither plans nor bounds, for 0.98 and 0.96 of
    the processor time (docs/benchmarks/search_params.md)."""
    class_units: Count = 16
    """Units that the devices of a class are counted in, at most. Measured: 8 and 32 change neither plans nor bounds,
    for 0.98 and 1.01 of the processor time (docs/benchmarks/search_params.md)."""
    most_replica_counts: Count = 5
    """Numbers of replicas per class and width, the largest ones. Measured: 2 and 10 change neither plans nor bounds,
    for 0.97 and 0.97 of the processor time (docs/benchmarks/search_params.md)."""
    most_stages: Count = 20
    """Stages of a pipeline. Measured: 10 and 40 change neither plans nor bounds, for 1.48 and 1.23 of the processor
    time (docs/benchmarks/search_params.md)."""
    limits: Count = 7
    """Limits on the slowest stage that are looked at at once. Measured: 4 and 14 change neither plans nor bounds, for
    1.49 and 1.45 of the processor time (docs/benchmarks/search_params.md)."""
    coarse: Ratio = 2.0
    """The largest of them at first, as a multiple of a perfect balance. Measured: 1 and 4 change plans by 0.0 and +0.2
    % (200 layers on 64 devices in 12 s; docs/benchmarks/search_params.md)."""
    fine: tuple[Share, Share] = (0.88, 1.0)
    """Least and largest beside the best one found, as multiples of it. Measured: [0.44, 0.5] changes plans by +0.2 %
    (200 layers on 64 devices in 12 s; docs/benchmarks/search_params.md)."""
    wide: tuple[Ratio, Ratio] = (1.0, 1.4)
    """The same where synchronisation is to be shorter. Measured: [2.0, 2.8] changes plans by +0.2 % (200 layers on 64
    devices in 12 s; docs/benchmarks/search_params.md)."""
    sync_steps: Count = 6
    """Limits on the longest synchronisation, one after the other. Measured: 3 and 12 change plans by 0.0 and +0.2 %
    (200 layers on 64 devices in 12 s; docs/benchmarks/search_params.md)."""
    sync_factor: Share = 0.75
    """Each as a part of the longest one found before. Measured: 0.375 changes no plan (200 layers on 64 devices in 12
    s; docs/benchmarks/search_params.md)."""
    worse: Ratio = 1.2
    """Estimates so many times the best plan known are not followed up. Measured: 2.4 changes neither plans nor bounds,
    for 1.22 of the processor time (docs/benchmarks/search_params.md)."""
    plays: Count = 3
    """Candidates that are played, of those with the least estimates. Measured: 2 and 6 change neither plans nor bounds,
    for 1.16 and 1.34 of the processor time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindFitParams(ParamGroup):
    """The same where classes are too many for tables (`solver_models.starts.device_class_fits`)."""

    least_devices: Count = 16
    """Types of like speed form a class until it has as many. Measured: 8 and 32 change neither plans nor bounds, for
    1.21 and 1.00 of the processor time (docs/benchmarks/search_params.md)."""
    tries: Count = 128
    """Choices that are followed at once; the first always takes what fills devices best. Measured: 64 and 256 change
    neither plans nor bounds, for 1.49 and 1.20 of the processor time (docs/benchmarks/search_params.md)."""
    first_targets: tuple[Ratio, ...] = (1.02, 1.1, 1.2, 1.35, 1.6, 2.0, 3.0, 5.0)
    """Limits on the slowest stage over the floor, in turn until one is reached. Measured: [2.04, 2.2, 2.4, 2.7, 3.2,
    4.0, 6.0, 10.0] changes neither plans nor bounds, for 1.58 of the processor time
    (docs/benchmarks/search_params.md)."""
    steps: Amount = 8
    """Halvings of the bracket around the least limit. Measured: 4 and 16 change neither plans nor bounds, for 1.15 and
    1.31 of the processor time (docs/benchmarks/search_params.md)."""
    most_noise: Share = 0.5
    """What chance adds at most to the part of its devices' time that a stage fills; little in most tries. Measured:
    0.25 and 1.0 change neither plans nor bounds, for 1.20 and 1.20 of the processor time
    (docs/benchmarks/search_params.md)."""
    most_thrift: Share = 0.5
    """By how much fast devices are saved at most, for layers that no others can hold in time. Measured: 0.25 and 1.0
    change neither plans nor bounds, for 1.39 and 1.31 of the processor time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPipelineParams(ParamGroup):
    """What becomes of the pipelines of both kinds (`planner.planning.starts.class_pipelines`)."""

    most_kept: Count = 64
    """Candidates that devices are given to, of those with the least estimates. Measured: 32 and 128 change neither
    plans nor bounds, for 1.39 and 1.02 of the processor time (docs/benchmarks/search_params.md)."""
    spread_steps: Work = 100_000
    """Exchanges of devices tried so that links share the traffic. Measured: on 100 layers and 512 devices of four types
    0.35 s of a processor; the busiest link falls from 4.0 to 0.26 s, with four times as many to 0.25."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicParams(ParamGroup):
    """Cuts by dynamic programming (`solver_models.partition.candidates`)."""

    tolerance: Annotated[float, (1e-9, 1.0)] = 2e-3
    """How exactly the least largest load is found for each number of stages, as a part of it. Measured: 0.001 and 0.004
    change neither plans nor bounds, for 1.12 and 1.03 of the processor time (docs/benchmarks/search_params.md)."""
    radius: Count = 24
    """How far, in layers, cuts are shifted for the sake of fill and drain. Measured: 12 and 48 change neither plans nor
    bounds, for 0.96 and 0.94 of the processor time (docs/benchmarks/search_params.md)."""
    most_shifted: Amount = 16
    """Partitions whose cuts are shifted. Measured: 8 and 32 change neither plans nor bounds, for 0.96 and 1.00 of the
    processor time (docs/benchmarks/search_params.md)."""
    most_probes: Work = 600_000
    """Intervals looked at per pattern of replication, at most. Measured: about a quarter of a second."""
    fewest_looks: Count = 12
    """A pattern that can be looked at fewer times than this within `most_probes` is left out. Measured: 6 and 24 change
    neither plans nor bounds, for 1.13 and 1.09 of the processor time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverParams:
    """Every group of this floor, under the name that its parameters have."""

    task_window: TaskWindowParams = field(default_factory=TaskWindowParams)
    """Tasks side by side."""
    multistart: MultistartParams = field(default_factory=MultistartParams)
    """Rounds of the joint search."""
    anneal: AnnealParams = field(default_factory=AnnealParams)
    """Temperatures of the joint search."""
    polish: PolishParams = field(default_factory=PolishParams)
    """Tabu search within the joint search."""
    tree: TreeParams = field(default_factory=TreeParams)
    """The exact search over partitions and mappings."""
    order_search: OrderSearchParams = field(default_factory=OrderSearchParams)
    """Rounds of order search."""
    cp_window: CpWindowParams = field(default_factory=CpWindowParams)
    """CP-SAT on parts of an order."""
    repetend: RepetendParams = field(default_factory=RepetendParams)
    """CP-SAT on periods."""
    block: BlockParams = field(default_factory=BlockParams)
    """Building blocks."""
    branch: BranchParams = field(default_factory=BranchParams)
    """Branch and bound over orders."""
    balanced_seed: BalancedSeedParams = field(default_factory=BalancedSeedParams)
    """Balanced first candidates."""
    best_fit: BestFitParams = field(default_factory=BestFitParams)
    """First candidates on unlike devices."""
    large_seed: LargeSeedParams = field(default_factory=LargeSeedParams)
    """First candidates of large problems."""
    kind_cut: KindCutParams = field(default_factory=KindCutParams)
    """First candidates on classes of devices."""
    kind_fit: KindFitParams = field(default_factory=KindFitParams)
    """First candidates on many classes of devices."""
    class_pipeline: ClassPipelineParams = field(default_factory=ClassPipelineParams)
    """Devices of both."""
    dynamic: DynamicParams = field(default_factory=DynamicParams)
    """Cuts by dynamic programming."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                shown = type(value).__name__
                raise ValueError(f"search parameters {name} are of type {shown}; give {kind.__name__}(...)")

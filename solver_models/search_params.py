"""What steers the search and can be set: groups of parameters, one per room of this package, each with its range.

`SolverParams` collects them; a `Searcher` carries it to wherever it searches. Another value never makes a plan wrong,
only better or worse, sooner or later found: plans are verified, and bounds proved, whatever is set here. Numbers that
were tried and changed little are constants beside the code that reads them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

Count = Annotated[int, (1, 10**6)]
"""A number of things: at least 1."""
Work = Annotated[int, (1, 10**12)]
"""Actions played, nodes, cells or steps: what is counted instead of seconds, so that it is the same everywhere."""
Share = Annotated[float, (0.0, 1.0)]
"""A part of something."""
Ratio = Annotated[float, (1.0, 1000.0)]
"""A factor: at least 1."""
Seconds = Annotated[float, (0.0, 10.0**6)]
"""Wall-clock seconds, or CP-SAT's deterministic ones."""
SuccessiveHalving = tuple[tuple[Annotated[float, (1e-9, 10.0)], Annotated[float, (1e-9, 10.0)]], ...]
"""First and last temperatures of anneals, as parts of the objective; each falls in equal ratios, rounds take turns."""


class ParamGroup:
    """Parameters of one room, each within the range that its type has."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Raise ValueError that names the field, its value and the remedy."""
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            _require(f"{group_name(type(self))}.{name}", getattr(self, name), kind=kind)


def group_name(kind: type) -> str:
    """What a group is called where parameters are named: `order_search` for `OrderSearchParams`."""
    name = kind.__name__.removesuffix("Params")
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


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
        raise ValueError(f"search parameter {what} = {repr(value)[:60]} is not a list of {wanted}; give {wanted}")
    yield from ((item, kinds[0] if is_open else kind) for item, kind in zip(value, _padded(kinds, value), strict=True))


def _padded(kinds: tuple[Any, ...], value: tuple[object, ...]) -> tuple[Any, ...]:
    return kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class MultistartParams(ParamGroup):
    """Rounds of the joint search and the pool that they start from (`solver_models.local_search.multistart`)."""

    tasks_per_round: Annotated[int, (1, 1024)] = 2
    """Anneals and polishes of a round; the number of threads is another matter."""
    round_ticks: Work = 2_000_000
    """Work of one task of the first rounds, in played actions."""
    max_iterations: Work = 20_000
    """Steps of an anneal of the first rounds, however short plans are."""
    rounds_per_step: Count = 8
    """Every so many rounds, rounds become one step longer: late improvements need long anneals."""
    pool_size: Count = 12
    """Candidates kept to start from."""
    stale_rounds: Count = 5
    """Rounds without progress after which the pool begins afresh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealParams(ParamGroup):
    """Temperatures of the joint search and of split placement (`solver_models.local_search.multistart`)."""

    heats: SuccessiveHalving = ((0.03, 0.0005), (0.01, 0.0002), (0.1, 0.0005), (0.003, 0.0001), (0.3, 0.001))
    """First and last temperature of an anneal, as parts of the objective; rounds take turns."""
    parts: Annotated[int, (1, 100)] = 2
    """Anneals that follow each other within a task, each from the best of those before."""
    floor_heats: SuccessiveHalving = ((0.01, 0.0005), (0.03, 0.0005), (0.003, 0.0002), (0.1, 0.0005))
    """Temperatures of anneals by the lower bound, which take turns."""
    first_polish_round: Count = 3
    """The first round in which orders are polished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSearchParams(ParamGroup):
    """Rounds of search for the order of one partition and mapping (`solver_models.local_search.order_search`)."""

    first_actions: Work = 1_000_000
    """Work of one task of the first round, in played actions; it doubles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpWindowParams(ParamGroup):
    """Windows of an order that CP-SAT solves anew (`solver_models.schedule.large_neighbourhood_search`)."""

    free_actions: Count = 120
    """Actions in a window, at least."""
    most_windows: Count = 4
    """Windows of a task."""
    work: Seconds = 0.5
    """CP-SAT's deterministic limit of a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCutParams(ParamGroup):
    """First candidates on classes of many like devices (`solver_models.starts.device_class_cuts`)."""

    limits: Count = 7
    """Limits on the slowest stage that are tried at once."""
    coarse: Ratio = 2.0
    """The largest of them at first, as a multiple of a perfect balance."""
    sync_steps: Count = 6
    """Limits on the longest synchronisation, one after the other."""
    sync_factor: Share = 0.75
    """Each as a part of the longest one found before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverParams:
    """Every group of this package, under the name that its parameters have."""

    multistart: MultistartParams = field(default_factory=MultistartParams)
    """Rounds of the joint search."""
    anneal: AnnealParams = field(default_factory=AnnealParams)
    """Temperatures of the joint search."""
    order_search: OrderSearchParams = field(default_factory=OrderSearchParams)
    """Rounds of order search."""
    cp_window: CpWindowParams = field(default_factory=CpWindowParams)
    """CP-SAT on parts of an order."""
    kind_cut: KindCutParams = field(default_factory=KindCutParams)
    """First candidates on classes of devices."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if isinstance(kind, type) and not isinstance(value, kind):
                shown = type(value).__name__
                raise ValueError(f"search parameters {name} are of type {shown}; give {kind.__name__}(...)")

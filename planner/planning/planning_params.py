"""What steers a planning run and can be set: `SearchParams`, the parameters of every room in one place.

The groups of `solver_models` are those of `solver_models.search_params`, those of the bounds are in
`planner.bounds.bound_params`, because bounds know nothing of solvers; here are those of the steps of a run, and what
collects them all. `make_plan` takes one, `SearchState` and `Searcher` carry it to where it is read. What differs from
the defaults stands in the evidence, so that a plan can be made again.
"""

from dataclasses import dataclass, field
from typing import Annotated

from planner import decisions
from planner.bounds.bound_params import BoundParams
from solver_models.search_params import Count, ParamGroup, Ratio, Seconds, SolverParams, Work

PARTS = (
    "class pipelines",
    "dynamic programme",
    "sequential planner",
    "order search",
    *(each.part for each in decisions.installed().values() if each.part),
    "exact search",
    "CP-SAT order",
    "packing bound",
)
"""Parts of a search that can be left out, as the evidence names them among improvers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPlansParams(ParamGroup):
    """First candidates of large problems, and baselines (`planner.planning.runs.run`)."""

    large_actions: Work = 40_000
    """Problems with more actions are large: their plans take so long to play that not everything can be tried."""
    quick_actions: Work = 300_000
    """Plans with no more actions are verified at once where there is none yet; of longer ones only the best is."""
    min_baseline_s: Seconds = 2.0
    """Seconds that baselines have at least, but at most half of the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceParams(ParamGroup):
    """What is left out where rounds are counted instead of seconds (`planner.planning.runs.run`)."""

    counted_part: Count = 8
    """There the packing bound gets one part in so many of its effort, since a user waits for every round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactParams(ParamGroup):
    """Turns of the exact search, and the list of its open cases (`planner.planning.improvers.exact_improver`)."""

    after_rounds: Count = 3
    """Rounds of the search before a small problem is searched exactly."""
    nodes: tuple[Work, ...] = (600_000, 6_000_000, 40_000_000)
    """Nodes of the tree that are visited before a threshold is lowered, in the first, second ... attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseParams(ParamGroup):
    """How the exact search closes one case of partition and mapping (`planner.planning.improvers.branch_and_check`)."""

    promising: Annotated[int, (0, 10**6)] = 40
    """Cases of least lower bound whose orders are polished first."""
    rounds: tuple[tuple[Work, Annotated[int, (0, 10**12)], Seconds | None], ...] = (
        (8, 300, None),
        (4, 0, 0.3),
        (100_000, 5, None),
        (100_000, 100, None),
        (100_000, 2_000, 0.3),
        (100_000, 20_000, 3.0),
        (100_000, 200_000, 30.0),
    )
    """How many cases, least lower bound first, nodes of the branch and bound over the orders of each, and the effort of
    CP-SAT where that does not do (none: it is not asked), round by round. The first two are for good orders: they spare
    most of the others everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveParams(ParamGroup):
    """Plans of other kinds beside the best, where they are asked for (`planner.planning.archive`)."""

    kinds_per_plan: Count = 4
    """Kinds that are kept for each requested plan: some turn out to be alike, or break a rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetsParams(ParamGroup):
    """Subsets of the devices, where money is minimised (`planner.planning.runs.subsets`)."""

    max_boxes: Count = 192
    """Boxes of subsets at most; each has a bound in the certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedParams(ParamGroup):
    """Microbatches that differ (`planner.planning.runs.variable_microbatches`)."""

    depths: tuple[Ratio, ...] = (1.0, 1.5, 2.0, 1000.0)
    """How many times as many microbatches as in 1F1B may be between F and I."""
    quick_plays: Count = 2_000
    """Assignments played when a layout is first tried, and after a layer has moved."""
    turn_plays: Count = 20_000
    """Assignments played in every step of a layout that is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopedParams(ParamGroup):
    """Layouts of programs that run stages in a loop (`planner.planning.starts.looped_layouts`)."""

    first_actions: Work = 40_000_000
    """Work of the first anneal of a shape, in actions; each further one has as much more."""
    most_actions: Work = 200_000_000
    """Most work of an anneal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchParams(SolverParams):
    """Every parameter of a planning run, as `group.name`; the defaults are what was tuned and tested."""

    first_plans: FirstPlansParams = field(default_factory=FirstPlansParams)
    """Effort before the search."""
    pace: PaceParams = field(default_factory=PaceParams)
    """What is left out where rounds are counted."""
    bound: BoundParams = field(default_factory=BoundParams)
    """Effort put into the certified bound."""
    exact: ExactParams = field(default_factory=ExactParams)
    """Turns of the exact search."""
    case: CaseParams = field(default_factory=CaseParams)
    """One case of the exact search."""
    archive: ArchiveParams = field(default_factory=ArchiveParams)
    """Plans of other kinds."""
    subsets: SubsetsParams = field(default_factory=SubsetsParams)
    """Devices to rent."""
    listed: ListedParams = field(default_factory=ListedParams)
    """Microbatches that differ."""
    looped: LoopedParams = field(default_factory=LoopedParams)
    """Layouts in a loop."""
    without: tuple[str, ...] = ()
    """Parts of the search that are left out, of `PARTS`: what they are worth (`benchmarks/ablation.py`)."""

    def __post_init__(self) -> None:
        super(SearchParams, self).__post_init__()
        for part in self.without:
            if part not in PARTS:
                raise ValueError(f"there is no part {part[:60]!r} of the search; choose from {', '.join(PARTS)}")

    def has(self, part: str) -> bool:
        """Whether a part of the search takes place."""
        return part not in self.without

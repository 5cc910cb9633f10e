"""Joint plans against a fair sequential planner with the same order search: `python -m benchmarks.sequential`."""

from dataclasses import dataclass, replace
from itertools import product
from statistics import mean, median

from benchmarks.chains import Condition, make_chains, make_one_by_one, parse_wishes
from benchmarks.generate import Family
from benchmarks.report import Planned, Table, ms, percent, plan_and_check
from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.one_f_one_b import order_one_f_one_b
from planner.baselines.pipeline import make_pipeline, make_plan
from planner.baselines.sequential import sequential_seating
from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.layout.costs import CostModel
from planner.plan import Stage
from planner.planning import Limits
from planner.problem import Options, Problem
from planner.verify import verify

HEADER = (
    "workload", "1F1B ms", "sequential ms", "joint ms", "joint / sequential", "joint / 1F1B",
    "lower bound ms", "gap", "all decisions ms", "gap", "verified", "certificate", "s",
)  # fmt: skip

SIZES = ((24, 4), (48, 8), (96, 16))
"""Layers and devices; twice as many microbatches as devices."""

MEMORY_BOUND: tuple[Condition, ...] = tuple(
    product(("scarce", "tight"), (("homogeneous", "equal"), ("two-level", "equal")))
)
UNLIKE: tuple[Condition, ...] = tuple(
    product(("loose", "scarce"), (("homogeneous", "classes"), ("random", "different")))
)
"""Memory, links and speeds of the two groups of families."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One workload, planned in both ways."""

    family: Family
    fused_ns: int | None
    """1F1B on the sequential planner's stages; None where it does not fit into memory."""
    sequential: Planned | None
    """The best order on the sequential planner's stages; None where it finds none that fit."""
    joint: Planned | None
    """Our plan under the same options: one stage per device, no replicas; None where none fits or is found."""
    free: Planned | None
    """Our plan with chunks and replicas to decide, too; None where none fits or is found."""


def main() -> None:
    """Print the table, and write it where `-o` says."""
    wishes = parse_wishes(__doc__, time_limit=8.0, what="each of the three searches")
    families = make_families()
    if wishes.quick:
        families = [family for family in families if family.num_devices == 4][:3]
    seconds = 2.0 if wishes.quick else wishes.time_limit
    table = Table(preface=_preface(seconds), header=HEADER, output=wishes.output)
    rows = []
    for family in families:
        rows.append(compare(family, seconds=seconds))
        table.add(_cells(rows[-1]))
    table.close(*_verdict(rows))


def make_families() -> list[Family]:
    """Memory-bound and unlike devices, chains, in three sizes."""
    return make_chains(SIZES, MEMORY_BOUND + UNLIKE)


def compare(family: Family, *, seconds: float) -> Row:
    """Plan a family's workload in both ways, with the same seconds for every search."""
    problem = make_one_by_one(family)
    limits = Limits(time_limit_s=seconds, patience_s=seconds)
    stages = find_stages(problem)
    return Row(
        family=family,
        fused_ns=None if stages is None else _play_fused(problem, stages),
        sequential=None if stages is None else plan_and_check(_fix(problem, stages), limits),
        joint=_plan(problem, limits),
        free=_plan(replace(problem, options=Options()), limits),
    )


def _plan(problem: Problem, limits: Limits) -> Planned | None:
    try:
        return plan_and_check(problem, limits)
    except (InfeasibleProblemError, NoPlanFoundError):
        return None


def find_stages(problem: Problem) -> tuple[Stage, ...] | None:
    """What the sequential planner settles on."""
    try:
        return sequential_seating(CostModel(problem)).stages
    except DoesNotApplyError:
        return None


def _fix(problem: Problem, stages: tuple[Stage, ...]) -> Problem:
    """The problem with partition and placement decided."""
    given = replace(
        problem.options,
        partition=tuple(stage.layers for stage in stages),
        placement=tuple(stage.replicas for stage in stages),
    )
    return replace(problem, options=given)


def _play_fused(problem: Problem, stages: tuple[Stage, ...]) -> int | None:
    costs = CostModel(problem)
    verdict = verify(problem, make_plan(costs, stages, words=order_one_f_one_b(make_pipeline(costs, stages))))
    return verdict.timeline.makespan_ns if verdict.passed and verdict.timeline else None


def _cells(row: Row) -> list[str]:
    planned = [each for each in (row.sequential, row.joint, row.free) if each is not None]
    return [
        row.family.name,
        "does not fit" if row.fused_ns is None else ms(row.fused_ns),
        "none fits" if row.sequential is None else ms(row.sequential.evidence.makespan_ns),
        *_joint_cells(row),
        *(["none found", ""] if row.free is None else [ms(row.free.evidence.makespan_ns), percent(row.free.gap)]),
        "yes" if all(each.is_verified for each in planned) else "NO",
        "re-derived" if all(each.is_certified for each in planned) else "REJECTED",
        f"{sum(each.total_s for each in planned):.0f}",
    ]


def _joint_cells(row: Row) -> list[str]:
    if row.joint is None:
        return ["none found", "", "", "", ""]
    return [
        ms(row.joint.evidence.makespan_ns),
        *(f"{ratio:.3f}" if ratio else "" for ratio in (_against_sequential(row, row.joint), _against_fused(row))),
        ms(row.joint.evidence.lower_bound_ns),
        percent(row.joint.gap),
    ]


def _against_sequential(row: Row, ours: Planned | None) -> float | None:
    theirs = row.sequential
    return None if theirs is None or ours is None else ours.evidence.makespan_ns / theirs.evidence.makespan_ns


def _against_fused(row: Row) -> float | None:
    return None if row.fused_ns is None or row.joint is None else row.joint.evidence.makespan_ns / row.fused_ns


def _preface(seconds: float) -> list[str]:
    return [
        "# Joint plans against a fair sequential planner",
        "",
        "The sequential planner cuts and seats the layers so that the largest stage or transfer is smallest, within",
        "the memory that 1F1B needs (`planner/baselines/sequential.py`); its order comes from the same search as ours,",
        f"with the same seconds ({seconds:g} for every search). One stage per device and no replicas for both. *All",
        "decisions*: our plan where chunks and replicas are to be decided, too. Families are those of",
        "`benchmarks/generate.py`; ratios below 1 are savings; *gap* is certified.",
        "",
    ]


def _verdict(rows: list[Row]) -> list[str]:
    ratios = [ratio for row in rows if (ratio := _against_sequential(row, row.joint))]
    free = [ratio for row in rows if (ratio := _against_sequential(row, row.free))]
    fused = [ratio for row in rows if (ratio := _against_fused(row))]
    worse = sum(ratio > 1 for ratio in ratios)
    saved, saved_free, saved_fused = 1 - mean(ratios), 1 - mean(free), 1 - median(fused)
    return [
        f"* never worse than the sequential planner: worse in {worse} of {len(ratios)} rows where it has a plan: "
        f"{_met(worse == 0)}.",
        f"* at least 5 % on average against it: {percent(saved)} under the same options: {_met(saved >= 0.05)} "
        f"({percent(saved_free)} where chunks and replicas are decided, too).",
        f"* at least 10 % on the median against 1F1B on its stages: {percent(saved_fused)}: "
        f"{_met(saved_fused >= 0.1)}.",
    ]


def _met(is_met: bool) -> str:
    return "target met" if is_met else "TARGET MISSED"


if __name__ == "__main__":
    main()

"""The joint planner beside the systems it grows from: `python -m benchmarks.seeds_joint [FOLDER ...] [-o TABLE.md]`.

The workloads of the folders (by default those of `benchmarks/workloads` with at most 100 layers), then random chains on
random connectivity: random graphs, two levels, rings, hybrid cube meshes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.generate import Family, make_workload
from benchmarks.report import Planned, Table, make_parser, ms, percent, plan_and_check
from benchmarks.topologies import TOPOLOGIES, connect
from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.layer_pipe.plans import make_layer_pipe_plan
from planner.baselines.spp.plans import make_attempts
from planner.costs import CostModel
from planner.plan import BaselineResult
from planner.planning import Limits
from planner.problem import Options, Problem
from planner.verify import verify
from profiles.load import load_workload
from profiles.workload import Workload

HEADER = (
    "workload", "D", "SPP ms", "its order", "OOO fast-forward ms", "OOO modulo ms", "LayerPipe ms", "joint ms",
    "joint / SPP", "joint / best OOO", "lower bound ms", "gap", "verified", "certificate", "s", "never worse",
)  # fmt: skip

SECONDS = 8.0
MOST_LAYERS = 100
SIZES = ((24, 8), (32, 16))
"""Layers and devices of the random chains; twice as many microbatches as devices."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One problem, planned jointly and by the four systems."""

    name: str
    problem: Problem
    planned: Planned
    spp_order: str
    layer_pipe: str

    @property
    def by_name(self) -> dict[str, BaselineResult]:
        return {row.name: row for row in self.planned.evidence.baselines}

    def fitting(self, *names: str) -> int | None:
        """The least makespan among these baselines, of those that keep to the memory."""
        rows = [self.by_name[name] for name in names if name in self.by_name]
        return min((row.makespan_ns for row in rows if row.fits_memory and row.makespan_ns is not None), default=None)

    @property
    def spp_ns(self) -> int | None:
        return self.fitting("SPP", "SPP (least that fits)", "SPP, recomputing")

    @property
    def out_of_order_ns(self) -> int | None:
        return self.fitting(
            "OOO fast-forward", "OOO modulo", "OOO fast-forward, recomputing", "OOO modulo, recomputing"
        )

    @property
    def is_never_worse(self) -> bool:
        """Against SPP and out-of-order backprop, which are given the same options."""
        ours = self.planned.evidence.makespan_ns
        return all(theirs is None or ours <= theirs for theirs in (self.spp_ns, self.out_of_order_ns))


def problems(folders: list[Path], *, quick: bool) -> Iterator[tuple[str, Problem]]:
    """Names and problems: the workloads, then the chains on random connectivity."""
    own = Path(__file__).parent / "workloads"
    paths = [path for folder in folders or [own] for path in sorted(folder.glob("*.json"))]
    for path in paths[:3] if quick else paths:
        workload = load_workload(path)
        if folders or len(workload.profile.layers) <= MOST_LAYERS:
            yield path.stem, _problem_of(workload)
    for number, (size, topology) in enumerate((size, topology) for size in SIZES for topology in TOPOLOGIES):
        for seed in (0, 1):
            if not quick or (number, seed) in ((0, 0), (3, 0)):
                yield _random(size, topology, seed=seed)


def _problem_of(workload: Workload) -> Problem:
    assert workload.cluster is not None
    assert workload.num_microbatches is not None
    return Problem(
        profile=workload.profile,
        cluster=workload.cluster,
        num_microbatches=workload.num_microbatches,
        options=Options(**workload.options),  # type: ignore[arg-type]
    )


def _random(size: tuple[int, int], topology: str, *, seed: int) -> tuple[str, Problem]:
    family = Family(
        shape="chain", num_layers=size[0], num_devices=size[1], num_microbatches=2 * size[1], memory="loose",
        links="homogeneous", speeds="equal", seed=seed,
    )  # fmt: skip
    problem = _problem_of(make_workload(family))
    cluster = connect(problem.cluster.devices, topology, seed=seed)
    return f"{topology}, {size[0]} layers, seed {seed}", replace(problem, cluster=cluster)


def plan_row(name: str, problem: Problem, *, seconds: float) -> Row:
    """Plan in all ways."""
    planned = plan_and_check(problem, Limits(time_limit_s=seconds, patience_s=seconds))
    return Row(
        name=name,
        problem=problem,
        planned=planned,
        spp_order=_spp_order(problem),
        layer_pipe=_play_layer_pipe(problem),
    )


def _spp_order(problem: Problem) -> str:
    try:
        return min(make_attempts(CostModel(problem)), key=lambda attempt: attempt.makespan_ns).order
    except DoesNotApplyError:
        return "–"


def _play_layer_pipe(problem: Problem) -> str:
    """LayerPipe's plan under the barrier; it is allowed split placement and any number of stages per device."""
    options = replace(problem.options, split_placement=True, max_stages_per_device=1024)
    asked = replace(problem, options=options)
    try:
        verdict = verify(asked, make_layer_pipe_plan(CostModel(asked)))
    except DoesNotApplyError as reason:
        return str(reason)
    assert verdict.timeline is not None
    rules = {violation.rule for violation in verdict.violations}
    assert rules <= {"memory-exceeded"}, rules
    return ms(verdict.timeline.makespan_ns) + (" (too much memory)" if rules else "")


def _shown(row: Row, name: str) -> str:
    """A baseline's makespan; in brackets where it breaks the memory."""
    found = row.by_name.get(name)
    if found is None or found.makespan_ns is None:
        return "–"
    return ms(found.makespan_ns) if found.fits_memory else f"({ms(found.makespan_ns)})"


def cells(row: Row) -> list[str]:
    """A row of the table."""
    evidence = row.planned.evidence
    ours = evidence.makespan_ns
    spp = _shown(row, "SPP")
    if "SPP (least that fits)" in row.by_name:
        spp += f" {_shown(row, 'SPP (least that fits)')}"
    return [
        row.name,
        str(len(row.problem.cluster.devices)),
        spp,
        row.spp_order,
        _shown(row, "OOO fast-forward"),
        _shown(row, "OOO modulo"),
        row.layer_pipe,
        ms(ours),
        *(f"{ours / theirs:.3f}" if theirs else "–" for theirs in (row.spp_ns, row.out_of_order_ns)),
        ms(evidence.lower_bound_ns),
        percent(row.planned.gap),
        "yes" if row.planned.is_verified else "NO",
        "derived" if row.planned.is_certified else "REFUSED",
        f"{row.planned.total_s:.1f}",
        "yes" if row.is_never_worse else "NO",
    ]


def main() -> None:
    """Plan all problems, a row each."""
    parser = make_parser(__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of workload documents")
    parser.add_argument("--time-limit", type=float, default=SECONDS, help="seconds for each joint plan")
    given = parser.parse_args()
    seconds = 2.0 if given.quick else given.time_limit
    table = Table(preface=_preface(seconds), header=HEADER, output=given.output)
    rows = []
    for name, problem in problems(given.folders, quick=given.quick):
        rows.append(plan_row(name, problem, seconds=seconds))
        table.add(cells(rows[-1]))
    table.close(*_verdict(rows))


def _preface(seconds: float) -> list[str]:
    return [
        "# The joint planner beside SPP, out-of-order backprop and LayerPipe",
        "",
        "`python -m benchmarks.seeds_joint`: all are given the same profile, cluster, memory and options, and are",
        f"played by the same simulator; the joint planner has {seconds:g} s. In brackets: breaks the memory limit",
        "(then SPP's best plan of those that fit stands beside it). LayerPipe is allowed more than the others, split",
        "placement and any number of stages per device, and pays for all transfers under the barrier. Runtime",
        "concurrency control is not played: it divides the cores of a host, and these devices are accelerators",
        "(`seeds_concurrency`).",
        "",
    ]


def _verdict(rows: list[Row]) -> Iterator[str]:
    against = [row.planned.evidence.makespan_ns / row.spp_ns for row in rows if row.spp_ns]
    strictly = sum(ratio < 1 for ratio in against)
    worse = sum(not row.is_never_worse for row in rows)
    mean = sum(against) / len(against)
    yield f"* against SPP: shorter in {strictly} of {len(against)} rows where SPP fits, {percent(1 - mean)} on average."
    yield f"* never worse than SPP and out-of-order backprop: worse in {worse} of {len(rows)} rows: {_met(worse == 0)}."


def _met(is_met: bool) -> str:
    return "target met" if is_met else "TARGET MISSED"


if __name__ == "__main__":
    main()

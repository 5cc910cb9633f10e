"""The joint planner beside the systems it grows from: `python -m benchmarks.seeds_joint [FOLDER ...] [-o TABLE.md]`.

The workloads of the folders; without any, the samples and those of `benchmarks/workloads` with at most 100 layers, then
random chains on random connectivity (random graphs, two levels, rings, hybrid cube meshes), then hosts of CPU cores.
All get the same profile, cluster, memory and options and one simulator. In brackets: breaks the memory limit; ratios
count plans that fit. LayerPipe is allowed split placement and any number of stages per device, and pays for transfers
under the barrier; so is the joint planner once more, from its own plan on. Concurrency control gives every stage a
number of cores of its own, *even widths* the same to all: a dash where a profile has one width.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from api.inputs import make_problem
from benchmarks.cpu_hosts import host_problems
from benchmarks.generate import Family, make_workload
from benchmarks.report import Planned, Table, make_parser, ms, percent, plan_and_check
from benchmarks.topologies import TOPOLOGIES, connect
from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.layer_pipe.plans import make_layer_pipe_plan
from planner.baselines.spp.plans import make_attempts
from planner.layout.costs import CostModel
from planner.plan import BaselineResult
from planner.planning import Limits
from planner.problem import Problem
from planner.verify import verify
from profiles.load import demo_names, load_workload

HEADER = (
    "workload", "D", "SPP ms", "its order", "OOO fast-forward ms", "OOO modulo ms", "LayerPipe ms", "even widths ms",
    "concurrency control ms", "joint ms", "joint, split placement ms", "joint / SPP", "joint / best OOO",
    "joint / LayerPipe", "joint / concurrency control", "lower bound ms", "gap", "verified", "certificate", "s",
    "never worse",
)  # fmt: skip

SECONDS = 6.0
APART_SHARE = 0.5
"""Part of a joint plan's seconds that it gets once more with split placement."""
MOST_LAYERS = 100
"""Of generated workloads; the samples are all planned."""
RANDOM = ((24, 8, (0, 1)), (32, 16, (0,)))
"""Layers, devices and seeds of the random chains; twice as many microbatches as devices."""

LAYER_PIPE = {"split_placement": True, "max_stages_per_device": 1024}
"""What LayerPipe is allowed; the joint planner beside it is allowed the first."""

SPP = ("SPP", "SPP (least that fits)", "SPP, recomputing")
OUT_OF_ORDER = ("OOO fast-forward", "OOO modulo", "OOO fast-forward, recomputing", "OOO modulo, recomputing")
CONCURRENCY = ("concurrency control", "concurrency control, recomputing")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One problem, planned jointly and by the four systems."""

    name: str
    problem: Problem
    planned: Planned
    separate: Planned
    """With split placement, from the joint plan on."""
    spp_order: str
    layer_pipe: BaselineResult

    @property
    def by_name(self) -> dict[str, BaselineResult]:
        return {row.name: row for row in (*self.planned.evidence.baselines, self.layer_pipe)}

    def fitting(self, names: Iterable[str]) -> int | None:
        """The least makespan among these baselines, of those that keep to the memory."""
        rows = [self.by_name[name] for name in names if name in self.by_name]
        return min((row.makespan_ns for row in rows if row.fits_memory and row.makespan_ns is not None), default=None)

    @property
    def systems(self) -> dict[str, int | None]:
        """The least makespan of each of the four; None where it does not apply, or nothing of it fits."""
        return {
            "SPP": self.fitting(SPP),
            "out-of-order backprop": self.fitting(OUT_OF_ORDER),
            "LayerPipe": self.fitting(["LayerPipe"]),
            "concurrency control": self.fitting(CONCURRENCY),
        }

    @property
    def is_never_worse(self) -> bool:
        """Against all four; against LayerPipe, the plan that may place W elsewhere (in fewer stages), too."""
        ours, apart = self.planned.evidence.makespan_ns, self.separate.evidence.makespan_ns
        return all(
            theirs is None or (apart if name == "LayerPipe" else ours) <= theirs
            for name, theirs in self.systems.items()
        )


def problems(folders: list[Path], *, quick: bool) -> Iterator[tuple[str, Problem]]:
    """Names and problems: the folders' workloads alone, or ours, chains on random connectivity, and hosts of cores."""
    yield from islice(_workloads(folders), 3 if quick else None)
    if folders:
        return
    number = 0
    for num_layers, num_devices, seeds in RANDOM:
        for topology in TOPOLOGIES:
            for seed in seeds:
                number += 1
                if not quick or number in (1, 7):
                    yield _random((num_layers, num_devices), topology, seed=seed)
    yield from islice(host_problems(), 3, 4 if quick else None) if quick else host_problems()


def _workloads(folders: list[Path]) -> Iterator[tuple[str, Problem]]:
    if not folders:
        for name in demo_names():
            yield name, make_problem(load_workload(f"demo:{name}"))
    for folder in folders or [Path(__file__).parent / "workloads"]:
        for path in sorted(folder.glob("*.json")):
            workload = load_workload(path)
            if folders or len(workload.profile.layers) <= MOST_LAYERS:
                yield path.stem, make_problem(workload)


def _random(size: tuple[int, int], topology: str, *, seed: int) -> tuple[str, Problem]:
    family = Family(
        shape="chain", num_layers=size[0], num_devices=size[1], num_microbatches=2 * size[1], memory="loose",
        links="homogeneous", speeds="equal", seed=seed,
    )  # fmt: skip
    problem = make_problem(make_workload(family))
    cluster = connect(problem.cluster.devices, topology, seed=seed)
    return f"{topology}, {size[0]} layers, seed {seed}", replace(problem, cluster=cluster)


def plan_row(name: str, problem: Problem, *, seconds: float) -> Row:
    """Plan in all ways."""
    planned = plan_and_check(problem, Limits(time_limit_s=seconds, patience_s=seconds))
    limits = Limits(time_limit_s=APART_SHARE * seconds, patience_s=seconds)
    allowed = LAYER_PIPE | {"split_placement": problem.options.split_backward}
    asked = replace(problem, options=replace(problem.options, **allowed))  # type: ignore[arg-type]
    return Row(
        name=name,
        problem=problem,
        planned=planned,
        separate=plan_and_check(asked, limits, start=planned.plan),
        spp_order=_spp_order(problem),
        layer_pipe=_play_layer_pipe(problem),
    )


def _spp_order(problem: Problem) -> str:
    try:
        return min(make_attempts(CostModel(problem)), key=lambda attempt: attempt.makespan_ns).order
    except DoesNotApplyError:
        return "–"


def _play_layer_pipe(problem: Problem) -> BaselineResult:
    """LayerPipe's plan under the barrier; it is allowed split placement and any number of stages per device."""
    options = replace(problem.options, **LAYER_PIPE)  # type: ignore[arg-type]
    asked = replace(problem, options=options)
    try:
        verdict = verify(asked, make_layer_pipe_plan(CostModel(asked)))
    except DoesNotApplyError as reason:
        return BaselineResult(name="LayerPipe", makespan_ns=None, fits_memory=False, note=str(reason))
    assert verdict.timeline is not None
    rules = {violation.rule for violation in verdict.violations}
    assert rules <= {"memory-exceeded"}, rules
    return BaselineResult(name="LayerPipe", makespan_ns=verdict.timeline.makespan_ns, fits_memory=not rules)


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
        *(_shown(row, name) for name in (*OUT_OF_ORDER[:2], "LayerPipe", "even widths", CONCURRENCY[0])),
        ms(ours),
        ms(row.separate.evidence.makespan_ns),
        *(f"{ours / theirs:.3f}" if theirs else "–" for theirs in row.systems.values()),
        ms(evidence.lower_bound_ns),
        percent(row.planned.gap),
        "yes" if row.planned.is_verified and row.separate.is_verified else "NO",
        "derived" if row.planned.is_certified and row.separate.is_certified else "REFUSED",
        f"{row.planned.total_s + row.separate.total_s:.1f}",
        "yes" if row.is_never_worse else "NO",
    ]


def main() -> None:
    """Plan all problems, a row each."""
    parser = make_parser(__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of workload documents")
    parser.add_argument("--time-limit", type=float, default=SECONDS, help="seconds for each joint plan")
    given = parser.parse_args()
    seconds = 2.0 if given.quick else given.time_limit
    table = Table.about("# The four systems", __doc__, header=HEADER, output=given.output)
    rows = []
    for name, problem in problems(given.folders, quick=given.quick):
        rows.append(plan_row(name, problem, seconds=seconds))
        table.add(cells(rows[-1]))
    table.close(*_verdict(rows))


def _verdict(rows: list[Row]) -> Iterator[str]:
    for system in rows[0].systems:
        ratios = [row.planned.evidence.makespan_ns / theirs for row in rows if (theirs := row.systems[system])]
        if ratios:
            strictly, mean = sum(ratio < 1 for ratio in ratios), sum(ratios) / len(ratios)
            yield f"* against {system}: shorter in {strictly} of {len(ratios)} rows, {percent(1 - mean)} on average."
    gains = [1 - row.separate.evidence.makespan_ns / row.planned.evidence.makespan_ns for row in rows]
    yield (
        f"* split placement: shorter in {sum(gain > 0 for gain in gains)} of {len(rows)} rows, "
        f"{percent(sum(gains) / len(gains))} on average, at most {percent(max(gains))}."
    )
    worse = sum(not row.is_never_worse for row in rows)
    yield f"* never worse than any of the four: worse in {worse} of {len(rows)} rows: {_met(worse == 0)}."


def _met(is_met: bool) -> str:
    return "target met" if is_met else "TARGET MISSED"


if __name__ == "__main__":
    main()

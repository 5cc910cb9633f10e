"""SPP beside the methods that its paper compares it with: `python -m benchmarks.seeds_spp [FOLDER ...] [-o TABLE.md]`.

Each method keeps its own idea of where layers go and in which order they run; all are played by the same simulator
under the same barrier. The problems are those of `benchmarks.seeds_joint` but for the hosts of cores, none made for
this table.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median

from benchmarks.report import Table, make_parser, ms, percent
from benchmarks.seeds_joint import problems
from planner.baselines.applicability import DoesNotApplyError, require_choices
from planner.baselines.data_parallel import make_replicated_stage, order_data_parallel
from planner.baselines.gpipe import order_gpipe
from planner.baselines.one_f_one_b import order_one_f_one_b
from planner.baselines.partitions import even_layers, smallest_largest_stage
from planner.baselines.pipeline import Pipeline, Words, make_pipeline, make_plan
from planner.baselines.recomputing import breaks_memory
from planner.baselines.spp.division import CumulativeLoads, divide, make_divided_stages
from planner.baselines.spp.plans import make_attempts
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.simulation.simulate import simulate

HEADER = ("workload", "D", "M", "SPP ms", "data parallel", "GPipe", "PipeDream-style", "HetPipe-style", "best / SPP")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a method takes."""

    makespan_ns: int
    fits_memory: bool

    @property
    def shown(self) -> str:
        """In brackets where it breaks the memory, which SPP and its rivals do not know of."""
        return ms(self.makespan_ns) if self.fits_memory else f"({ms(self.makespan_ns)})"


def spp(costs: CostModel) -> Iterator[Plan]:
    """Every division that it compares, in its three orders."""
    for attempt in make_attempts(costs):
        yield attempt.plan


def data_parallel(costs: CostModel) -> Iterator[Plan]:
    """The whole model on every device."""
    yield _ordered(costs, make_replicated_stage(costs), order_data_parallel)


def gpipe(costs: CostModel) -> Iterator[Plan]:
    """A stage per device, the same number of layers in each, all forwards before all backwards."""
    devices = _names(costs.problem)
    cut = even_layers(costs.problem, len(devices))
    stages = tuple(Stage(layers=layers, replicas=((name,),)) for layers, name in zip(cut, devices, strict=True))
    yield _ordered(costs, stages, order_gpipe)


def pipedream(costs: CostModel) -> Iterator[Plan]:
    """Layers to replicated stages so that the busiest stage or channel has least to do, devices as they come; 1F1B."""
    problem = costs.problem
    loads = CumulativeLoads(costs, _names(problem))
    counts = problem.allowed_replicas
    choices = [list(counts)] if problem.options.uneven_replication else [[count] for count in counts]
    uses_all = not problem.options.idle_devices
    found = [division for each in choices for division in divide(loads, replica_counts=each, uses_all=uses_all)]
    best = min(found, key=lambda division: division.value_ns, default=None)
    if best is not None:
        yield _ordered(costs, make_divided_stages(loads, best), order_one_f_one_b)


def hetpipe(costs: CostModel) -> Iterator[Plan]:
    """Virtual workers of 2, 3, ... devices as they come, a pipeline in each, data parallel between them; every size."""
    devices = _names(costs.problem)
    for size in range(2, len(devices)):
        count = len(devices) // size
        if len(devices) % size or count not in costs.problem.allowed_replicas:
            continue
        workers = [devices[worker * size : (worker + 1) * size] for worker in range(count)]
        stages = tuple(
            Stage(layers=layers, replicas=tuple((worker[place],) for worker in workers))
            for place, layers in enumerate(smallest_largest_stage(costs, workers[0], counts_transfers=True))
        )
        yield _ordered(costs, stages, order_one_f_one_b)


RIVALS: dict[str, Callable[[CostModel], Iterator[Plan]]] = {
    "data parallel": data_parallel,
    "GPipe": gpipe,
    "PipeDream-style": pipedream,
    "HetPipe-style": hetpipe,
}


def _names(problem: Problem) -> tuple[str, ...]:
    return tuple(device.name for device in problem.cluster.devices)


def _ordered(costs: CostModel, stages: tuple[Stage, ...], order: Callable[[Pipeline], Words]) -> Plan:
    require_choices(costs, stages)
    return make_plan(costs, stages, words=order(make_pipeline(costs, stages)))


def shortest(costs: CostModel, method: Callable[[CostModel], Iterator[Plan]]) -> Outcome | None:
    """Of all plans of a method; None where the problem leaves it none."""
    found = list[tuple[int, Plan]]()
    try:
        for plan in method(costs):
            found.append((simulate(costs.problem, plan, costs=costs).makespan_ns, plan))
    except DoesNotApplyError:
        pass
    if not found:
        return None
    makespan, plan = min(found, key=lambda pair: pair[0])
    return Outcome(makespan_ns=makespan, fits_memory=not breaks_memory(costs, plan))


def main() -> None:
    """All problems, a row each."""
    parser = make_parser(__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of workload documents")
    given = parser.parse_args()
    table = Table(preface=_preface(), header=HEADER, output=given.output)
    ratios: dict[str, list[float]] = {name: [] for name in (*RIVALS, "best")}
    for name, problem in problems(given.folders, quick=given.quick):
        if problem.options.max_width > 1:
            continue
        costs = CostModel(problem)
        ours = shortest(costs, spp)
        if ours is None:
            continue
        found = {rival: shortest(costs, method) for rival, method in RIVALS.items()}
        each = {rival: o.makespan_ns / ours.makespan_ns for rival, o in found.items() if o is not None}
        for rival, ratio in (each | ({"best": min(each.values())} if each else {})).items():
            ratios[rival].append(ratio)
        shown = ["–" if outcome is None else outcome.shown for outcome in found.values()]
        best = f"{min(each.values()):.3f}" if each else "–"
        table.add([name, str(len(problem.cluster.devices)), str(problem.num_microbatches), ours.shown, *shown, best])
    table.close(*_verdict(ratios))


def _preface() -> list[str]:
    return [
        "# SPP beside its rivals",
        "",
        "`python -m benchmarks.seeds_spp`: one synchronous iteration in ms, by the same simulator. SPP: the best of",
        "its divisions and orders (planner/baselines/spp). *Data parallel*: the whole model on every device. *GPipe*:",
        "equal numbers of layers, a stage per device. *PipeDream-style*: its aim, the least largest load of a",
        "replicated stage or a channel, on devices as they come, then 1F1B; flushed at the iteration's end, as",
        "PipeDream is not.",
        "*HetPipe-style*: equal virtual workers, a pipeline in each, data parallel between them, the best size;",
        "synchronous, and with one cut for all workers, while HetPipe's are stale and may be cut apart. In brackets:",
        "breaks the memory, of which no method here knows. *best / SPP*: the best rival; below 1 SPP loses.",
        "A dash: the problem does not allow it (replicas of part of a sample, idle devices, too few layers).",
        "",
    ]


def _verdict(ratios: dict[str, list[float]]) -> Iterator[str]:
    for name, values in ratios.items():
        if values:
            against = "the best of the four" if name == "best" else name
            faster = sum(value > 1 for value in values)
            saved = percent(sum(1 - 1 / value for value in values) / len(values))
            yield (
                f"* against {against}: SPP is shorter in {faster} of {len(values)} rows, {saved} of the time saved "
                "on average;"
            )
            yield (
                f"  their time over its: median {median(values):.3f}, geometric mean {geometric_mean(values):.3f}, "
                f"{min(values):.3f} to {max(values):.3f}."
            )


if __name__ == "__main__":
    main()

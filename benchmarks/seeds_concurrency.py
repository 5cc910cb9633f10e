"""Runtime concurrency control: `python -m benchmarks.seeds_concurrency [--quick] [-o PAGE.md]`.

How accurate few samples of thread counts are, the strategies on four graphs, and stages of this host with uneven widths
against the even split.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

from benchmarks.concurrency.plan_cores import plan_cores
from benchmarks.concurrency.strategies import (
    Operation,
    Placed,
    best_widths,
    makespan_ns,
    run_one_by_one,
    run_side_by_side,
    uniform_widths,
    widths_by_kind,
)
from benchmarks.concurrency.thread_counts import mean_error, regret, sample_threads
from benchmarks.cores_run import Host, StageWork, has_siblings, usable_cores
from benchmarks.operation_graphs import GRAPHS, time_ns, training_graph
from benchmarks.report import Table, line, make_parser, ms, percent
from benchmarks.statistics_of import interval, paired

MODELLED_CORES, SIBLING_PERCENT = 16, 160
"""The modelled host: cores, and the time on the sibling of a busy core in percent of that on a core."""
STAGES = (
    StageWork(size=768, repeats=9),
    StageWork(size=384, repeats=72),
    StageWork(size=640, repeats=15),
    StageWork(size=512, repeats=30),
)
"""Stages of one host with as much work each, in products of different size; they may run side by side."""


def work_shares(works: Sequence[StageWork]) -> list[float]:
    """Which part of all multiplications each stage has."""
    each = [work.repeats * work.size**3 for work in works]
    return [one / sum(each) for one in each]


def accuracy_rows(host: Host, *, quick: bool) -> Iterator[list[str]]:
    """Measured operations on this machine, then modelled ones on 16 cores."""
    most = len(usable_cores())
    for stage in range(1 if quick else len(STAGES)):
        truth = cache(partial(host.measure_ns, stage, repeats=3 if quick else 9))
        name = f"measured: product of {STAGES[stage].size} x {STAGES[stage].size}"
        for step in range(1, most):
            yield _accuracy_cells(name, truth, step=step, most=most)
    for kind, macs in (("conv", 40_000_000), ("pointwise", 8_000_000), ("cell", 1_000_000)):
        model = partial(_modelled_ns, kind, macs)
        for step in (1, 2, 3, 5, 7):
            yield _accuracy_cells(f"modelled: {kind}, {macs / 1e6:g} M", model, step=step, most=MODELLED_CORES)


def _modelled_ns(kind: str, macs: int, width: int) -> int:  # positional, as the sampler calls it
    return time_ns(kind, macs, width=width)


def _accuracy_cells(name: str, truth: Callable[[int], int], *, step: int, most: int) -> list[str]:
    curve = sample_threads(truth, step=step, most=most)
    return [
        name,
        str(step),
        str(len(curve.samples)),
        str(curve.best_threads),
        percent(mean_error(curve, truth, most=most)),
        percent(regret(curve, truth, most=most)),
    ]


def ablation_rows(*, seconds: float) -> Iterator[list[str]]:
    """Every strategy on every graph, relative to all cores for everything."""
    for name, make in GRAPHS.items():
        operations = training_graph(make(), cores=MODELLED_CORES)
        best, by_kind = best_widths(operations), widths_by_kind(operations)
        default = makespan_ns(run_one_by_one(operations, uniform_widths(operations, MODELLED_CORES)))
        beside = partial(run_side_by_side, operations, cores=MODELLED_CORES)
        found = [
            makespan_ns(run_one_by_one(operations, best)),
            makespan_ns(run_one_by_one(operations, by_kind)),
            makespan_ns(beside(best)),
            makespan_ns(beside(by_kind)),
            makespan_ns(beside(best, sibling_percent=SIBLING_PERCENT)),
            makespan_ns(beside(by_kind, sibling_percent=SIBLING_PERCENT)),
        ]
        plan = plan_cores(operations, cores=MODELLED_CORES, time_limit_s=seconds)
        ratios = [f"{default / each:.2f}" for each in (*found, plan.makespan_ns)]
        yield [name, str(len(operations)), ms(default), *ratios, plan.source, f"{default / plan.solver_bound_ns:.2f}"]


def even_split(operations: list[Operation], cores: int) -> list[Placed]:
    """Every stage on an equal part of the cores, as many side by side as there are cores."""
    width = max(1, cores // len(operations))
    return run_side_by_side(operations, [width] * len(operations), cores=cores, may_outlast=True)


def real_page(host: Host, *, rounds: int) -> Iterator[str]:
    """The even split against the planned widths, in turn, on the cores of this machine."""
    cores = len(usable_cores())
    operations = [
        Operation(
            name=f"product of {work.size}",
            kind="product",
            times_ns={width: host.measure_ns(number, width) for width in _widths(cores)},
        )
        for number, work in enumerate(STAGES)
    ]
    plan, even = plan_cores(operations, cores=cores, time_limit_s=10), even_split(operations, cores)
    schedules = {"even split": even, "planned widths": list(plan.placed)}
    seconds: dict[str, list[float]] = {name: [] for name in schedules}
    for number in range(rounds + 1):
        for name, placed in schedules.items():
            taken = host.run_schedule(operations, placed)
            if number:
                seconds[name].append(taken)
    for name, placed in schedules.items():
        mean, half = interval(seconds[name])
        widths = " ".join(str(each.width) for each in sorted(placed, key=lambda each: each.operation))
        expected = ms(makespan_ns(placed))
        yield f"* {name}: widths {widths}, computed {expected} ms, measured {1000 * mean:.1f} ± {1000 * half:.1f} ms"
    mean, half = paired(seconds["even split"], seconds["planned widths"])
    verdict = "slower: TARGET MISSED" if mean + half < 0 else "faster" if mean - half > 0 else "not slower, not faster"
    yield f"* planned against even, pair by pair ({rounds} pairs): {percent(mean)} ± {percent(half)} saved: {verdict}"


def _widths(cores: int) -> list[int]:
    return [width for width in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if width <= cores]


def main() -> None:
    """Write the page."""
    given = make_parser(__doc__).parse_args()
    table = Table(
        preface=[
            "# Runtime concurrency control",
            "",
            "`python -m benchmarks.seeds_concurrency`. Samples at 1, 1 + x, 1 + 2x ... threads while it gets faster:",
            "*error*: mean of |interpolated - true| / true; *regret*: how much slower the preferred number is than the",
            f"best. This machine has {len(usable_cores())} usable cores; rows for 16 cores are modelled, not measured.",
            "",
        ],
        header=("operation", "x", "samples", "preferred threads", "error", "regret"),
        output=given.output,
    )
    with Host(works=STAGES) as host:
        for cells in accuracy_rows(host, quick=given.quick):
            table.add(cells)
        header = (
            "graph", "operations", "all cores ms", "(1)", "(1, 2)", "(1, 3)", "(1, 2, 3)", "(1, 3, 4)",
            "(1, 2, 3, 4)", "planned", "by", "at most",
        )  # fmt: skip
        siblings = "shows some" if has_siblings() else "has none"
        table.close(
            f"Training graphs on {MODELLED_CORES} cores, times modelled; speed-up over all cores for every operation.",
            f"Strategy 4, SMT siblings (this machine {siblings}), is modelled: a small operation on the sibling of a",
            f"busy core takes {SIBLING_PERCENT} % of its time on a core and slows nobody down, which flatters it.",
            "*Planned*: CP-SAT chooses widths and times together, without siblings.",
            "",
            line(header),
            "|" + " --- |" * len(header),
            *(line(cells) for cells in ablation_rows(seconds=3.0 if given.quick else 20.0)),
            "",
            "Four stages of this host, each a process of its own with threads and affinity set for every run; their",
            f"parts of the work: {', '.join(f'{100 * share:.0f} %' for share in work_shares(STAGES))}.",
            "",
            *real_page(host, rounds=6 if given.quick else 16),
        )


if __name__ == "__main__":
    main()

"""Layouts by hand and by `--target megatron`: `python -m benchmarks.layouts [--quick] -o FILE`.

Problems of `benchmarks/hand_layouts`, on so many of their devices, planned with `--target megatron --no-replication`:
stages in a loop, interleaved 1F1B, whole backward passes; the number of chunks and the cuts are decided. Layouts are
those of public recipes for the model; each is played by the same rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import median

from api.inputs import make_problem
from benchmarks.report import Planned, Table, make_parser, ms, percent, plan_and_check
from planner.baselines.partitions import cut_at
from planner.export.looped_pipelines import as_looped
from planner.export.model_parts import letter_of
from planner.export.targets import TARGETS, restrict, with_chunks
from planner.plan import Plan, Stage
from planner.planning import Limits
from planner.problem import Problem
from planner.simulation.simulate import simulate
from profiles.cluster import Cluster
from profiles.configurations.megatron_layout import written_out
from profiles.load import load_workload

FOLDER = Path(__file__).parent / "hand_layouts"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A problem, and the layout that somebody published for it."""

    problem: str
    """Name of its file."""
    ranks: int
    """Devices of the pipeline."""
    layout: str
    """As Megatron-LM reads it."""
    source: str
    """Who published it."""
    microbatches: int | None = None
    """Of an iteration; None: as many as the problem's file says."""

    @property
    def key(self) -> tuple[str, int, int | None]:
        """Recipes with the same one are layouts of one problem."""
        return self.problem, self.ranks, self.microbatches


LLAMA, DEEPSEEK, KIMI, QWEN = "llama3-70b", "deepseek-v3", "kimi-k2", "qwen3-next"

BRIDGE, GUIDE = "Megatron-Bridge", "Megatron-LM's guide"

RECIPES = (
    Recipe(problem=LLAMA, ranks=8, layout="Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", source=BRIDGE),
    Recipe(problem=DEEPSEEK, ranks=8, layout="Et|(tt|)*30mL", source="Megatron-MoE-ModelZoo"),
    Recipe(problem=DEEPSEEK, ranks=8, layout="Et*4|(t*4|)*14tmL", source=BRIDGE),
    Recipe(problem=DEEPSEEK, ranks=8, layout="Et*8|(t*8|)*6t*5mL", source=BRIDGE),
    Recipe(problem=DEEPSEEK, ranks=8, layout="Et*3|(tt|)*29m|L", source=f"{BRIDGE}, mtp_standalone"),
    Recipe(problem=DEEPSEEK, ranks=8, layout="Et*2|(tt|)*22t|(tt|)*7mL", source="Megatron-MoE-ModelZoo, FP8"),
    Recipe(problem=DEEPSEEK, ranks=4, layout="Et*4|(t*4|)*14tmL", source=BRIDGE),
    Recipe(problem=DEEPSEEK, ranks=4, layout="Et*8|(t*8|)*6t*5mL", source=BRIDGE),
    Recipe(problem=DEEPSEEK, ranks=4, layout="Et*16|(t*16|)*2t*13mL", source=BRIDGE),
    Recipe(problem=DEEPSEEK, ranks=16, layout="Et*3|(tt|)*29,m|L", source=GUIDE),
    Recipe(problem=DEEPSEEK, ranks=16, layout="Et*4|(t*4|)*14tmL", source=BRIDGE),
    Recipe(problem=KIMI, ranks=2, layout="Et*4|(t*4|)*14tL", source=BRIDGE, microbatches=16),
    Recipe(problem=KIMI, ranks=4, layout="Et*4|(t*4|)*14tL", source=BRIDGE),
    Recipe(problem=KIMI, ranks=4, layout="Et*8|(t*8|)*6t*5L", source=BRIDGE),
    Recipe(problem=KIMI, ranks=4, layout="Et*16|(t*16|)*2t*13L", source=BRIDGE),
    Recipe(problem=KIMI, ranks=8, layout="Et*4|(t*4|)*14tL", source=BRIDGE),
    Recipe(problem=KIMI, ranks=8, layout="Et*8|(t*8|)*6t*5L", source=BRIDGE),
    Recipe(problem=KIMI, ranks=16, layout="Et|(tt|)*30L", source=f"{BRIDGE}, H100", microbatches=128),
    Recipe(problem=KIMI, ranks=16, layout="Et*4|(t*4|)*14tL", source=BRIDGE, microbatches=128),
    Recipe(problem=QWEN, ranks=2, layout="Et*4|(t*7|)*5t*8|tmL", source=BRIDGE),
)

TARGET_GAP, TARGET_RATIO = 0.05, 0.985
"""Largest gap, and the median of ours over the hand layout's time."""

BAR = "\\|"
"""Within a table."""

HEADER = (
    "problem", "ranks", "layout by hand", "of", "chunks", "by hand ms", "our chunks", "ours ms", "ratio", "bound ms",
    "gap", "verified", "certified",
)  # fmt: skip


def read_problem(name: str, *, ranks: int, microbatches: int | None = None) -> Problem:
    """The problem as `--target megatron --no-replication` sees it, on so many of its devices."""
    workload = load_workload(FOLDER / f"{name}.json")
    target, problem = TARGETS["megatron"], make_problem(workload)
    options = replace(restrict(with_chunks(problem.options, target), target), max_replicas=1)
    count = microbatches or problem.num_microbatches
    return replace(problem, cluster=_with_ranks(problem.cluster, ranks), num_microbatches=count, options=options)


def _with_ranks(cluster: Cluster, count: int) -> Cluster:
    """As many devices, all like the first, and all linked as the first two are."""
    devices = tuple(replace(cluster.devices[0], name=f"g{number}") for number in range(count))
    pairs = combinations([device.name for device in devices], 2)
    return replace(cluster, devices=devices, links=tuple(replace(cluster.links[0], a=a, b=b) for a, b in pairs))


def cut_of(sizes: Sequence[int], names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Layer names per stage; raises ValueError if the sizes are not those of all layers."""
    if sum(sizes) != len(names):
        raise ValueError(f"the plan divides {sum(sizes)} layers, but the model has {len(names)}; give its model")
    return cut_at(names, [sum(sizes[:number]) for number in range(len(sizes) + 1)])


def import_partition(layout: str, layers: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The layers of every stage of Megatron's layout; those before the first block go with E, the last with L."""
    counts = {letter: sum(letter_of(name) == letter for name in layers) for letter in "EL"}
    sizes = [
        sum(stage.count(letter) for letter in "tm")
        + (counts["E"] if "E" in stage else 0)
        + (counts["L"] if "L" in stage else 0)
        for stage in written_out(layout)
    ]
    return cut_of(sizes, layers)


def hand_plan(problem: Problem, layout: str) -> Plan:
    """The plan of a layout, on the devices as listed."""
    cut = import_partition(layout, problem.profile.topological_order)
    devices = [device.name for device in problem.cluster.devices]
    stages = tuple(
        Stage(layers=layers, replicas=((devices[number % len(devices)],),)) for number, layers in enumerate(cut)
    )
    return as_looped(problem, Plan(problem=problem.reference(), stages=stages, schedule={}))


def main() -> None:
    """Print the table, and write it to `-o`."""
    given = make_parser(__doc__).parse_args()
    table = Table.about("# Layouts written by hand", __doc__, header=HEADER, output=given.output)
    ratios, found = list[float](), dict[tuple[str, int, int | None], Planned]()
    for recipe in RECIPES:
        problem = read_problem(recipe.problem, ranks=recipe.ranks, microbatches=recipe.microbatches)
        if recipe.key not in found:
            limits = Limits(time_limit_s=20 if given.quick else 60)
            found[recipe.key] = plan_and_check(problem, limits, target=TARGETS["megatron"])
        ours = found[recipe.key]
        by_hand = hand_plan(problem, recipe.layout)
        hand_ns = simulate(problem, by_hand).makespan_ns
        ratios.append(ours.evidence.makespan_ns / hand_ns)
        chunks = [len(plan.stages) // recipe.ranks for plan in (by_hand, ours.plan)]
        table.add(
            [
                recipe.problem, str(recipe.ranks), f"`{recipe.layout.replace('|', BAR)}`", recipe.source,
                str(chunks[0]), ms(hand_ns), str(chunks[1]), ms(ours.evidence.makespan_ns), f"{ratios[-1]:.4f}",
                ms(ours.evidence.lower_bound_ns), percent(ours.evidence.gap),
                "yes" if ours.is_verified else "NO", "yes" if ours.is_certified else "NO",
            ]
        )  # fmt: skip
    gaps = [ours.evidence.gap for ours in found.values()]
    table.close(
        f"Never above the hand layout: {'met' if max(ratios) <= 1 else 'missed'}. Median ratio {median(ratios):.4f}: "
        f"{'met' if median(ratios) <= TARGET_RATIO else 'missed'}. Gap at most 5 %: "
        f"{sum(gap <= TARGET_GAP for gap in gaps)} of {len(gaps)} problems."
    )


if __name__ == "__main__":
    main()

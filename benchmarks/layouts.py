"""Layouts by hand and by `--target megatron`: `python -m benchmarks.layouts [--quick] -o FILE`."""

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, cast

from benchmarks.report import Table, make_parser, ms, percent
from planner.certificate import check_certificate
from planner.export.looped_pipelines import as_looped
from planner.export.megatron import import_partition, make_megatron_job
from planner.export.targets import TARGETS, restrict, with_chunks
from planner.plan import Plan, Stage
from planner.planning import Limits, make_plan
from planner.problem import Options, Problem
from planner.simulate import simulate
from planner.verify import verify
from profiles.load import load_workload

FOLDER = Path(__file__).parent / "hand_layouts"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A problem and the layout of its public recipe."""

    name: str
    """Of the file."""
    layout: str
    """As Megatron-LM reads it."""


RECIPES = (
    Recipe(name="llama3-70b-pp8-vp5", layout="Et*2|(t*2|)*34,t*3|(t*2|)*3,tL"),
    Recipe(name="deepseek-v3-pp8-vp4", layout="Et|(tt|)*30mL"),
)

TARGET_GAP, TARGET_RATIO = 0.05, 0.985
"""Largest gap, and the median of ours over the hand layout's time."""


def read_problem(name: str) -> Problem:
    """The problem as `--target megatron --no-replication` sees it."""
    workload = load_workload(FOLDER / f"{name}.json")
    assert workload.cluster is not None
    assert workload.num_microbatches is not None
    target = TARGETS["megatron"]
    given = Options(**cast("dict[str, Any]", workload.options))
    options = replace(restrict(with_chunks(given, target), target), max_replicas=1)
    return Problem(
        profile=workload.profile,
        cluster=workload.cluster,
        num_microbatches=workload.num_microbatches,
        options=options,
    )


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
    preface = (
        "# Layouts written by hand",
        "",
        "Problems of `benchmarks/hand_layouts`, planned with `--target megatron --no-replication`: stages in a loop, "
        "interleaved 1F1B, whole backward passes; the number of chunks and the cuts are decided.",
        "",
    )
    header = ("problem", "by hand ms", "ours ms", "ratio", "chunks", "bound ms", "gap", "verified", "certified")
    table = Table(preface=preface, header=header, output=given.output)
    ratios, gaps, strings = list[float](), list[float](), list[str]()
    for recipe in RECIPES:
        problem, target = read_problem(recipe.name), TARGETS["megatron"]
        hand_ns = simulate(problem, hand_plan(problem, recipe.layout)).makespan_ns
        limits = Limits(time_limit_s=20 if given.quick else 60)
        plan = make_plan(problem, limits=limits, target=target)
        evidence = plan.evidence
        assert evidence is not None
        ratios.append(evidence.makespan_ns / hand_ns)
        gaps.append(evidence.gap)
        chunks = len(plan.stages) // len(problem.cluster.devices)
        is_certified = check_certificate(problem, evidence.certificate) == evidence.lower_bound_ns
        table.add(
            [
                recipe.name, ms(hand_ns), ms(evidence.makespan_ns), f"{ratios[-1]:.4f}", str(chunks),
                ms(evidence.lower_bound_ns), percent(evidence.gap),
                "yes" if verify(problem, plan).passed else "NO", "yes" if is_certified else "NO",
            ]
        )  # fmt: skip
        flags = {words[0]: words[1] for words in make_megatron_job(problem, plan).arguments}
        layout = flags["--pipeline-model-parallel-layout"]
        strings += [f"{recipe.name}:", "", "```", f"--pipeline-model-parallel-layout '{layout}'", "```", ""]
    table.close(
        f"Never above the hand layout: {'met' if max(ratios) <= 1 else 'missed'}. Median ratio {median(ratios):.4f}: "
        f"{'met' if median(ratios) <= TARGET_RATIO else 'missed'}. Gap at most 5 %: "
        f"{sum(gap <= TARGET_GAP for gap in gaps)} of {len(gaps)}.",
        "",
        *strings,
    )


if __name__ == "__main__":
    main()

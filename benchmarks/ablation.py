"""What each part of the search is worth: workloads planned with and without it, with paired seeds.

    python -m benchmarks.ablation --records FILE [--folders FOLDER ...] [-o TABLE.md]

*Gain*: by how much plans take longer without it; the interval is of a bootstrap over workloads. A part stays if that is
above 0, if it brings 1 % on the median of the seeds on three of them, or if without it a bound or a proof is lost.

A part is left out only where it had a turn in the whole search: elsewhere it makes no difference. What is in the file
of records already is not run again, so an ablation of hours can be stopped at any time. With `--table` nothing is run.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean, median

from api.inputs import make_question, read_workload
from benchmarks.generate import make_workload, parse_family
from benchmarks.records import Records
from benchmarks.report import Table, percent
from benchmarks.tessel_shapes import SHAPES
from benchmarks.tessel_shapes import make_problem as make_shape
from planner.batch_problem import Question
from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.planning import Limits, SearchParams, make_plan
from planner.planning.planning_params import PARTS
from profiles.load import demo_names

HEADER = ("part", "workloads", "mean gain", "95 % interval", "median of seeds 1 %", "bound or proof lost", "verdict")

COMMITTED = Path(__file__).parent / "workloads"

GENERATED: Mapping[str, Mapping[str, object]] = {
    "chain-12x4-m8-tight-random-different": {},
    "chain-24x4-m16-scarce-homogeneous-equal": {},
    "chain-20x5-m10-scarce-two-level-equal": {"max_replicas": 1},
    "chain-24x6-m8-tight-two-level-classes": {"max_stages_per_device": 1},
    "chain-24x8-m16-mid-sparse-four": {},
    "dag-40x4-m8-scarce-two-level-different": {},
    "chain-64x64-m64-loose-sparse-four": {},
    "chain-8x4-m4-mid-random-different": {"split_placement": True},
    "chain-12x4-m8-tight-homogeneous-equal": {"recompute": True, "recompute_layers": True},
    "chain-12x4-m8-loose-homogeneous-classes": {"unequal_shares": True},
    "chain-7x3-m4-mid-homogeneous-different": {},
}
"""Families of `benchmarks.generate`, with options: what demos and committed workloads leave closed is open here."""

DRAWS, WORTH, WORKLOADS_WORTH, BOUND_WORTH = 2_000, 0.01, 3, 0.001
"""Of the bootstrap; a part stays for such a median gain on so many workloads, or for a bound so much larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A workload planned once."""

    workload: str
    seed: int
    part: str
    """That was left out; empty: none was."""
    objective: float | None
    """Of the plan, in nanoseconds or money; None: none was found."""
    bound: float
    is_proved: bool
    """Whether nothing is better, by the certificate or by a complete search."""
    parts: list[str]
    """That had a turn."""


def questions(folders: Iterable[Path]) -> Iterator[tuple[str, Question]]:
    """Demos, committed workloads, those of folders, and generated ones."""
    files = [path for folder in (COMMITTED, *folders) for path in sorted(folder.glob("*.json"))]
    for source in (*(f"demo:{name}" for name in demo_names()), *map(str, files)):
        yield source if source.startswith("demo:") else Path(source).stem, make_question(read_workload(source))
    for family, options in GENERATED.items():
        question = make_question(make_workload(parse_family(family)))
        yield " ".join([family, *options]), replace(question, options=replace(question.options, **options))
    for shape in SHAPES:
        if not shape.overlaps:
            yield f"Tessel's {shape.name}", make_shape(shape, 8)


def plan_once(name: str, question: Question, *, part: str, limits: Limits) -> Record:
    """A plan of the search without a part, or of the whole search."""
    params = SearchParams(without=(part,) if part else ())
    whose = {"workload": name, "seed": limits.seed, "part": part}
    try:
        evidence = make_plan(question, limits=limits, params=params).evidence
    except (InfeasibleProblemError, NoPlanFoundError):
        return Record(**whose, objective=None, bound=0.0, is_proved=False, parts=[])
    assert evidence is not None
    objective, bound = evidence.makespan_ns, evidence.lower_bound_ns
    if evidence.rental is not None:
        objective, bound = evidence.rental.cost, evidence.rental.lower_bound
    elif question.options.objective == "span":
        objective = evidence.span_ns
    parts = [tally.name for tally in evidence.improvers if tally.turns and tally.name in PARTS]
    is_proved = evidence.solution_status == "optimal"
    return Record(**whose, objective=objective, bound=bound, is_proved=is_proved, parts=parts)


def by_key(records: Iterable[Record]) -> dict[tuple[str, str, int], Record]:
    """Records by workload, part and seed."""
    return {(each.workload, each.part, each.seed): each for each in records}


def measure(path: Path, folders: Sequence[Path], *, given: argparse.Namespace) -> None:
    """Plan what is not in the file yet, seed by seed, each time the whole search first."""
    records = Records(path, Record)
    known = by_key(records)
    for seed in range(given.seeds):
        limits = Limits(time_limit_s=given.time_limit, seed=seed, threads=given.threads)
        for name, question in questions(folders):
            if given.workloads and name not in given.workloads:
                continue
            for part in ("", *PARTS):
                whole = known.get((name, "", seed))
                if (name, part, seed) in known or (part and whole and part not in whole.parts):
                    continue
                known[name, part, seed] = plan_once(name, question, part=part, limits=limits)
                records.add(known[name, part, seed])


def gain(whole: Record, without: Record) -> float:
    """By how much the plan is worse without the part; a plan that only one of the two finds is worth all."""
    if whole.objective is None or without.objective is None:
        return float(without.objective is None) - float(whole.objective is None)
    return without.objective / whole.objective - 1


def interval(gains: Sequence[float]) -> tuple[float, float]:
    """95 % of the means of workloads drawn with replacement; `gains`: the mean over the seeds of each."""
    rng = Random(0)
    means = sorted(fmean(rng.choices(gains, k=len(gains))) for _ in range(DRAWS))
    return means[DRAWS // 40], means[-DRAWS // 40 - 1]


def has_lost(pairs: Sequence[tuple[Record, Record]]) -> bool:
    """Whether a workload's bound is lower, or its proof missing, without the part, on the median of the seeds."""
    bounds = [1 - without.bound / whole.bound for whole, without in pairs if whole.bound]
    proofs = [whole.is_proved - without.is_proved for whole, without in pairs]
    return (bool(bounds) and median(bounds) >= BOUND_WORTH) or median(proofs) > 0


def row_of(part: str, pairs: Sequence[tuple[Record, Record]]) -> list[str]:
    """What the part is worth, and whether it stays."""
    by_workload = defaultdict[str, list[tuple[Record, Record]]](list)
    for whole, without in pairs:
        by_workload[whole.workload].append((whole, without))
    gains = {name: [gain(*pair) for pair in found] for name, found in by_workload.items()}
    low, high = interval([fmean(each) for each in gains.values()])
    worth = sum(median(each) >= WORTH for each in gains.values())
    lost = sum(map(has_lost, by_workload.values()))
    stays = low > 0 or worth >= WORKLOADS_WORTH or lost
    verdict = "stays" if stays else "undecided: give it 60 s" if high >= WORTH else "goes"
    shown = [percent(fmean(map(fmean, gains.values()))), f"{percent(low)} to {percent(high)}"]
    return [part, str(len(gains)), *shown, str(worth), str(lost), verdict]


def rows_of(known: Mapping[tuple[str, str, int], Record]) -> Iterator[list[str]]:
    """Every part that had a turn somewhere."""
    for part in PARTS:
        own = (each for each in known.values() if each.part == part)
        pairs = [(known[each.workload, "", each.seed], each) for each in own]
        if pairs:
            yield row_of(part, pairs)


def main() -> None:
    """Plan what is missing, then print the table, and write it where `-o` says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", help="names; default: all")
    parser.add_argument("--records", type=Path, default=Path("out/ablation.jsonl"), help="plans made so far")
    parser.add_argument("--folders", type=Path, nargs="*", default=[], help="folders of further workloads")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="plan nothing")
    parser.add_argument("-o", "--output", type=Path, help="also write the table here")
    given = parser.parse_args()
    if not given.table:
        measure(given.records, given.folders, given=given)
    known = by_key(Records(given.records, Record))
    table = Table.about("# What each part of the search is worth", __doc__, header=HEADER, output=given.output)
    for row in rows_of(known):
        table.add(row)
    table.close()


if __name__ == "__main__":
    main()

"""What parameters of the joint search are worth: each halved and doubled, the others as they are by default.

The joint search alone, from the same first candidates and seeds, for the same number of rounds on one thread: processor
seconds depend on the machine, objectives do not. A change below the spread of the seeds says nothing.

    python -m benchmarks.search_params [WORKLOAD ...] [-o docs/benchmarks/search_params.md]
"""

import argparse
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev

from api.inputs import make_problem, read_workload
from benchmarks.report import Table
from planner.costs import CostModel
from planner.lowering import make_instance
from planner.planning import SearchParams
from planner.planning.named_params import describe_params, params_with
from solver_models.construction import make_seeds
from solver_models.instance import Instance
from solver_models.multistart import JointSearch
from solver_models.search import Candidate, Searcher
from solver_models.task_window import TaskWindow

HEADER = ("parameter", "value", "default", "objective %", "processor time")

WORKLOADS = ("demo:gnmt8-four-gpus", "demo:bert24-six-accelerators")

GROUPS = ("multistart", "anneal", "polish")
"""What the joint search reads; the others are read elsewhere."""

SHORTER = 10
"""Tasks are so many times as short as usual, so that a table with many of them is made in minutes."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Searches with the same parameters, problem by problem and seed by seed."""

    objectives: Sequence[int]
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class Start:
    """A problem as the search sees it, and what every search of it begins with."""

    instance: Instance
    seeds: Sequence[Candidate]


def make_start(source: str) -> Start:
    """A workload with its first candidates."""
    problem = make_problem(read_workload(source))
    instance = make_instance(problem, CostModel(problem))
    return Start(instance=instance, seeds=make_seeds(Searcher(instance)))


def search(starts: Sequence[Start], params: SearchParams, *, rounds: int, num_seeds: int) -> Outcome:
    """The best objectives after so many rounds, with every seed."""
    found, begin = list[int](), time.process_time()
    for start in starts:
        for seed in range(num_seeds):
            window = TaskWindow(1, params=params.task_window)
            joint = JointSearch(start.instance, seed=seed, window=window, params=params)
            joint.iterations = max(2, joint.iterations // SHORTER)
            joint.add(start.seeds)
            for _ in range(rounds):
                joint.run_round()
            window.drain()
            window.close()
            assert joint.best is not None
            found.append(joint.best.objective)
    return Outcome(objectives=found, cpu_s=time.process_time() - begin)


def changes() -> Iterator[tuple[str, object, object]]:
    """Every number and list of numbers of these groups with half and twice of it, as far as that is another value."""
    for param in describe_params():
        if param.name.partition(".")[0] in GROUPS:
            for factor in (0.5, 2.0):
                value = scaled(param.default, factor)
                if value != param.default and is_allowed({param.name: value}):
                    yield param.name, value, param.default


def scaled(value: object, factor: float) -> object:
    """A number, or all numbers of a list, times the factor; whole numbers stay whole, and at least 1."""
    if isinstance(value, list):
        return [scaled(each, factor) for each in value]
    assert isinstance(value, int | float)
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


def is_allowed(changed: Mapping[str, object]) -> bool:
    """Whether the parameters take these values."""
    try:
        params_with(changed)
    except ValueError:
        return False
    return True


def ratios(outcome: Outcome, usual: Outcome) -> list[float]:
    """How many times as long as usual the plans take, problem by problem and seed by seed."""
    return [found / other for found, other in zip(outcome.objectives, usual.objectives, strict=True)]


def rows_of(starts: Sequence[Start], *, rounds: int, num_seeds: int) -> Iterator[list[str]]:
    """The default, with the spread of its seeds, and then every change."""
    search(starts, SearchParams(), rounds=1, num_seeds=1)  # kernels are loaded before anything is timed
    usual = search(starts, SearchParams(), rounds=rounds, num_seeds=num_seeds)
    yield ["(all as they are)", "", "", f"± {spread(usual, num_seeds):.2f}", f"{usual.cpu_s:.0f} s"]
    for name, value, default in changes():
        outcome = search(starts, params_with({name: value}), rounds=rounds, num_seeds=num_seeds)
        mean = math.exp(fmean(map(math.log, ratios(outcome, usual)))) - 1
        cost = outcome.cpu_s / usual.cpu_s
        yield [f"`{name}`", f"{value}", f"{default}", f"{100 * mean:+.2f}", f"{cost:.2f}"]


def spread(outcome: Outcome, num_seeds: int) -> float:
    """The standard deviation of the mean over the seeds, in percent, were the problems equally uncertain."""
    found = outcome.objectives
    groups = [found[first : first + num_seeds] for first in range(0, len(found), num_seeds)]
    variance = fmean((pstdev(group) / fmean(group)) ** 2 for group in groups)
    return 100 * math.sqrt(variance / len(found))


def main() -> None:
    """Write the table to standard output, and to `-o`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, help="workload documents or demo:NAME")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of the joint search")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of every search")
    parser.add_argument("-o", "--output", type=Path, help="also write the table here")
    given = parser.parse_args()
    preface = (
        "# Parameters of the joint search",
        "",
        f"Each parameter halved and doubled: {given.rounds} rounds of the joint search alone, tasks {SHORTER} times as",
        f"short as usual, seeds 0 to {given.seeds - 1}, on {', '.join(given.workloads)}.",
        "",
        "*Objective*: by how much plans take longer (+) or less long (-) than with the default, geometric mean; in the",
        "first row the standard error of such a mean. *Processor time*: as many times as with the default.",
        "",
    )
    table = Table(preface=preface, header=HEADER, output=given.output)
    starts = [make_start(source) for source in given.workloads]
    for row in rows_of(starts, rounds=given.rounds, num_seeds=given.seeds):
        table.add(row)
    table.close("A change within about twice the standard error says nothing.")


if __name__ == "__main__":
    main()

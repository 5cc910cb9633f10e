"""How fast the core plays: `python -m benchmarks.plays [SECONDS] [-o FILE]`, processor seconds of one core.

Three committed workloads, cut into one stage of equally many layers per device. `policies`: steps of the joint search,
each a candidate that is added up and list-scheduled; `orders`: steps of polishing, each a given order that is played;
`moves`: steps of the critical-path search, which plays an order and judges moves; `actions`: actions per second of
`simulate`, which makes a timeline. The best of five slices, so that other work on the machine counts little; everything
is compiled before a clock starts.

`--before FOLDER`: how many times as much as a checkout of an older commit there, whose own benchmark is run in turns
with this one; the section of the page is written after the page.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from api.inputs import make_problem
from benchmarks.report import Table
from planner.layout.costs import CostModel
from planner.lowering import make_instance, make_plan_from_orders, make_stages
from planner.problem import Problem
from planner.simulation.simulate import simulate
from profiles.load import load_workload
from solver_models.local_search.critical_path_search import TabuSearch, improve, polish
from solver_models.local_search.search import Candidate, Searcher, encode
from solver_models.moves.annealing import Cooling, longest_order

WORKLOADS = ("chain-24x4-m16-tight-homogeneous-equal", "chain-96x16-m32-loose-random-different",
             "dag-200x8-m16-tight-two-level-classes")  # fmt: skip
FOLDER = Path(__file__).parent / "workloads"
SLICES, FIRST_STEPS = 5, 512
SAMPLES, PATIENCE = 60, 300
HEADER = ("workload", "actions", "policies/s", "orders/s", "moves/s", "simulated actions/s")


def even_candidate(problem: Problem, searcher: Searcher) -> Candidate:
    """As many layers on every device, in topological order."""
    num_layers, num_devices = len(problem.profile.layers), len(problem.cluster.devices)
    stage_of = np.arange(num_layers) * num_devices // num_layers
    return searcher.rate(stage_of, tuple((device,) for device in range(num_devices)))


def tabu_search(steps: int) -> TabuSearch:
    """One that continues for so many steps."""
    return TabuSearch(steps=steps, samples=SAMPLES, patience=PATIENCE, lower_bound=0, seed=1)


def per_second(run: Callable[[int], object], *, seconds: float) -> float:
    """Steps per second, where `run` makes so many steps."""
    run(1)
    steps, best = FIRST_STEPS, 0.0
    while spent(run, steps) < seconds / SLICES / 2:
        steps *= 2
    for _ in range(SLICES):
        best = max(best, steps / spent(run, steps))
    return best


def spent(run: Callable[[int], object], steps: int) -> float:
    """Processor seconds that so many steps take."""
    begin = time.process_time()
    run(steps)
    return time.process_time() - begin


def measure(name: str, *, seconds: float) -> list[str]:
    """One row."""
    problem = make_problem(load_workload(str(FOLDER / f"{name}.json")))
    costs = CostModel(problem)
    searcher = Searcher(make_instance(problem, costs))
    candidate = even_candidate(problem, searcher)
    net = searcher.net_of(candidate)
    orders, _ = searcher.device_orders(candidate)
    groups, modes = candidate.groups, candidate.modes
    plan = make_plan_from_orders(
        problem, make_stages(problem, candidate.stage_of, groups=groups, modes=modes), device_orders=orders
    )
    count = sum(map(len, plan.schedule.values()))
    words = np.zeros((len(problem.cluster.devices), longest_order(net)), np.int32)
    lengths = np.zeros(len(problem.cluster.devices), np.int64)
    encode(net, orders, device_orders=words, lengths=lengths, first=searcher.first_member)
    stop = np.zeros(1, np.int64)
    runs: tuple[Callable[[int], object], ...] = (
        lambda steps: searcher.anneal(candidate, iterations=steps, temperature=(0.02, 0.001), seed=1),
        lambda steps: polish(
            net, words.copy(), lengths, Cooling(steps=steps, first=0.01, last=0.01, seed=1), False, stop
        ),
        lambda steps: improve(net, words.copy(), lengths, tabu_search(steps), False, stop),
        lambda steps: [simulate(problem, plan, costs=costs) for _ in range(-(-steps // count))],
    )
    return [name, str(count), *(f"{per_second(run, seconds=seconds):,.0f}" for run in runs)]


def rates(folder: Path, *, seconds: float) -> dict[str, list[float]]:
    """What the benchmark of a checkout says, by workload."""
    command = [sys.executable, "-m", "benchmarks.plays", f"{seconds:g}"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    run = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in run.stdout.splitlines()]
    return {row[0]: [float(cell.replace(",", "")) for cell in row[2:]] for row in rows if row[0] in WORKLOADS}


def compare(before: Path, *, seconds: float, turns: int = 3) -> Iterator[list[str]]:
    """Rows of ratios: the best of several turns here over the best there."""
    folders = before.resolve(), Path(__file__).resolve().parents[1]
    found = [[rates(folder, seconds=seconds) for folder in folders] for _ in range(turns)]
    for name in WORKLOADS:
        there, here = ([max(column) for column in zip(*(turn[k][name] for turn in found), strict=True)] for k in (0, 1))
        yield [name, *(f"{new / old:.2f}" for old, new in zip(there, here, strict=True))]


def write_comparison(before: Path, *, seconds: float, output: Path | None) -> None:
    """The section of the page that says how many times as much as before."""
    text = "How many times as many as in an older checkout, three times in turns; the best of each."
    table = Table.about("## Before and after", text, header=(HEADER[0], *HEADER[2:]), output=output)
    for row in compare(before, seconds=seconds):
        table.add(row)
    table.close()


def main() -> None:
    """Write the table to standard output, and to `-o`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=2.0, help="of the five slices together")
    parser.add_argument("-o", "--output", type=Path, help="also write the table here")
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="an older checkout to compare with")
    given = parser.parse_args()
    if given.before is not None:
        write_comparison(given.before, seconds=given.seconds, output=given.output)
        return
    table = Table.about("# Plays per second", __doc__, header=HEADER, output=given.output)
    for name in WORKLOADS:
        table.add(measure(name, seconds=given.seconds))
    table.close()


if __name__ == "__main__":
    main()

"""How far plans of several seeds are apart: `python -m benchmarks.seed_spread FOLDER` (45 minutes on two cores).

The command line, once per seed and workload, in a process of its own. As many run at once as there are cores, with one
thread each: half of what a minute of two threads does, in half the time for all of them.
"""

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import Table, ms, percent
from benchmarks.run import Row, plan_one, sources_of

WITHIN = 0.01
"""The target: all seeds of a workload."""

LAST_COLUMNS = ("spread", "gap", "gap of longest", "certified")


def spread_of(values: Sequence[int]) -> float:
    """How much longer the longest is than the shortest."""
    return (max(values) - min(values)) / min(values)


def evidence_of(row: Row) -> dict[str, Any]:
    """What a row's plan says of itself."""
    assert row.plan is not None, f"{row.name}: {row.message}"
    found = row.plan["evidence"]
    assert isinstance(found, dict)
    return found


def render_seeds(name: str, rows: Sequence[Row]) -> list[str]:
    """The cells of a workload, whose rows are in the order of their seeds."""
    found = [evidence_of(row) for row in rows]
    times = [each["makespan_ns"] for each in found]
    best_bound = max(each["lower_bound_ns"] for each in found)
    return [
        name,
        *(ms(time) for time in times),
        percent(spread_of(times)),
        percent(1 - best_bound / min(times)),
        percent(1 - best_bound / max(times)),
        "yes" if all(row.is_certified for row in rows) else "no",
    ]


def summarise(rows: Sequence[Sequence[Row]]) -> str:
    """How many are within the target, and which are not."""
    spreads = {each[0].name: spread_of([evidence_of(row)["makespan_ns"] for row in each]) for each in rows}
    missed = ", ".join(f"{name} {percent(spread)}" for name, spread in spreads.items() if spread > WITHIN) or "none"
    within = sum(spread <= WITHIN for spread in spreads.values())
    return (
        f"{within} of {len(spreads)} workloads within {percent(WITHIN)}; median {percent(median(spreads.values()))}; "
        f"farther apart: {missed}."
    )


def main() -> None:
    """Plan everything and write the table to standard output, and to `-o` as it grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", help="folders of workload documents (default: our own and the demos)")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per plan")
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0 on")
    parser.add_argument("--quick", action="store_true", help="two seeds, 2 s each, of two workloads")
    parser.add_argument("-o", "--output", type=Path, help="also write the table here")
    given = parser.parse_args()
    seeds, limit = (2, 2.0) if given.quick else (given.seeds, given.time_limit)
    sources = sources_of(given.folders)[: 2 if given.quick else None]
    cores = len(os.sched_getaffinity(0))
    table = Table(
        preface=(
            "# Plans of several seeds",
            "",
            f"`pipeplan plan` of every workload with seeds 0 to {seeds - 1}, {limit:g} s and one thread each, {cores} "
            "at once on as many cores. Spread: how much longer the longest plan is than the shortest. Gaps of the "
            "shortest and the longest plan, to the best certified bound of the row; all certificates derived again.",
            "",
        ),
        header=(
            "workload",
            *(f"seed {seed}, ms" for seed in range(seeds)),
            "spread",
            "gap",
            "gap of longest",
            "certified",
        ),
        output=given.output,
    )
    done = []
    with ThreadPoolExecutor(cores) as pool:
        tasks = [
            pool.submit(plan_one, source, time_limit_s=limit, seed=seed, threads=1)
            for source, seed in product(sources, range(seeds))
        ]
        for number in range(len(sources)):
            done.append([task.result() for task in tasks[number * seeds : (number + 1) * seeds]])
            table.add(render_seeds(done[-1][0].name, done[-1]))
    table.close(summarise(done))


if __name__ == "__main__":
    main()

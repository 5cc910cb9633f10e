"""What ELF decides for its fixed orders, in an environment of its own: reads rows as JSON, prints their makespans.

`python benchmarks/elf_orders.py < rows`, with `elf-pipeline==0.1.0`, PuLP and torch. Nothing of this project is
imported. ELF's objective is the longest span of a device, so its orders are played here for their makespan.
"""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from elf.registry import SCHEDULERS, resolve
from elf.scheduling.ilp import _generate_simplified_schedule, solve_remat

ORDERS = ("afab", "1f1b", "zbh1", "zbh2")

Action = tuple[str, int, int]
"""f, b or w, stage and microbatch."""


def statistics_of(times: Sequence[int]) -> dict[str, Any]:
    """A stage of ELF's whose stash is one unit from F to I, and half of it to W; recomputation takes as long as F."""
    forward, returning, rest = times
    return {
        "T": {"f": forward, "b": returning, "w": rest},
        "M": {"f": 1.0, "b": 0.5, "w": 0.0},
        "Mpeak": {"f": 1.0, "b": 0.0, "w": 0.0},
        "Mpeak_ckpt": 0.0,
        "Minput": 0.0,
        "Moutput": 0.0,
        "Mba": 0.5,
        "Tcomm": 0.0,
        "Mparams": 0.0,
    }


def makespan_of(orders: Sequence[Sequence[Action]], durations: dict[Action, float]) -> float:
    """When the last action of these orders ends."""
    ends: dict[Action, float] = {}
    place, last = [0] * len(orders), len(orders) - 1
    while any(place[rank] < len(order) for rank, order in enumerate(orders)):
        for rank, order in enumerate(orders):
            while place[rank] < len(order):
                kind, stage, number = order[place[rank]]
                needs = {"f": ("f", stage - 1, number), "b": ("b", stage + 1, number)}.get(kind)
                waits = needs is not None and 0 <= needs[1] <= last
                if waits and needs not in ends:
                    break
                before = ends[order[place[rank] - 1]] if place[rank] else 0.0
                begin = max(before, ends[needs] if waits and needs is not None else 0.0)
                ends[kind, stage, number] = begin + durations[kind, stage, number]
                place[rank] += 1
    return max(ends.values())


def solve(row: dict[str, Any], name: str) -> float | None:
    """The makespan of an order with what ELF lets recompute; None where it finds nothing that fits."""
    scheduler, placement, count = resolve(name, SCHEDULERS), list(range(len(row["times"]))), row["microbatches"]
    statistics = [statistics_of(times) for times in row["times"]]
    try:
        found = solve_remat(statistics, placement, scheduler, count, row["kept"])
    except RuntimeError:
        return None
    durations: dict[Action, float] = {}
    for stage, (forward, returning, rest) in enumerate(row["times"]):
        for m in range(count):
            durations["f", stage, m] = forward
            durations["b", stage, m] = returning + forward * round(found["full_fwd"][stage][m])
            again = forward * round(found["activations_bwd"][stage][m])
            again += (forward + returning) * round(found["full_bwd"][stage][m])
            durations["w", stage, m] = rest + again
    return makespan_of(_generate_simplified_schedule(placement, count, scheduler), durations)


def main() -> None:
    """Answer every row with the least makespan of all orders, and the seconds that all took."""
    for row in json.load(sys.stdin):
        begin = time.monotonic()
        found = {name: solve(row, name) for name in ORDERS}
        fitting = {name: end for name, end in found.items() if end is not None}
        best = min(fitting, key=lambda name: fitting[name], default=None)
        seconds = round(time.monotonic() - begin, 2)
        print(json.dumps({"order": best, "makespan": fitting.get(best or ""), "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()

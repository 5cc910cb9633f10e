"""What dealing whole sequences saves: `python -m benchmarks.dealt_iterations [-o docs/benchmarks/dealt_iterations.md]`.

A GPT of two blocks trains on the paragraphs of this repository's documents on two processes, each a pipeline of one
stage: sequences dealt anew in every step, as many whole ones to each in the order in which they come, and all padded to
the longest and cut evenly. The three ways take turns on the same sequences; losses have to agree.
"""

import json
import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.processes import run_ranks
from benchmarks.report import Table, make_parser, percent

PER_STEP, STEPS, PIPELINES = (8, 16), 6, 2
WAYS = ("dealt", "in order", "padded")

PREFACE = [
    "# Iterations of uneven sequences, dealt",
    "",
    "Whole sequences dealt to two pipelines before every step, beside as many to each in the order in which they",
    "come, and beside sequences padded to the longest of their step. A GPT of two blocks of 128 features learns the",
    "paragraphs of this repository's documents as bytes, at most 1,024 of each: real lengths, from a heading's line to",
    "whole pages, not chosen for this. A step's time is the processor time of the process that takes longest, so that",
    "other work on the machine does not count; the table has the sum over six steps, of which the first is left out.",
    "`python -m benchmarks.dealt_iterations` makes it.",
    "",
]
HEADER = [
    "sequences per step",
    "lengths: least, median, most",
    "dealt / in order",
    "dealt / padded",
    "by the clock",
    "gap of the dealings",
    "losses agree within",
]


def main() -> None:
    """A row per number of sequences."""
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    table = Table(preface=PREFACE, header=HEADER, output=options.output)
    for per_step in PER_STEP:
        arguments = [str(per_step), str(options.steps)]
        found = json.loads(run_ranks("benchmarks.dealt_worker", PIPELINES, arguments=arguments))
        table.add(row_of(per_step, found))
    table.close(
        "*By the clock* is dealt / in order and dealt / padded by the wall clock, with whatever else the machine did.",
        "The *gap* is what the certified bound leaves open below a dealing, by the times that the stage was measured",
        "to take; the median over the steps.",
    )


def row_of(per_step: int, found: dict[str, Any]) -> list[str]:
    """`found`: what rank 0 of the worker says."""
    took = {name: [sum_of_slowest(found["rows"], name, place=place) for place in (1, 0)] for name in WAYS}
    lengths = sorted(found["lengths"])
    return [
        str(per_step),
        f"{lengths[0]}, {median(lengths):.0f}, {lengths[-1]}",
        *(f"{took['dealt'][0] / took[name][0]:.2f}" for name in WAYS[1:]),
        " and ".join(f"{took['dealt'][1] / took[name][1]:.2f}" for name in WAYS[1:]),
        percent(median(found["gaps"])),
        f"{largest_difference(found['rows']):.0e}",
    ]


def sum_of_slowest(ranks: Sequence[dict[str, Any]], name: str, *, place: int) -> float:
    """Over the steps but the first; `place` 0: by the clock, 1: processor time."""
    steps = zip(*(rank[name][1:] for rank in ranks), strict=True)
    return math.fsum(max(row[place] for row in each) for each in steps)


def largest_difference(ranks: Sequence[dict[str, Any]]) -> float:
    """Of the losses per token of any step, relative."""
    steps = zip(*(ranks[0][name] for name in WAYS), strict=True)
    return max(max(row[2] for row in each) / min(row[2] for row in each) - 1 for each in steps)


if __name__ == "__main__":
    main()

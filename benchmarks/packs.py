"""Packs against those that are filled in input order, on lengths as Megatron-LM's mock data sets draw them.

`python -m benchmarks.packs` prints a table, and one of neighbours. A step is 512 sequences on 8 pipelines under 1F1B;
attention costs as much beside the rest as in a model of 8 billion parameters. Milliseconds are of the clock, and of the
processor. In input order: `fill_in_order`, Megatron-LM's `dp_balanced`.
"""

import random
import statistics
import sys
import time
from dataclasses import dataclass
from math import log
from typing import Any

from planner.packing.pack_sequences import pack
from planner.packing.pack_times import PackTimes

SEQUENCES, PIPELINES, SEEDS = 512, 8, range(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class MockLengths:
    """Lognormal with a mean, cut off at both ends."""

    least: int
    most: int
    mean: int
    sigma: float = 1.1

    def draw(self, seed: int) -> list[int]:
        """One step."""
        rng, mu = random.Random(seed), log(self.mean) - self.sigma**2 / 2
        return [int(min(self.most, max(self.least, rng.lognormvariate(mu, self.sigma)))) for _ in range(SEQUENCES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoLengths:
    """About one length, or about another, of which there is a share."""

    short: int
    long: int
    share: float

    def draw(self, seed: int) -> list[int]:
        """One step."""
        rng = random.Random(seed)
        means = [self.long if rng.random() < self.share else self.short for _ in range(SEQUENCES)]
        return [max(1, int(mean * rng.uniform(0.75, 1.25))) for mean in means]


CASES = [
    ("default at 4,096", MockLengths(least=2048, most=4096, mean=3072), 4096),
    ("default at 4,096, packs of 8,192", MockLengths(least=2048, most=4096, mean=3072), 8192),
    ("1,024 to 16,384, mean 8,192", MockLengths(least=1024, most=16384, mean=8192), 16384),
    ("the same, packs of 32,768", MockLengths(least=1024, most=16384, mean=8192), 32768),
    ("100 to 4,096, mean 2,048", MockLengths(least=100, most=4096, mean=2048), 4096),
    ("64 to 8,192, mean 1,024", MockLengths(least=64, most=8192, mean=1024, sigma=1.0), 8192),
]
"""Name, lengths, tokens of a pack. The first is the data set's own default; the others stand in published scripts."""


NEIGHBOURS: dict[str, dict[str, Any]] = {
    "lengths from 32 to 32,768, sigma 1.5": {"lengths": MockLengths(least=32, most=32768, mean=2048, sigma=1.5)},
    "most short, one in eight long": {"lengths": TwoLengths(short=600, long=12000, share=0.125)},
    "half short, half long": {"lengths": TwoLengths(short=1000, long=8000, share=0.5)},
    "2 stages": {"stages": 2},
    "16 stages": {"stages": 16},
    "4 pipelines": {"pipelines": 4},
    "16 pipelines": {"pipelines": 16},
    "packs of twice as many tokens": {"cap": 32768},
    "no squares": {"square": 0.0},
    "four times the squares": {"square": 0.064},
    "backwards as long as forwards": {"back": 1.0},
}
"""What differs from the third case with 8 stages; long lengths may have packs of 32,768 tokens."""


def measure(
    *,
    lengths: MockLengths | TwoLengths = CASES[2][1],
    cap: int = 16384,
    stages: int = 8,
    pipelines: int = PIPELINES,
    square: float = 0.016,
    back: float = 2.0,
) -> str:
    """Medians over seeds, as columns."""
    stage = PackTimes(
        forward_token_ns=1000.0,
        backward_token_ns=1000.0 * back,
        forward_square_ns=square,
        backward_square_ns=square * back,
    )
    shares, bounds, gaps, clocks, works = [], [], [], [], []
    for seed in SEEDS:
        given, begin, worked = lengths.draw(seed), time.perf_counter(), time.process_time()
        found = pack(given, pipelines, cap=max(cap, *given), stages=[stage] * stages)
        clocks.append(1e3 * (time.perf_counter() - begin))
        works.append(1e3 * (time.process_time() - worked))
        shares.append(found.largest_ns / (found.in_order_ns or found.largest_ns))
        bounds.append((1 - found.gap) * shares[-1])
        gaps.append(100 * found.gap)
    share, bound, gap, clock, work = map(statistics.median, (shares, bounds, gaps, clocks, works))
    return f"{share:.3f} | {bound:.3f} | {gap:.1f} % | {clock:.0f} | {work:.0f} |"


def main() -> None:
    """Print both tables."""
    columns = "of the time in input order | no packs below | gap | milliseconds | of the processor |\n"
    sys.stdout.write(f"| lengths | stages | {columns}|{'---|' * 7}\n")
    for name, lengths, cap in CASES:
        for stages in (4, 8):
            sys.stdout.write(f"| {name} | {stages} | {measure(lengths=lengths, cap=cap, stages=stages)}\n")
    sys.stdout.write(f"\n| neighbour | {columns}|{'---|' * 6}\n")
    for name, changes in NEIGHBOURS.items():
        sys.stdout.write(f"| {name} | {measure(**changes)}\n")


if __name__ == "__main__":
    main()

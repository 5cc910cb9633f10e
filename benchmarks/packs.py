"""Packs against those that are filled in input order, on lengths as Megatron-LM's mock data sets draw them.

`python -m benchmarks.packs` prints a table. A step is 512 sequences on 8 pipelines under 1F1B; attention costs as much
beside the rest as in a model of 8 billion parameters. In input order: `fill_in_order`, Megatron-LM's `dp_balanced`.
"""

import random
import statistics
import sys
import time
from dataclasses import dataclass
from math import log

from planner.packing.pack_sequences import pack
from planner.packing.pack_times import PackTimes

SEQUENCES, PIPELINES, SEEDS = 512, 8, range(5)
STAGE = PackTimes(forward_token_ns=1000.0, backward_token_ns=2000.0, forward_square_ns=0.016, backward_square_ns=0.032)


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


CASES = [
    ("default at 4,096", MockLengths(least=2048, most=4096, mean=3072), 4096),
    ("default at 4,096, packs of 8,192", MockLengths(least=2048, most=4096, mean=3072), 8192),
    ("1,024 to 16,384, mean 8,192", MockLengths(least=1024, most=16384, mean=8192), 16384),
    ("the same, packs of 32,768", MockLengths(least=1024, most=16384, mean=8192), 32768),
    ("100 to 4,096, mean 2,048", MockLengths(least=100, most=4096, mean=2048), 4096),
    ("64 to 8,192, mean 1,024", MockLengths(least=64, most=8192, mean=1024, sigma=1.0), 8192),
]
"""Name, lengths, tokens of a pack. The first is the data set's own default; the others stand in published scripts."""


def main() -> None:
    """Print the table: medians over seeds."""
    sys.stdout.write("| lengths | stages | of the time in input order | no packs below | gap | milliseconds |\n")
    sys.stdout.write(f"|{'---|' * 6}\n")
    for name, lengths, cap in CASES:
        for stages in (4, 8):
            shares, bounds, gaps, clocks = [], [], [], []
            for seed in SEEDS:
                given, begin = lengths.draw(seed), time.perf_counter()
                found = pack(given, PIPELINES, cap=cap, stages=[STAGE] * stages)
                clocks.append(1e3 * (time.perf_counter() - begin))
                shares.append(found.largest_ns / (found.in_order_ns or found.largest_ns))
                bounds.append((1 - found.gap) * shares[-1])
                gaps.append(100 * found.gap)
            share, bound, gap, clock = (statistics.median(each) for each in (shares, bounds, gaps, clocks))
            sys.stdout.write(f"| {name} | {stages} | {share:.3f} | {bound:.3f} | {gap:.1f} % | {clock:.0f} |\n")


if __name__ == "__main__":
    main()

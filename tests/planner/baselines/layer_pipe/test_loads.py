"""Loads of processors: tests of planner/baselines/layer_pipe/loads.py."""

from collections.abc import Sequence
from itertools import accumulate
from random import Random

import pytest

from benchmarks.convnets import NETWORKS
from planner.baselines.layer_pipe.loads import (
    Task,
    Work,
    place_freely,
)

RATIOS = {"VGG16": (1.24, 1.44, 1.60), "VGG11": (1.71, 1.93, 2.00), "ResNet-50": (1.04, 1.06, 1.08)}
"""By 7, 8 and 9 processors."""


def contiguous_load(work: Work, num_processors: int) -> int:
    """The least largest load if every processor takes whole layers in a row."""
    sums = [0, *accumulate(work.layers)]
    best = sums
    for _ in range(num_processors - 1):
        best = [min(max(best[start], sums[end] - sums[start]) for start in range(end + 1)) for end in range(len(sums))]
    return best[-1]


def placed_load(work: Work, processor_of: dict[Task, int], *, halves: bool = True) -> float:
    """The largest load of a placement."""
    loads: dict[int, int] = {}
    for task, cost in work.tasks(halves=halves).items():
        loads[processor_of[task]] = loads.get(processor_of[task], 0) + cost
    return max(loads.values()) / 2


def load_lower_bound(work: Work, num_processors: int, *, halves: bool = True) -> float:
    """No placement has a smaller largest load: the even share, and the largest task."""
    costs = work.tasks(halves=halves)
    return max(sum(costs.values()) / num_processors, max(costs.values())) / 2


def load_ratio(work: Work, num_processors: int, *, halves: bool = True) -> tuple[float, float]:
    """Contiguous load over that of the free placement, and over its lower bound: what free placement gains, and
    could.
    """
    whole = contiguous_load(work, num_processors)
    placed = placed_load(work, place_freely(work, num_processors, halves=halves), halves=halves)
    return whole / placed, whole / load_lower_bound(work, num_processors, halves=halves)


def as_work(costs: Sequence[int]) -> Work:
    """F = I = W in every layer but the first, which has no I."""
    return Work(forward=tuple(costs), input_grad=(0, *costs[1:]), weight_grad=tuple(costs))


@pytest.mark.parametrize("network", RATIOS)
def test_expected_ratios(network: str):
    """Tests that free placement with halves has these ratios to two digits, from the shapes of the layers."""
    work = as_work([shape.macs for shape in NETWORKS[network]])
    assert tuple(round(load_ratio(work, processors)[0], 2) for processors in (7, 8, 9)) == RATIOS[network]


def least_load(costs: list[int], num_processors: int) -> int:
    """By trying every assignment."""
    best = sum(costs)
    loads = [0] * num_processors

    def seat(number: int) -> None:
        nonlocal best
        if max(loads) >= best:
            return
        if number == len(costs):
            best = max(loads)
            return
        for processor in range(num_processors):
            loads[processor] += costs[number]
            seat(number + 1)
            loads[processor] -= costs[number]

    seat(0)
    return best


def test_free_placement_is_near_the_best():
    """Tests that the placement is at most 4/3 of the best one of all, and mostly equal to it, on small chains."""
    rng, equal = Random(1), 0
    for _ in range(40):
        count = rng.randint(1, 3)
        work = Work(
            forward=tuple(rng.randint(1, 20) for _ in range(count)),
            input_grad=tuple(rng.randint(0, 20) for _ in range(count)),
            weight_grad=tuple(rng.randint(1, 20) for _ in range(count)),
        )
        found = placed_load(work, place_freely(work, 3))
        best = least_load(list(work.tasks(halves=True).values()), 3) / 2
        assert load_lower_bound(work, 3) <= best <= found <= best * 4 / 3
        equal += found == best
    assert equal >= 30


def test_contiguous_load_by_hand():
    """Tests that layers of 9, 1, 1, 9 are cut as on paper, and that more processors than layers change nothing."""
    work = Work(forward=(3, 1, 1, 3), input_grad=(3, 0, 0, 3), weight_grad=(3, 0, 0, 3))
    assert [contiguous_load(work, count) for count in (1, 2, 3, 4, 9)] == [20, 10, 9, 9, 9]

"""Weight gradients beside regions: the choice against every choice there is, on small random tables."""

from itertools import product
from random import Random

import pytest

from benchmarks.co_running.plan_regions import plan_regions, try_all
from benchmarks.co_running.regions import (
    CoRun,
    RegionProblem,
    WeightGrad,
    choose_greedily,
    find_mistakes,
    predicted_ns,
)


def random_problem(seed: int) -> RegionProblem:
    """Up to three blocks, hence up to six regions and a fourth weight gradient; side by side at any price."""
    random = Random(seed)
    lengths = tuple(random.randint(1, 60) for _ in range(random.randint(2, 6)))
    return RegionProblem(
        lengths_ns=lengths,
        weight_grads=tuple(_random_weight_grad(random, lengths) for _ in range(random.randint(1, 4))),
    )


def _random_weight_grad(random: Random, lengths: tuple[int, ...]) -> WeightGrad:
    alone = random.randint(1, 50)
    return WeightGrad(
        alone_ns=alone,
        first=random.randrange(len(lengths)),
        last=random.randrange(len(lengths)),
        beside={
            region: CoRun(main_ns=length + random.randint(-3, 20), own_ns=alone + random.randint(-3, 30))
            for region, length in enumerate(lengths)
            if random.random() < 0.8
        },
    )


def pair(main_ns: int, own_ns: int) -> CoRun:
    return CoRun(main_ns=main_ns, own_ns=own_ns)


@pytest.mark.parametrize("seed", range(60))
def test_choice_is_the_best_of_all(seed: int):
    """Tests that no choice takes less than the one returned, and that neither plain order nor greed is better."""
    problem = random_problem(seed)
    every = product(*([None, *each.regions] for each in problem.weight_grads))
    best = min(predicted_ns(problem, choice) for choice in every)
    plan = plan_regions(problem)
    assert find_mistakes(problem, plan.choice) == []
    assert plan.predicted_ns == predicted_ns(problem, plan.choice) == plan.bound_ns == best
    assert predicted_ns(problem, try_all(problem)) == best
    greedy = predicted_ns(problem, choose_greedily(problem))
    assert best <= greedy <= predicted_ns(problem, problem.plain)


def test_greed_is_not_always_best():
    """Tests that the exact choice beats greed where the largest saving takes another one's only place."""
    problem = RegionProblem(
        lengths_ns=(10, 9),
        weight_grads=(
            WeightGrad(alone_ns=10, first=0, last=1, beside={0: pair(10, 10), 1: pair(10, 10)}),
            WeightGrad(alone_ns=8, first=0, last=0, beside={0: pair(10, 9)}),
        ),
    )
    assert predicted_ns(problem, choose_greedily(problem)) == 27
    plan = plan_regions(problem)
    assert (plan.choice, plan.predicted_ns, plan.source) == ((1, 0), 20, "CP-SAT")


def test_region_waits_for_both_streams():
    """Tests that slowdowns and own times add up, and that a region takes the longer of the two sums, by hand."""
    problem = RegionProblem(
        lengths_ns=(10, 20),
        weight_grads=(
            WeightGrad(alone_ns=6, first=1, last=1, beside={1: pair(22, 9)}),
            WeightGrad(alone_ns=5, first=1, last=1, beside={1: pair(19, 16)}),
        ),
    )
    assert predicted_ns(problem, (None, None)) == 41
    assert predicted_ns(problem, (1, None)) == 37
    assert predicted_ns(problem, (1, 1)) == 35


def test_windows_are_kept():
    """Tests that a weight gradient runs neither before its I nor after its own next F, measured there or not."""
    everywhere = {region: pair(10, 1) for region in range(3)}
    problem = RegionProblem(
        lengths_ns=(10, 10, 10),
        weight_grads=(
            WeightGrad(alone_ns=9, first=1, last=1, beside=everywhere),
            WeightGrad(alone_ns=9, first=2, last=1, beside=everywhere),
        ),
    )
    assert plan_regions(problem).choice == (1, None)
    assert len(find_mistakes(problem, (0, 2))) == 2
    assert find_mistakes(problem, (1,)) == ["1 choices for 2 weight gradients"]
    with pytest.raises(ValueError, match="of 2 regions"):
        RegionProblem(lengths_ns=(1, 1), weight_grads=problem.weight_grads)


def test_plain_order_where_nothing_pays():
    """Tests that plain order is what is returned where side by side takes as long as one after the other."""
    slow = WeightGrad(alone_ns=5, first=0, last=0, beside={0: pair(15, 15)})
    plan = plan_regions(RegionProblem(lengths_ns=(10,), weight_grads=(slow,)))
    assert (plan.choice, plan.predicted_ns, plan.source) == ((None,), 15, "plain")

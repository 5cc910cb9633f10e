"""The time-indexed bound by prices of paths: near that of HiGHS, never above the best plan, checked in integers."""

import math
from random import Random

import pytest

from planner.bounds.order.priced_rows import raise_by_prices
from planner.evidence.certificate import check_certificate
from planner.layout.costs import CostModel
from planner.problem import Problem
from solver_models.recomputation.path_prices import PathPrices
from tests.long_runs import shortened
from tests.planner.decisions.recompute_microbatches.test_option import least_of
from tests.planner.recomputed_chain import recomputed_chain
from tests.solver_models.test_time_indexed import uneven_chain


def priced(problem: Problem, *, most: int) -> dict | None:
    """The certificate of the bound up to a value that some plan has."""
    costs = CostModel(problem)
    found = raise_by_prices(problem, costs, start_ns=1, most_ns=most, make=PathPrices, seconds_left=lambda: math.inf)
    return found and {"kind": "time-indexed", "value_ns": found[0], **found[1]}


@pytest.mark.parametrize(("kept", "value", "best"), [(4, 270, 270), (3, 280, 280), (2, 300, 300), (1, 360, 360)])
def test_recomputation_has_a_price(kept: int, value: int, best: int):
    """Tests that four stages with room for `kept` of eight microbatches take nearly what the best plan does."""
    problem = recomputed_chain(4, num_microbatches=8, kept=kept)
    certificate = priced(problem, most=best + 20)
    assert certificate is not None
    assert value <= check_certificate(problem, certificate) <= best


def test_changed_prices_prove_nothing_false():
    """Tests that whatever is changed in a certificate, it is refused or at most the optimum, 360."""
    problem, num_refused = recomputed_chain(4, num_microbatches=8, kept=1), 0
    certificate = priced(problem, most=380)
    assert certificate is not None
    for seed in range(shortened(30, whole=1_000)):
        rng = Random(seed)
        pairs = [list(pair) for pair in certificate["multipliers"]]
        for pair in rng.sample(pairs, rng.randint(1, 3)):
            pair[0], pair[1] = max(0, pair[0] + rng.choice([0, 0, -1, 1])), max(1, pair[1] * rng.randint(0, 5) // 3)
        value = certificate["value_ns"] + rng.choice([-10, 0, 1, 10, 20])
        try:
            assert check_certificate(problem, {**certificate, "multipliers": pairs, "value_ns": value}) <= 360
        except ValueError:
            num_refused += 1
    assert num_refused > shortened(1, whole=100)


@pytest.mark.slow
def test_no_plan_is_below_it():
    """Tests that no order and no choice of what recomputes ends sooner, for any times, bytes and memory."""
    num_found = 0
    for seed in range(shortened(6, whole=400)):
        rng = Random(seed)
        kinds = rng.choice(["FB", "FIW"]) if seed % 10 == 0 else "FB"
        problem = uneven_chain(rng, kinds=kinds)
        best = least_of(problem, kinds=kinds)
        certificate = priced(problem, most=best + 5)
        num_found += certificate is not None
        assert certificate is None or check_certificate(problem, certificate) <= best, f"seed {seed}"
    assert num_found > shortened(1, whole=200)

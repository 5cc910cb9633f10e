"""Counts of actions over time: never above the best plan, near it where memory binds, and refused where changed."""

import math
from dataclasses import replace
from functools import cache, partial
from random import Random

import pytest

from planner.bounds.order.priced_rows import raise_by_prices
from planner.bounds.order.time_indexed_bound import TimeIndexed, applies_to, choose_cells, raise_bound
from planner.evidence.certificate import Bound, check_certificate
from planner.layout.costs import CostModel
from planner.problem import Problem
from solver_models.recomputation.path_prices import PathPrices
from solver_models.time_indexed import find_multipliers
from tests.long_runs import shortened
from tests.planner.recomputed_chain import recomputed_chain


def bound_of(problem: Problem, *, most: int) -> Bound | None:
    """The bound up to a value that some plan has."""
    solve = partial(find_multipliers, time_limit_s=60)
    found = raise_bound(problem, CostModel(problem), start_ns=1, most_ns=most, solve=solve, most_cells=1_000)
    return found and stated(*found)


def stated(value: int, fields: dict[str, object]) -> Bound:
    """The bound with its certificate."""
    certificate = {"kind": "time-indexed", "value_ns": value, **fields}
    return Bound(kind="time-indexed", value_ns=value, certificate=certificate)


@cache
def certified_chain() -> tuple[Problem, Bound]:
    """Four stages with room for two of eight microbatches, whose best plan takes 300 ns; a second of work."""
    problem = recomputed_chain(4, num_microbatches=8, kept=2)
    how = {"make": PathPrices, "seconds_left": lambda: math.inf}
    found = raise_by_prices(problem, CostModel(problem), start_ns=1, most_ns=320, **how)
    assert found is not None
    return problem, stated(*found)


@pytest.mark.parametrize(("kept", "value"), [(4, 270), (3, 280), (2, 290), (1, 350)])
def test_recomputation_has_a_price(kept: int, value: int):
    """Tests that four stages with room for `kept` of eight microbatches take at least so long, by their certificate."""
    problem = recomputed_chain(4, num_microbatches=8, kept=kept)
    bound = bound_of(problem, most=380)
    assert bound is not None
    assert bound.value_ns == check_certificate(problem, bound.certificate) == value


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"value_ns": 301}, "does not exclude 300 ns"),
        ({"cell_ns": 0}, "cell_ns"),
        ({"cell_ns": 10.0}, "cell_ns"),
        ({"multipliers": []}, "does not exclude"),
        ({"multipliers": [[0, -1]]}, "not pairs"),
        ({"multipliers": [[0, True]]}, "not pairs"),
        ({"multipliers": [[10**6, 1]]}, "rows that are not there"),
        ({"multipliers": [[row, 1] for row in range(0, 1000, 7)]}, "does not exclude"),
        ({"multipliers": [[row, 2**40] for row in range(0, 1000, 7)]}, "does not exclude"),
        ({"multipliers": {"0": 1}}, "not pairs"),
        ({"multipliers": None}, "not pairs"),
    ],
)
def test_certificates_that_prove_less_are_refused(fields: dict, what: str):
    """Tests that a larger value, other cells and other multipliers are named."""
    problem, bound = certified_chain()
    with pytest.raises(ValueError, match=what):
        check_certificate(problem, {**bound.certificate, **fields})


def test_it_holds_for_given_stages_alone():
    """Tests that where stages are open, or layers choose, there is no such bound."""
    problem = recomputed_chain(4, num_microbatches=8, kept=2)
    assert applies_to(problem)
    for options in ({"partition": None, "placement": None}, {"recompute_layers": True}):
        other = replace(problem, options=replace(problem.options, **options))
        assert not applies_to(other)
        with pytest.raises(ValueError, match="does not hold for this problem"):
            check_certificate(other, {"kind": "time-indexed", "value_ns": 1, "cell_ns": 1, "multipliers": []})


def test_cells_lose_little():
    """Tests that cells divide durations where these have a common part."""
    problem = recomputed_chain(4, num_microbatches=8, kept=2)
    assert choose_cells(problem, CostModel(problem), value_ns=300, most_cells=100)[0] == 10


def test_paths_begin_nothing_too_early_or_too_late():
    """Tests that stage 1 of four waits for one F, its trip of five cells and I, and leaves two cells to stage 0.

    A microbatch takes there F, then F and I of stages 2 and 3, then its own I, of two cells if it recomputes.
    """
    problem = recomputed_chain(4, num_microbatches=8, kept=2)
    model = TimeIndexed(problem, CostModel(problem), cell_ns=10)
    windows = model.paths(27)[1].windows
    assert windows == ((1, 19), (1, 18), (6, 24), (6, 23), (7, 26))


def test_changed_multipliers_prove_nothing_false():
    """Tests that whatever is changed in a certificate's multipliers, it is refused or at most the optimum, 300."""
    (problem, bound), num_refused = certified_chain(), 0
    for seed in range(shortened(30, whole=1_000)):
        rng = Random(seed)
        pairs = [list(pair) for pair in bound.certificate["multipliers"]]
        for _ in range(rng.randint(1, 3)):
            pair = rng.choice(pairs)
            pair[0], pair[1] = max(0, pair[0] + rng.choice([0, 0, -1, 1])), max(1, pair[1] * rng.randint(0, 5) // 3)
        changed = {**bound.certificate, "multipliers": pairs, "value_ns": bound.value_ns + rng.choice([-10, 0, 1, 10])}
        try:
            assert check_certificate(problem, changed) <= 300, f"seed {seed}"
        except ValueError:
            num_refused += 1
    assert num_refused > shortened(1, whole=100)


def test_nothing_below_the_optimizers_step_is_tried():
    """Tests that from a value of less than what follows the last action, no fewer cells than none are looked at."""
    chain = recomputed_chain(4, num_microbatches=8, kept=2)
    problem = replace(chain, profile=replace(chain.profile, optimizer_ns=10_000))
    tried = list[int]()

    def solve(rows: object, shape: tuple[int, int]) -> tuple[float, list[tuple[int, int]]]:
        tried.append(shape[0])
        return 0.0, []

    assert raise_bound(problem, CostModel(problem), start_ns=1, most_ns=10_001, solve=solve, most_cells=1_000) is None
    assert len(tried) == 1

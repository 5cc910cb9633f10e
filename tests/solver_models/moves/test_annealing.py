"""The compiled loop of the joint search: tests of solver_models/moves/annealing.py."""

from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import given

from solver_models.local_search.search import solution_of
from solver_models.moves.annealing import (
    DEADLOCKS,
    FITS,
    Objective,
    _evaluate_once,
    evaluate,
    is_better,
    is_taken,
    overflow,
)
from solver_models.simulation.evaluator import FAR
from tests.solver_models.local_search.test_search import assert_sound, randoms
from tests.solver_models.nets import (
    random_case,
    random_policy_params,
)


def test_what_fits_comes_before_what_does_not():
    """Tests that no number of ticks makes a solution that fits worse than one that does not, in kernels and outside."""
    fits, lacks = Objective(FITS, 1 << 60, 0), Objective(DEADLOCKS, 1, 0)
    assert is_better(fits, lacks)
    assert not is_better(lacks, fits)
    assert is_taken(fits, lacks, 0)
    assert not is_taken(lacks, fits, 1 << 60)
    assert is_taken(Objective(DEADLOCKS, 5, 0), Objective(DEADLOCKS, 3, 0), 3)
    assert not is_taken(Objective(DEADLOCKS, 6, 0), Objective(DEADLOCKS, 3, 0), 3)
    case = random_case(Random(0))
    one = case.candidate()
    ranked = [replace(one, objective=objective, fit=fit) for fit, objective in ((DEADLOCKS, 1), (FITS, 1 << 60))]
    assert [each.is_feasible for each in sorted(ranked, key=lambda each: each.sort_key)] == [True, False]


@given(randoms)
def test_policies_write_valid_words(rng: Random):
    """Tests that the words of every policy that ends are legal and stay within the memory."""
    case = random_case(rng, is_tight=True)
    for _ in range(4):
        candidate = case.candidate(policy_params=random_policy_params(rng))
        candidate = case.searcher.play(candidate)
        if candidate.is_feasible:
            assert_sound(case, candidate)
        else:
            assert candidate.fit == DEADLOCKS or overflow(case.net) > 0


@given(randoms)
def test_what_is_remembered_is_what_would_be_said_anew(rng: Random):
    """Tests that a solution met again is worth the same up to the threshold, and more than it where that was shown."""
    case = random_case(rng, is_tight=True)
    layers, known = case.searcher.layers, np.full((2, 5), -1)
    solutions = [solution_of(case.candidate(policy_params=random_policy_params(rng))) for _ in range(3)]
    for _ in range(12):
        solution = rng.choice(solutions)
        whole = evaluate(layers, solution, FAR, False, False)
        threshold = rng.choice((FAR, whole.amount + rng.randint(-3, 3)))
        found = _evaluate_once(layers, solution, threshold, False, False, known)
        if found.fit == FITS and found.amount >= threshold:
            assert whole.fit != FITS or whole.amount >= threshold
        else:
            assert found == whole

"""Tests of planner/recipes/least_time.py."""

from itertools import combinations

import numpy
import pytest

from planner.evidence.certificate import check_certificate
from planner.recipes.cut_search import CutQuestion, search_cuts
from planner.recipes.least_time import as_problem, find_least_time, hardest_mix
from tests.planner.recipes.test_cut_search import CHAINS, chain_of


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize(("ranks", "chunks"), [(2, 1), (2, 2), (3, 1), (2, 3), (4, 2)])
def test_the_best_of_all_cuts_is_found(name: str, ranks: int, chunks: int):
    """Tests that the search finds what enumeration does, or nearly, and that the bound is below all of them."""
    chain, size = CHAINS[name], len(CHAINS[name].letters)
    question = CutQuestion(chain=chain, ranks=ranks, microbatches=4 * ranks)
    inner = combinations(range(1, size), ranks * chunks - 1)
    every = numpy.array([(0, *each, size) for each in inner], dtype=numpy.int64)
    best = int(question.play(every, most=16).min())
    found = search_cuts(question, chunks=[chunks])
    assert best <= found.time <= 1.02 * best
    assert found.time == question.play(numpy.array([found.bounds]), most=16)[0]
    problem = as_problem(
        chain, hardest_mix(chain, ranks=ranks), ranks=ranks, microbatches=question.microbatches, most_chunks=chunks
    )
    bound = find_least_time(problem, reached=found.time)
    assert bound.value_ns <= best
    assert check_certificate(problem, bound.certificate) == bound.value_ns


def test_a_mean_of_costs_is_no_harder_than_the_worse_of_them():
    """Tests that no cut takes longer by the mix of two costs than by the worse of both."""
    chain = CHAINS["two ways"]
    mixed = chain_of([0] * 9, letters="t" * 7 + "mL", transfer=1)
    mixed.costs[0][:] = hardest_mix(chain, ranks=3)
    every = numpy.array([(0, *each, 9) for each in combinations(range(1, 9), 5)], dtype=numpy.int64)
    mean, worse = (CutQuestion(chain=each, ranks=3, microbatches=6).play(every, most=16) for each in (mixed, chain))
    assert (mean <= worse).all()
    assert mean.min() > CutQuestion(
        chain=chain_of([10] * 7 + [11, 28], letters="t" * 7 + "mL", transfer=1), ranks=3, microbatches=6
    ).play(every, most=16).min() * 0.9  # fmt: skip

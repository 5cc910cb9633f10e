"""Cuts of chains: the best of all where they are few, and the neighbours and starts that lead there."""

from itertools import combinations

import numpy

from planner.recipes.cut_search import CutQuestion, _neighbours, _starts
from planner.recipes.layer_chain import LayerChain


def chain_of(*rows: list[int], letters: str, transfer: int = 0) -> LayerChain:
    """Layers of so many ticks forward, twice as many backward."""
    costs = tuple(numpy.array([row, [2 * each for each in row]], dtype=numpy.int64) for row in rows)
    return LayerChain(letters=tuple(letters), costs=costs, weights=(1,) * len(letters), transfer=transfer,
                      predicting=1, origin="")  # fmt: skip


CHAINS = {
    "equal": chain_of([10] * 9, letters="t" * 9),
    "a head": chain_of([10] * 8 + [25], letters="t" * 8 + "L", transfer=1),
    "unlike": chain_of([7, 12, 9, 15, 4, 11, 8, 20], letters="t" * 7 + "L"),
    "two ways": chain_of([10] * 7 + [25, 14], [10] * 7 + [11, 28], letters="t" * 7 + "mL", transfer=1),
}


def test_neighbours_move_one_layer():
    """Tests that a layer leaves each stage for each other one, and that none is left empty."""
    near = _neighbours(numpy.array([[0, 2, 3, 5]], dtype=numpy.int64))
    assert sorted(map(tuple, near.tolist())) == [(0, 1, 2, 5), (0, 1, 3, 5), (0, 2, 4, 5), (0, 3, 4, 5)]


def test_more_microbatches_than_are_searched_with():
    """Tests that the rest of many microbatches is counted by the busiest rank."""
    chain = CHAINS["a head"]
    cut = numpy.array([[0, 3, 5, 7, 9]], dtype=numpy.int64)
    few, many = (CutQuestion(chain=chain, ranks=2, microbatches=count).play(cut, most=4)[0] for count in (8, 20))
    assert many - few == 12 * max(3 * (30 + 20), 3 * (20 + 35))


def test_larger_stages_stand_side_by_side():
    """Tests that search begins with the best of all cuts: larger stages in a run, on both sides of a chunk's end."""
    question = CutQuestion(chain=chain_of([10] * 14, letters="t" * 14, transfer=1), ranks=3, microbatches=12)
    cuts = numpy.array([(0, *inner, 14) for inner in combinations(range(1, 14), 8)], dtype=numpy.int64)
    times, starts = question.play(cuts, most=4), [numpy.diff(cut).tolist() for cut in _starts(question, chunks=3)]
    best = numpy.diff(cuts[times.argmin()]).tolist()
    assert best == [1, 1, 2, 2, 2, 2, 2, 1, 1]
    assert best in starts


def test_a_head_counts_for_blocks():
    """Tests that its rank has fewer blocks, in another stage where its own has none left, and no stage is empty."""
    question = CutQuestion(chain=CHAINS["a head"], ranks=2, microbatches=4)
    for sizes in [numpy.diff(cut).tolist() for cut in _starts(question, chunks=2)]:
        assert min(sizes) > 0
        assert sizes[0] + sizes[2] in (5, 6)

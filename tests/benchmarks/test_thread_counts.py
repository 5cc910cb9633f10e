"""Times by number of threads: climbing, interpolation, and how far off it is."""

import pytest

from benchmarks.concurrency.thread_counts import ThreadCurve, mean_error, regret, sample_threads


def truth(threads: int) -> int:
    """Fastest with five threads."""
    return 1000 // threads + 40 * threads


def test_climbing_stops_where_it_gets_slower():
    """Tests that samples are 1, 1 + x, 1 + 2x ... up to the first slower one, which is kept."""
    assert [threads for threads, _ in sample_threads(truth, step=1, most=16).samples] == [1, 2, 3, 4, 5, 6]
    assert [threads for threads, _ in sample_threads(truth, step=3, most=16).samples] == [1, 4, 7]
    assert [threads for threads, _ in sample_threads(truth, step=4, most=4).samples] == [1]


def test_interpolation():
    """Tests that measured figures are kept, others lie on the line between neighbours, and none is invented beyond."""
    curve = ThreadCurve(samples=((1, 100), (3, 60), (5, 70)))
    assert [curve.time_ns(threads) for threads in range(1, 7)] == [100, 80, 60, 65, 70, None]
    assert curve.best_threads == 3
    assert curve.is_measured(3)
    assert not curve.is_measured(2)
    assert ThreadCurve(samples=((1, 7),)).time_ns(1) == 7


def test_accuracy_depends_on_the_step():
    """Tests that with every number measured there is no error, and that larger steps have more, and more regret."""
    fine, coarse = (sample_threads(truth, step=step, most=16) for step in (1, 4))
    assert mean_error(fine, truth, most=6) == 0
    assert mean_error(coarse, truth, most=9) > 0
    assert regret(fine, truth, most=16) == 0
    assert regret(coarse, truth, most=16) >= 0


@pytest.mark.parametrize("samples", [(), ((2, 5),), ((1, 5), (1, 4))])
def test_bad_samples(samples: tuple[tuple[int, int], ...]):
    """Tests that a curve begins with one thread and ascends."""
    with pytest.raises(ValueError, match="thread"):
        ThreadCurve(samples=samples)

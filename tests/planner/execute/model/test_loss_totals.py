"""Losses of one process as those of the iteration: tests of planner/execute/model/loss_totals.py."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from planner.execute.model.loss_totals import LossTotals  # noqa: E402

LOSSES = {0: torch.tensor(1.0), 1: torch.tensor(3.0)}


def totals(*, is_sum: bool = False, num_tokens=None) -> LossTotals:
    """Of one process that has all samples."""
    training = SimpleNamespace(loss_is_sum=is_sum, num_tokens=num_tokens)
    return LossTotals(training, weight=1.0, group=None, device=torch.device("cpu"))  # type: ignore[arg-type]


@pytest.mark.parametrize(("is_sum", "expected"), [(False, 2.0), (True, 4.0)])
def test_means_and_sums(is_sum: bool, expected: float):
    """Tests that means are averaged, sums added up, and that each microbatch has its own."""
    made = totals(is_sum=is_sum)
    assert made.tell(made.start(LOSSES, {}, count=2)) == ((1.0, 3.0), expected)


def test_tokens_weigh():
    """Tests that losses are divided by tokens, a microbatch without any counts as nothing, and all by all tokens."""
    made = totals(num_tokens=len)
    tokens = made.count_tokens({0: torch.zeros(4), 1: torch.zeros(0)})
    assert tokens == {0: 4.0, 1: 0.0}
    assert made.add_up_tokens(tokens) == 4.0
    assert made.tell(made.start(LOSSES, tokens, count=2)) == ((0.25, 0.0), 1.0)
    assert totals().count_tokens({0: torch.zeros(4)}) == {}


def test_microbatches_of_others_are_zero():
    """Tests that what is dealt to other pipelines adds nothing here, and a process without losses tells none."""
    made = totals(is_sum=True)
    assert made.tell(made.start({2: torch.tensor(5.0)}, {}, count=3)) == ((0.0, 0.0, 5.0), 5.0)
    assert made.tell(made.start({}, {}, count=3)) == ((), None)

"""Microbatches that are given one by one: tests of planner/execute/model/listed_microbatches.py."""

import pytest

torch = pytest.importorskip("torch")
from planner.execute.model.listed_microbatches import are_listed, list_microbatches, shape_of, show_shape  # noqa: E402

PAIR = torch.zeros(4, 3), torch.zeros(4)


@pytest.mark.parametrize(
    ("given", "expected"),
    [(PAIR, False), ([PAIR, PAIR], True), ({1: PAIR}, True), ([PAIR], True), ((PAIR, PAIR), True)],
)
def test_a_batch_is_no_list(given: object, expected: bool):
    """Tests that inputs and a target are a batch, and lists and numbered microbatches are not."""
    assert are_listed(given) is expected


def test_a_batch_is_cut():
    """Tests that parts are equal, or of planned sizes, and that microbatches keep the numbers that they were given."""
    halves = list_microbatches(PAIR, planned=None, count=2)
    assert [len(target) for _, target in halves.values()] == [2, 2]
    planned = list_microbatches(PAIR, planned=[1, 3], count=2)
    assert [len(target) for _, target in planned.values()] == [1, 3]
    assert list(list_microbatches({5: PAIR}, planned=None, count=1)) == [5]
    assert show_shape(shape_of(PAIR)) == "(4, 3) float32"


@pytest.mark.parametrize(
    ("given", "planned", "message"),
    [
        (PAIR, [1, 4], "the batch has 4 samples, but the 2 microbatches have 5 together"),
        ((torch.tensor(1.0), torch.zeros(2)), None, "the batch has no samples"),
        ([PAIR, 7], None, "microbatch 1 is a int; give"),
        ({-1: PAIR}, None, "microbatch -1 is a tuple of 2; give"),
    ],
)
def test_what_is_no_microbatch_is_refused(given: object, planned: list[int] | None, message: str):
    """Tests that sizes and kinds that do not fit are named with what to give."""
    with pytest.raises(ValueError, match=message):
        list_microbatches(given, planned=planned, count=2)

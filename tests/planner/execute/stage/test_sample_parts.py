"""Tensors between stages whose replicas take other shares of the samples."""

from fractions import Fraction

import pytest
import torch

from planner.execute.stage.sample_parts import join_shares, mark_whole, share_of
from planner.execute.stage.stage_module import StageShape
from planner.execute.table.routes import SampleRange
from planner.execute.table.wiring import StageEdge

ONE, HALF = Fraction(1), Fraction(1, 2)
EDGE = StageEdge(producer=0, consumer=1, values=("a",))


def shape_of(*given: tuple[int, ...]) -> StageShape:
    """A stage that takes and gives the tensors of one layer."""
    tensors = tuple(torch.empty(each, device="meta") for each in given)
    counts = {"a": len(tensors)}
    return StageShape(inputs=tensors, outputs=tensors, counts=counts, leaving_counts=counts, parameters=())


def test_what_is_as_long_for_any_number_of_samples_is_whole():
    """Tests that of a stage's tensors those are whole whose shape no share changes, on both ends of the edge."""
    own = {ONE: shape_of((4, 3), (1, 8, 8)), HALF: shape_of((2, 3), (1, 8, 8))}
    marked = mark_whole({0: own, 1: own}, [EDGE])
    assert [marked[0][share].whole_outputs for share in (ONE, HALF)] == [{1}, {1}]
    assert [marked[1][share].whole_inputs for share in (ONE, HALF)] == [{1}, {1}]
    assert marked[0][ONE].whole_inputs == marked[1][ONE].whole_outputs == frozenset()


def test_other_dimensions_may_not_change():
    """Tests that a tensor whose samples lie along dimension 1 is refused."""
    own = {ONE: shape_of((3, 4)), HALF: shape_of((3, 2))}
    with pytest.raises(ValueError, match=r"stage 1 takes a: for 1 and 1/2 .* are \(3, 4\) and \(3, 2\), not"):
        mark_whole({0: own, 1: own}, [EDGE])


def test_parts_are_cut_and_joined():
    """Tests that samples are cut and joined along dimension 0, and that what is whole is neither."""
    tensor, half = torch.arange(6).reshape(2, 3), SampleRange(1, 2, 2)
    assert share_of(tensor, half, is_whole=False).tolist() == [[3, 4, 5]]
    assert share_of(tensor, half, is_whole=True) is tensor
    assert join_shares([tensor[:1], tensor[1:]], is_whole=False).tolist() == tensor.tolist()
    assert join_shares([tensor, tensor.clone()], is_whole=True) is tensor


def test_what_hangs_on_samples_is_not_whole():
    """Tests that replicas which give other values of a tensor without samples end the run."""
    one, other = torch.zeros(1, 3), torch.ones(1, 3)
    with pytest.raises(RuntimeError, match=r"shape \(1, 3\) between stages does not have its samples"):
        join_shares([one, other], is_whole=True)

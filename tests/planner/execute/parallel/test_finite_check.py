"""Gradients are told finite without waiting, of all types and beside others."""

import pytest
import torch

from planner.execute.parallel.finite_check import queue_finite_check

KINDS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), float("-inf")])
def test_one_flag_tells_all(kind: torch.dtype, bad: float | None):
    """Tests that the largest numbers of a type count as finite, and that one that is not is found among many."""
    grads = [torch.randn(100, 7).to(kind), torch.full((5,), torch.finfo(kind).max, dtype=kind), torch.ones(3)]
    grads.append(torch.zeros(0, dtype=kind))
    if bad is not None:
        grads[0][99, 6] = bad
    flag = queue_finite_check(grads)
    assert flag is not None
    assert bool(flag) is (bad is None)


def test_other_kinds_want_a_loop():
    """Tests that sparse, whole and no numbers are left to the check that reads them one after the other."""
    sparse = torch.eye(3).to_sparse()
    assert queue_finite_check([torch.ones(2), sparse]) is None
    assert queue_finite_check([torch.ones(2, dtype=torch.int32)]) is None
    assert queue_finite_check([]) is None

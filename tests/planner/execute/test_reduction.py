"""Gradients are put together for a reduction in buckets, of which one at a time is held twice."""

import pytest

from tests.planner.builders import make_layer, make_plan, make_problem, with_evidence

torch = pytest.importorskip("torch")

from planner.execute.reduction import BUCKET_BYTES, _buckets, _pack, bucket_bytes_of  # noqa: E402


def parameters(*counts: int) -> list[torch.nn.Parameter]:
    """Parameters of so many values, with gradients that count up."""
    found = [torch.nn.Parameter(torch.zeros(count)) for count in counts]
    for number, parameter in enumerate(found):
        parameter.grad = torch.full((parameter.numel(),), float(number))
    return found


def test_buckets_hold_no_more_than_they_may():
    """Tests that parameters share a bucket as long as there is room, and that one too large is by itself."""
    sizes = [[p.numel() * 4 for p in bucket] for bucket in _buckets(parameters(2, 3, 9, 1, 4, 1), bucket_bytes=20)]
    assert sizes == [[8, 12], [36], [4, 16], [4]]


def test_what_is_packed_is_held_once_in_the_end():
    """Tests that gradients become parts of the bucket."""
    bucket = parameters(2, 3)
    flat = _pack(bucket)
    assert flat.tolist() == [0, 0, 1, 1, 1]
    flat += 5
    assert [p.grad.tolist() for p in bucket] == [[5, 5], [6, 6, 6]]


def test_a_gradient_larger_than_a_bucket_is_not_copied():
    """Tests that a single gradient is reduced where it lies, and made where there is none."""
    (large,), missing = parameters(9), torch.nn.Parameter(torch.zeros(3))
    place = large.grad.data_ptr()
    assert _pack([large]).data_ptr() == place == large.grad.data_ptr()
    flat = _pack([missing])
    flat += 2
    assert missing.grad.tolist() == [2, 2, 2]


def test_the_plan_says_how_large_buckets_are():
    """Tests that the figure of the evidence is used, and the usual one where there is none."""
    problem = make_problem([make_layer("x")], [], more_devices="a")
    plan = make_plan(problem, ["x @ a"], {"a": "0F0 0B0"})
    assert bucket_bytes_of(plan) == BUCKET_BYTES == 2**25
    for stated, used in ((0, BUCKET_BYTES), (4096, 4096)):
        assert bucket_bytes_of(with_evidence(problem, plan, bucket_bytes=stated)) == used

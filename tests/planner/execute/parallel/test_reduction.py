"""Gradients lie in buckets, which are reduced where they are."""

import pytest

from tests.planner.builders import make_layer, make_plan, make_problem, with_evidence

torch = pytest.importorskip("torch")

from planner.execute.parallel import reduction  # noqa: E402
from planner.execute.parallel.reduction import (  # noqa: E402
    BUCKET_BYTES,
    GradientBucket,
    StageReduction,
    _in_buckets,
    bucket_bytes_of,
)


def parameters(*counts: int) -> list[torch.nn.Parameter]:
    """Parameters of so many values, with gradients that count up."""
    found = [torch.nn.Parameter(torch.zeros(count)) for count in counts]
    for number, parameter in enumerate(found):
        parameter.grad = torch.full((parameter.numel(),), float(number))
    return found


def test_buckets_hold_no_more_than_they_may():
    """Tests that parameters share a bucket as long as there is room, and that one too large is by itself."""
    sizes = [[p.numel() * 4 for p in bucket] for bucket in _in_buckets(parameters(2, 3, 9, 1, 4, 1), bucket_bytes=20)]
    assert sizes == [[8, 12], [36], [4, 16], [4]]


def test_gradients_lie_in_their_bucket():
    """Tests that gradients become parts of one tensor, with what they were, and begin as zeros where there is none."""
    bucket = GradientBucket([*parameters(2, 3), torch.nn.Parameter(torch.zeros(1))])
    bucket.take_in()
    assert bucket.flat.tolist() == [0, 0, 1, 1, 1, 0]
    bucket.flat += 5
    assert [p.grad.tolist() for p in bucket.parameters] == [[5, 5], [6, 6, 6], [5]]
    bucket.parameters[1].grad = None
    bucket.take_in()
    assert bucket.flat.tolist() == [5, 5, 0, 0, 0, 5]


def test_backward_passes_add_to_the_bucket():
    """Tests that autograd adds to the part of the bucket, in the layout of the parameter, instead of replacing it."""
    weight = torch.nn.Parameter(torch.ones(2, 3, 2, 2).to(memory_format=torch.channels_last))
    bucket = GradientBucket([torch.nn.Parameter(torch.zeros(1)), weight])
    bucket.take_in()
    place = weight.grad.data_ptr()
    for factor in (1.0, 2.0):
        (factor * weight).sum().backward()
    assert weight.grad.data_ptr() == place
    assert weight.grad.stride() == weight.stride()
    assert bucket.flat.tolist() == [0] + [3] * 24


def test_a_gradient_that_came_from_elsewhere_is_taken_in():
    """Tests that what somebody else put in a gradient's place is copied to where it is reduced."""
    (parameter,) = parameters(3)
    bucket = GradientBucket([parameter])
    bucket.take_in()
    parameter.grad = torch.tensor([1.0, 2.0, 3.0])
    bucket.take_in()
    assert bucket.flat.tolist() == [1, 2, 3]
    assert parameter.grad.data_ptr() == bucket.flat.data_ptr()


def test_the_plan_says_how_large_buckets_are():
    """Tests that the figure of the evidence is used, and the usual one where there is none."""
    problem = make_problem([make_layer("x")], [], more_devices="a")
    plan = make_plan(problem, ["x @ a"], {"a": "0F0 0B0"})
    assert bucket_bytes_of(plan) == BUCKET_BYTES == 2**25
    for stated, used in ((0, BUCKET_BYTES), (4096, 4096)):
        assert bucket_bytes_of(with_evidence(problem, plan, bucket_bytes=stated)) == used


@pytest.mark.parametrize("divisor", [1.0, 4.0])
def test_the_sum_is_divided_in_its_bucket(monkeypatch: pytest.MonkeyPatch, divisor: float):
    """Tests that gradients that are gone begin as zeros again, and that the mean is that of each parameter."""

    class Work:
        def wait(self) -> None:
            """Nothing travels."""

    def add_up(message: torch.Tensor, **_: object) -> Work:
        message *= 2  # two replicas that have the same
        return Work()

    monkeypatch.setattr(reduction.distributed, "all_reduce", add_up)
    held = [torch.nn.Parameter(torch.zeros(count)) for count in (2, 3)]
    together = StageReduction([*held, torch.nn.Parameter(torch.zeros(1), requires_grad=False)], group="replicas")
    for _ in range(2):
        together.prepare()
        (held[0].sum() * 8 + held[1].sum() * 4).backward()
        together.start()
        together.finish(divisor)
        assert [parameter.grad.tolist() for parameter in held] == [[16 / divisor] * 2, [8 / divisor] * 3]
        for parameter in held:
            parameter.grad = None

"""Gradients lie in buckets, which are reduced where they are, and sent as soon as they are complete."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from planner.errors import ExecutionError  # noqa: E402
from planner.execute.parallel.gradient_buckets import (  # noqa: E402
    LARGE_BYTES,
    EarlySending,
    GradientBucket,
    in_buckets,
)


def parameters(*counts: int) -> list[torch.nn.Parameter]:
    """Parameters of so many values, with gradients that count up."""
    found = [torch.nn.Parameter(torch.zeros(count)) for count in counts]
    for number, parameter in enumerate(found):
        parameter.grad = torch.full((parameter.numel(),), float(number))
    return found


def test_buckets_hold_no_more_than_they_may():
    """Tests that parameters share a bucket as long as there is room, and that one too large is by itself."""
    sizes = [[p.numel() * 4 for p in bucket] for bucket in in_buckets(parameters(2, 3, 9, 1, 4, 1), bucket_bytes=20)]
    assert sizes == [[8, 12], [36], [4, 16], [4]]
    first = in_buckets(parameters(2, 3, 1, 4, 1), bucket_bytes=20, first_bytes=12)
    assert [[p.numel() * 4 for p in bucket] for bucket in first] == [[8], [12, 4], [16, 4]]


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


@pytest.mark.parametrize("is_sparse", [False, True])
def test_large_gradients_are_copied_once_they_are_there(is_sparse: bool):
    """Tests that large gradients begin as none, lie in the bucket after a backward, and are added to by the next one.

    What no backward came to is sent as zeros, and has no gradient afterwards.
    """
    table = torch.nn.Embedding(LARGE_BYTES // 8, 2, sparse=is_sparse)
    small, unused = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(LARGE_BYTES // 4))
    bucket = GradientBucket([table.weight, small, unused], is_copying=True)
    for _ in range(2):
        bucket.flat += 7  # left over
        bucket.prepare()
        assert [each.grad is None for each in bucket.parameters] == [True, False, True]
        for factor in (1.0, 2.0):
            (factor * table(torch.tensor([0, 1, 1])).sum() + small.sum()).backward()
        assert table.weight.grad.data_ptr() == bucket.flat.data_ptr()
        bucket.take_in()
        bucket.flag_used()
        expected = [3, 3, 6, 6] + [0] * (LARGE_BYTES // 4 - 4) + [2, 2] + [0] * (LARGE_BYTES // 4) + [1, 1, 0]
        assert bucket.message.tolist() == expected
        bucket.drop_unused()
        assert [each.grad is None for each in bucket.parameters] == [False, False, True]
        for parameter in bucket.parameters:
            parameter.grad = None
    small.grad = torch.ones(2)
    bucket.prepare()
    assert bucket.flat.count_nonzero() == 2


def test_a_gradient_that_came_from_elsewhere_is_taken_in():
    """Tests that what somebody else put in a gradient's place is copied to where it is reduced."""
    (parameter,) = parameters(3)
    bucket = GradientBucket([parameter])
    bucket.take_in()
    parameter.grad = torch.tensor([1.0, 2.0, 3.0])
    bucket.take_in()
    assert bucket.flat.tolist() == [1, 2, 3]
    assert parameter.grad.data_ptr() == bucket.flat.data_ptr()


def test_what_no_backward_came_to_is_known():
    """Tests that flags stand behind the gradients, that only untouched ones are looked up, and that zeros count."""
    bucket = GradientBucket([torch.nn.Parameter(torch.ones(2)) for _ in range(3)], num_carried=1)
    first, second, third = bucket.parameters
    for added, kept in ([0.0, 0.0, 0.0], [True, False, True]), ([0.0, 1.0, 0.0], [True, True, True]):
        for parameter in bucket.parameters:
            parameter.grad = None
        bucket.take_in()
        (first.sum() * 3 + third.sum() * 0).backward()
        bucket.flag_used()
        assert bucket.message.tolist() == [3, 3, 0, 0, 0, 0, 1, 0, 1, 0]
        bucket.message[6:9] += torch.tensor(added)  # what another replica says
        bucket.drop_unused()
        assert [parameter.grad is not None for parameter in (first, second, third)] == kept


def layers_and_buckets() -> tuple[list[torch.nn.Linear], list[GradientBucket]]:
    """Three layers, each with a bucket of its own, the last layer's first."""
    layers = [torch.nn.Linear(2, 2) for _ in range(3)]
    return layers, [GradientBucket(list(layer.parameters())) for layer in reversed(layers)]


def test_a_bucket_is_sent_while_earlier_layers_compute():
    """Tests that from the second iteration on each bucket is sent before the next layer's backward, in one order."""
    layers, buckets = layers_and_buckets()
    told: list[object] = []
    early = EarlySending(buckets, lambda bucket: told.append(buckets.index(bucket)))
    for number, layer in enumerate(layers):
        layer.register_full_backward_pre_hook(lambda *_, number=number: told.append(f"layer {number}"))
    for expected in (
        ["layer 2", "layer 1", "layer 0"],
        ["layer 2", 0, "layer 1", 1, "layer 0", 2],
    ):
        told.clear()
        for bucket in buckets:
            bucket.take_in()
        early.begin()
        torch.nn.Sequential(*layers)(torch.ones(1, 2, requires_grad=True)).sum().backward()
        early.end()
        assert told == expected


def test_what_a_backward_leaves_out_holds_up_the_others():
    """Tests that buckets behind one that is not complete wait for the end."""
    layers, buckets = layers_and_buckets()
    told: list[int] = []
    early = EarlySending(buckets, lambda bucket: told.append(buckets.index(bucket)))
    for used in (layers, [layers[0], layers[2]]):
        told.clear()
        for bucket in buckets:
            bucket.take_in()
        early.begin()
        torch.nn.Sequential(*used)(torch.ones(1, 2)).sum().backward()
        early.end()
    assert told == [0]


def run_twice(layers: list[torch.nn.Linear], *, is_reentrant: bool) -> None:
    """One layer before and in a checkpoint: with the reentrant kind two backwards come to it."""
    x = torch.nn.Sequential(*layers)(torch.ones(1, 2))
    checkpoint(torch.nn.Sequential(layers[0], layers[2]), x, use_reentrant=is_reentrant).sum().backward()


def test_two_backwards_that_come_to_a_parameter_keep_all_for_the_end():
    """Tests that nothing is sent early where the first iteration comes twice, and that a later one is an error."""
    for is_reentrant in (True, False):
        layers, buckets = layers_and_buckets()
        told: list[int] = []
        early = EarlySending(buckets, lambda bucket, told=told, own=buckets: told.append(own.index(bucket)))
        for _ in range(2):
            early.begin()
            run_twice(layers, is_reentrant=is_reentrant)
            early.end()
        assert told == ([] if is_reentrant else [0, 1, 2])
    for bucket in buckets:
        bucket.take_in()
    early.begin()
    run_twice(layers, is_reentrant=True)
    with pytest.raises(ExecutionError, match="came twice to one parameter"):
        early.end()

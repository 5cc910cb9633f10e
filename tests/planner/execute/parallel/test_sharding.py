"""Parameters are cut into pieces, and pieces into messages, alike on every replica."""

import pytest

torch = pytest.importorskip("torch")

from planner.execute.parallel.sharding import ShardedReduction, ShardPiece, is_cut  # noqa: E402


@pytest.mark.parametrize("shape", [(5,), (7, 3), (2, 3, 4), (2,), (1, 1, 3)])
@pytest.mark.parametrize("num_replicas", [2, 3, 4])
def test_pieces_are_a_cut(shape: tuple[int, ...], num_replicas: int):
    """Tests that pieces put together are the parameter, are no larger than their share, and keep its dimensions."""
    whole = torch.nn.Parameter(torch.arange(float(torch.Size(shape).numel())).view(shape))
    assert is_cut(whole)
    pieces = [ShardPiece(whole, replica=replica, num_replicas=num_replicas) for replica in range(num_replicas)]
    assert torch.equal(torch.cat([piece.parameter.detach().reshape(-1) for piece in pieces]), whole.reshape(-1))
    assert {piece.parameter.dim() for piece in pieces} == {len(shape)}
    assert max(piece.parameter.numel() for piece in pieces) == -(-whole.numel() // num_replicas)
    with torch.no_grad():
        pieces[0].parameter += 1
    assert whole.flatten()[0] == 1  # a piece lies where the parameter does


def test_single_numbers_and_frozen_parameters_are_not_cut():
    """Tests that every replica keeps what cannot be divided, or need not."""
    assert not is_cut(torch.nn.Parameter(torch.tensor(1.0)))
    assert not is_cut(torch.nn.Parameter(torch.ones(1)))
    assert not is_cut(torch.nn.Parameter(torch.ones(3), requires_grad=False))


@pytest.fixture
def _alone(tmp_path):
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'meeting'}", world_size=1, rank=0)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_alone")
def test_messages_are_no_larger_than_a_bucket():
    """Tests that every element travels once, large parameters in several messages, types apart."""
    shapes = [((9,), torch.float32), ((2, 2), torch.float64), ((40,), torch.float32), ((3,), torch.float64)]
    parameters = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape, dtype in shapes]
    reduction = ShardedReduction(parameters, group=None, bucket_bytes=4 * 20 * 4)
    messages = list(reduction._stretches(reduction.pieces.values(), lambda each: each.dtype))
    assert [sum(stop - start for _, start, stop in message) for message in messages] == [20, 20, 9, 7]
    seen = [(id(piece), at) for message in messages for piece, start, stop in message for at in range(start, stop)]
    assert sorted(seen) == sorted((id(piece), at) for piece in reduction.pieces.values() for at in range(piece.size))
    assert all(len({piece.whole.dtype for piece, _, _ in message}) == 1 for message in messages)
